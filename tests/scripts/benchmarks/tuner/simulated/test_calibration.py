"""`scripts/bench calibration`: what it watches, and how it counts."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from baselines.comparison.workers import Workers
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.agent import Task, Transition, live
from rrl.guided.agent import Guided
from rrl.objective import MeanLatency
from scripts.benchmarks.tuner.simulated import calibration
from scripts.benchmarks.tuner.simulated.calibration import (
    AGAIN,
    ANY_ARRIVALS,
    COMPARED,
    ITS_ARRIVALS,
    NEW,
    NEW_ENTRY,
    TRIED,
    Watched,
)
from scripts.benchmarks.tuner.simulated.coverage import cells, coverages, pit
from scripts.benchmarks.tuner.simulated.rows import SimulatedRun, find_expected_costs, rows_named, runs_of

DECISIONS = 12


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimulatedRun:
    (row,) = rows_named(["usl"])
    (found,) = runs_of(row, "3", DECISIONS, tmp_path_factory.mktemp("costs"))
    with Workers(1) as workers:
        find_expected_costs([found], workers)
    return found


def test_even_quantiles_are_calibrated() -> None:
    even = (np.arange(1000) + 0.5) / 1000
    assert coverages(even) == pytest.approx([0.5, 0.9])
    np.testing.assert_allclose(pit(even), 0.1)
    assert cells(even) == ["50%", "90%", "10 10 10 10 10 10 10 10 10 10"]


def test_predictions_that_are_too_sure_lie_at_the_ends() -> None:
    assert coverages(np.array([0.01, 0.02, 0.97, 0.99])) == [0.0, 0.0]
    np.testing.assert_allclose(pit(np.array([0.01, 0.02, 0.97, 1.0])), [0.5, *[0] * 8, 0.5])


def test_reliability_is_by_fifths_of_what_was_said() -> None:
    found = calibration.reliability([(0.1, False), (0.15, True), (0.9, True), (1.0, True)])
    assert [each.cases for each in found] == [2, 0, 0, 0, 2]
    assert (found[0].said, found[0].was) == (pytest.approx(0.125), 0.5)
    assert (found[4].said, found[4].was) == (pytest.approx(0.95), 1.0)
    assert math.isnan(found[1].said)
    assert [each.cases for each in calibration.reliability([])] == [0] * 5


def test_every_interval_but_the_first_is_compared_with_what_was_believed(run: SimulatedRun) -> None:
    held = calibration.CalibrationJob(run, ())()
    assert all(0 <= quantile <= 1 for each in held.quantiles.values() for quantile in each)
    count = {name: len(each) for name, each in held.quantiles.items()}
    assert count[ANY_ARRIVALS] == count[ITS_ARRIVALS] == DECISIONS - 1
    assert count[NEW] + count[AGAIN] == DECISIONS - 1
    assert count[NEW_ENTRY] > 0
    assert 0 < len(held.better[TRIED]) < DECISIONS
    assert len(held.better[COMPARED]) > len(held.better[TRIED])


class Looking(Guided):
    """The default agent, whose belief is looked at before it learns of an interval."""

    def __init__(self, task: Task) -> None:
        super().__init__(task, seed=5)
        self.watch = Watched(self)

    def update(self, transition: Transition) -> None:
        self.watch.observe(self.space.number_of_action(transition.action), transition)
        super().update(transition)


def test_an_agent_that_is_watched_decides_as_one_that_is_not(run: SimulatedRun) -> None:
    def numbers(agent: Guided) -> list[int]:
        arrivals = PerIntervalPoisson(run.load.rates_per_s)
        env = run.scenario.environment(run.space, MeanLatency(), arrivals)
        return [run.space.number_of_action(each.action) for each in live(agent, env, DECISIONS, seed=1)]

    task = Task(run.space)
    assert numbers(Looking(task)) == numbers(Guided(task, seed=5))


def test_the_table_and_the_file(
    tmp_path: Path, run: SimulatedRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "calibration.jsonl"
    flags = ["--seeds", "3", "--rows", "usl", "--decisions", str(DECISIONS)]
    kept = ["--out", str(out), "--folder", str(run.load.folder.parent)]
    monkeypatch.setattr(sys, "argv", ["bench", "calibration", *flags, *kept])
    result = calibration.run()
    told = capsys.readouterr().out
    assert "| usl/model/stationary | interval, its arrivals | 11 |" in told
    assert "| 0.8 .. 1.0 |" in told
    (line,) = map(json.loads, out.read_text().splitlines())
    assert (line["source"], line[ANY_ARRIVALS]["cases"]) == ("usl", DECISIONS - 1)
    assert sum(line[ANY_ARRIVALS]["pit"]) == pytest.approx(1, abs=1e-3)
    assert result["value"] == pytest.approx(line[NEW_ENTRY]["within"][1], abs=1e-3)
