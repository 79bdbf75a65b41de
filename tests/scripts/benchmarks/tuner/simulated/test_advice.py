"""`scripts/bench advice`: what it observes, and how it counts what was recommended."""

from __future__ import annotations

import numpy as np
import pytest

from baselines.comparison.workers import Workers
from rrl.advice.observation import DEFAULT_INTERVALS
from rrl.advice.possible_costs import CREDIBILITY
from rrl.space import ConfigurationSpace
from scripts.benchmarks.tuner.simulated.advice import AdviceJob, Advised, Options, line_of, result
from scripts.benchmarks.tuner.simulated.rows import SimulatedRun, find_expected_costs, rows_named, runs_of

STARTS = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SimulatedRun:
    """Few configurations of one machine."""
    (row,) = rows_named(["usl"])
    (whole,) = runs_of(row, "3", DEFAULT_INTERVALS, tmp_path_factory.mktemp("costs"))
    found = whole._replace(
        space=ConfigurationSpace.parse("instances=1:10,inter_op_threads=1,intra_op_threads=1:3")
    )
    with Workers(1) as workers:
        find_expected_costs([found], workers)
    return found


def test_what_is_recommended_is_held_against_what_was_in_force(run: SimulatedRun) -> None:
    found = AdviceJob(run, STARTS)()
    advised = [each for each in found if each is not None]
    costs = run.load.landscapes(len(run.space))[-1].costs
    assert len(found) == STARTS
    assert advised
    for each in advised:
        assert each.said >= CREDIBILITY
        assert np.isclose(each.gain, costs[:, None] / costs[None, :]).any()
    assert max(each.gain for each in advised) > 1.05


def test_a_line_and_the_last_one_count_what_was_recommended_alone() -> None:
    found = [Advised(0.95, 2.0), None, Advised(0.91, 0.5), None, None]
    assert line_of("usl", found) == "| usl | 5 | 2 | 93% | 50% | 1.00 | 0.50 |"
    assert line_of("usl", [None]) == "| usl | 1 | 0 | - | - | - | - |"
    assert (result(found)["value"], result(found)["holds"]) == (0.5, False)
    assert result([None, Advised(0.9, 1.0)])["holds"]
    assert not result([None])["holds"]


@pytest.mark.parametrize("options", [{"starts": 0}, {"rows": ("no such row",)}, {"seeds": "x"}])
def test_what_cannot_be_measured_is_refused_at_once(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"starts|row|seed"):
        Options(**options)  # type: ignore[arg-type]
