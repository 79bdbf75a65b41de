"""What the picture of a run says, read from its text."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import matplotlib
import pytest

from rrl.space import ConfigurationSpace, Knob
from rrl.views.figure import draw
from rrl.views.summary import summarise
from tests.support.runs import simulated_runs as runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return runs.tuned(tmp_path_factory.mktemp("run"))


def texts(folder: Path, run: runs.Run) -> list[str]:
    path = folder / "latency.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(*run, summarise(*run), path)
    return re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))


def test_a_start_that_answered_nothing_has_no_latency_in_the_title(run: runs.Run, tmp_path: Path) -> None:
    said = texts(tmp_path, runs.unanswered(run))
    assert "Mean latency not measured: nothing better than the start is known" in said
    assert not [text for text in said if "nan" in text]
    assert "mean at the start" not in said


def test_a_load_below_a_request_a_second_is_told(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    rare = [runs.measured(record, arrivals=1, completions=1) for record in records[:3]]
    said = texts(tmp_path, (header, rare))
    assert any(text.startswith("minilm at 0.25 requests/s, ") for text in said)


def test_the_dollars_in_a_models_name_are_no_formula(run: runs.Run, tmp_path: Path) -> None:
    header, records = run
    start = header.space.number(header.start)
    space = ConfigurationSpace(tuple(Knob(f"a$^$.{knob.name}", knob.values) for knob in header.space.knobs))
    header = replace(header, space=space, start=space.configuration(start), found=space.configuration(start))
    records = [replace(r, configuration=space.configuration(r.number)) for r in records]
    assert any("a$^$ " in text for text in texts(tmp_path, (header, records)))
