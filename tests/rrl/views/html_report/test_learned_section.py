"""What the run learned is told: which knobs matter, and what another load would take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rrl.knobs import in_words
from rrl.views.html_report import page
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import section, shown, text, view


def test_what_the_run_learned_ranks_the_knobs_and_answers_what_if(good: runs.Run) -> None:
    run = view(good)
    assert run.learned is not None
    root = shown(good)
    rows = section(root, "importance").findall(".//tbody/tr")
    assert {text(row[0]) for row in rows} == {"instances", "max batch size", "in combination"}
    assert sum(int(text(row[1]).rstrip("%")) for row in rows) == pytest.approx(100, abs=2)
    loads, limits = section(root, "what-if").findall(".//table")
    assert len(loads.findall("./tbody/tr")) == len(limits.findall("./tbody/tr")) == 4
    assert "no such load was seen" in text(loads.findall("./tbody/tr")[-1])
    present = loads.findall("./tbody/tr")[1]
    assert text(present[1]) == in_words(run.learned.ask(load=float(text(present[0]))).best[0].configuration)
    header, records = good
    nothing = page.page(RunView(header, [], summarise(header, []), False), "", ())
    assert nothing.find(".//section[@id='what-if']") is None
    capacity = replace(header, objective="capacity", slo_p95_ms=200.0), records
    (table,) = section(shown(capacity), "what-if").findall(".//table")
    assert "answers/s" in text(table.findall("./tbody/tr")[0])
