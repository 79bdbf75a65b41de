"""`scripts/bench live-papers`: what it makes of the agents' journals."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rrl import journal
from rrl.records import Record
from rrl.space import ConfigurationSpace
from scripts.benchmarks.tuner.live.papers import (
    KNOBS,
    Options,
    change,
    complete,
    costs,
    outcome,
    table,
    tuned,
    verdicts,
)
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES
from tests.support import CHECKOUT

RECORDED = CHECKOUT / "tests" / "recorded"


@pytest.fixture(scope="module")
def record() -> Record:
    _, records = journal.read(RECORDED / "embedded")
    return next(each for each in records if each.kind == "tune")


def run_of(record: Record, costs_ms: list[float]) -> list[Record]:
    """Intervals with these costs, each of a configuration of its own."""
    return [
        replace(record, number=k, transition=replace(record.transition, cost=cost))
        for k, cost in enumerate(costs_ms)
    ]


def test_the_grid_has_60_configurations() -> None:
    assert len(ConfigurationSpace.parse(KNOBS)) == 60


def test_only_what_an_agent_decided_counts() -> None:
    _, records = journal.read(RECORDED / "embedded")
    numbers = [each.number for each in records if each.kind == "tune" and each.counted]
    assert [each.number for each in tuned(RECORDED / "embedded")] == numbers
    assert len(numbers) < len(records)
    assert tuned(Path("no such folder")) == []


def test_runs_of_another_seed_are_not_taken_for_those_asked_for(tmp_path: Path) -> None:
    header, _ = journal.read(RECORDED / "embedded")
    intervals = len(tuned(RECORDED / "embedded"))
    options = Options(agents=("rrl-paper", "capes"), intervals=intervals, block=intervals, out=tmp_path)
    for agent in options.agents:
        shutil.copytree(RECORDED / "embedded", tmp_path / agent)
    complete(replace(options, seed=header.seed))
    with pytest.raises(ValueError, match=rf"run of seed {header.seed}, not of 5: give another --out"):
        complete(replace(options, seed=5))


def test_costs_go_by_blocks_without_the_intervals_that_have_none(record: Record) -> None:
    records = run_of(record, [10.0, 20.0, math.nan, 40.0, 50.0])
    np.testing.assert_allclose(costs(records, 2), [15.0, 40.0, 50.0])


def test_ours_holds_where_it_is_surely_lower(record: Record) -> None:
    ours, theirs = run_of(record, [10.0, 12.0, 11.0, 9.0]), run_of(record, [20.0, 22.0, 24.0, 18.0])
    records = {"rrl-paper": ours, "capes": theirs}
    against = change(records, "rrl-paper", 2)
    assert against.estimate == pytest.approx(-50.0)
    assert outcome(records, 2)["holds"]
    assert not outcome({"rrl-paper": theirs, "capes": ours}, 2)["holds"]
    assert [line.split()[0] for line in table(records, 2)[:3]] == ["agent", "rrl-paper", "capes"]


def test_reductions_against_both_peers_are_judged_as_in_the_figures(record: Record) -> None:
    records = {
        "rrl-paper": run_of(record, [10.0, 12.0, 11.0]),
        "capes": run_of(record, [60.0, 62.0, 58.0]),
        "deeprm": run_of(record, [13.0, 14.0, 15.0]),
    }
    assert verdicts(records, 1) == {"capes": REPRODUCES, "deeprm": PARTLY}
    assert verdicts({**records, "deeprm": run_of(record, [13.0, 12.0, 9.0])}, 1)["deeprm"] == FAILS
    assert verdicts(records, 3) == {"capes": NO_CLAIM, "deeprm": NO_CLAIM}
    assert outcome(records, 1)["verdicts"] == verdicts(records, 1)
    assert table(records, 1)[-1].endswith("in the paper up to -52.9 %: partly")
    del records["deeprm"]
    assert list(verdicts(records, 1)) == ["capes"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"agents": ("guided", "capes")}, "must name rrl-paper"), ({"block": 301}, "from 1 to --intervals")],
)
def test_options_that_compare_nothing_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Options(**options)  # type: ignore[arg-type]


def test_settled_is_told_by_the_best_of_what_was_measured_often(record: Record) -> None:
    """A configuration that was lucky once is not the best, and all agents have the same."""

    def run(numbers: list[int]) -> list[Record]:
        usual_ms = {0: 50.0, 1: 10.0, 2: 10.2, 3: 1.0}
        return [
            replace(record, number=number, transition=replace(record.transition, cost=usual_ms[number]))
            for number in numbers
        ]

    records = {"rrl-paper": run([0, 3, *[1] * 20]), "capes": run([0] * 10 + [2] * 12)}
    lines = table(records, 11)
    assert [line.split()[4] for line in lines[1:3]] == ["3", "11"]
    assert [line.split()[4] for line in table({**records, "capes": run([0, 0, *[2] * 40])}, 11)[1:3]] == [
        "3",
        "3",
    ]
