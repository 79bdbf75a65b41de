"""The front of latency and threads is drawn and listed, if there is one."""

from __future__ import annotations

import re
from dataclasses import replace

from rrl.views.html_report.numbers import ms
from tests.support.runs import simulated_runs as runs
from tests.support.runs.shown_report import by_class, section, shown, text, view


def test_the_front_is_a_table_and_filled_dots_of_the_plot(good: runs.Run) -> None:
    run = view(good)
    root = section(shown(good), "tradeoff")
    front, points = run.tradeoff.front, run.tradeoff.points
    assert len(by_class(root, "front-dot")) % len(front) == 0
    assert len(by_class(root, "behind-dot")) == (len(points) - len(front)) * len(by_class(root, "tradeoff"))
    rows = by_class(root, "front")[0].findall("./tbody/tr")
    assert [text(row[0]) for row in rows] == [str(point.threads) for point in front]
    assert [text(row[1]) for row in rows] == [ms(point.latency_ms) for point in front]
    assert len(rows) < 2 or re.search(r"[\d.]+x (lower|higher) p95.*, for ", text(rows[1][-1]))
    limited = replace(good[0], slo_p95_ms=50.0), good[1]
    assert "p95 limit 50" in text(section(shown(limited), "tradeoff"))


def test_one_configuration_alone_has_nothing_to_be_traded(good: runs.Run) -> None:
    header, records = good
    alone = [r for r in records if r.number == header.space.number(header.start)]
    assert shown((header, alone)).find(".//section[@id='tradeoff']") is None
