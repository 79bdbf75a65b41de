"""What the start would have cost: known interval by interval while a run goes on, as a replay finds it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.guided.agent import Guided
from rrl.journal import Journal, read
from rrl.objective import make_objective
from rrl.queueing.machine import Machine
from rrl.records import Header
from rrl.space import ConfigurationSpace
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from rrl.views.exploration_cost import cost_of_exploration
from rrl.views.same_arrivals import StartBesideRun, at_same_arrivals
from rrl.views.summary import summarise
from serving_adapter.load.arrivals import Arrivals, Bursts, Poisson
from tests.support.runs.simulated_runs import Sweeper

SPACE = ConfigurationSpace.of(instances=[1, 2, 4], max_batch_size=[1, 8])
START = {"instances": 1, "max_batch_size": 1}
INTERVALS = 12
LIMIT_MS = 400.0


@pytest.fixture
def machine() -> Machine:
    one, instances, batches = np.array([1]), np.array([1, 2, 4]), np.array([1, 8])
    service_s = np.array([[[[20, 40], [25, 50], [60, 90]]]]) / 1e3
    return Machine(one, one, instances, batches, service_s)


def a_run(folder: Path, machine: Machine, objective: str, intervals: int, goes_on: bool = False):
    """Runs over a simulated machine; the journal's parts and what listened."""
    task_objective = make_objective(objective, LIMIT_MS)
    env = SimulatedServing(machine, SPACE, task_objective, arrivals=45.0, interval_s=4.0, start=START)
    env.np_random = np.random.default_rng(3)
    header = Header(
        SPACE, objective, LIMIT_MS, "guided", 0, "simulated", "model", START, START, 4.0, "2026-01-01"
    )
    belief = Belief(SPACE, task_objective, found=START)
    settings = GuardSettings(slo_p95_ms=LIMIT_MS, cost_is_latency=task_objective.unit == "ms")
    guard = Guard(env.start, settings, expectation=belief)
    journal = Journal.open_to_resume(folder, header) if goes_on else Journal.create(folder, header)
    listener = StartBesideRun(header, guard, belief)
    agent = Guided(Task(SPACE, task_objective))
    kept = Tuning(env, agent, guard, journal, TuningSettings(intervals=intervals), [listener]).run()
    journal.close()
    return ToKeep(kept.number, kept.reason), listener


@pytest.mark.parametrize("objective", ["latency", "least-resources"])
def test_a_run_knows_at_its_end_what_a_replay_of_its_journal_tells(tmp_path, machine, objective):
    kept, listener = a_run(tmp_path, machine, objective, INTERVALS)
    header, records = read(tmp_path)
    known, replayed = listener.at_end(), at_same_arrivals(header, records)
    np.testing.assert_equal([tuple(each) for each in known.beside], [tuple(each) for each in replayed.beside])
    of_run = summarise(header, records, kept=kept, same_arrivals=known)
    assert repr(of_run) == repr(summarise(header, records, kept=kept))
    assert np.isfinite([ms for each in known.beside for ms in each.lived_ms]).all()


def test_a_resumed_run_knows_the_intervals_before_it_too(tmp_path, machine):
    a_run(tmp_path, machine, "latency", INTERVALS)
    _, listener = a_run(tmp_path, machine, "latency", 2 * INTERVALS, goes_on=True)
    header, records = read(tmp_path)
    assert len(listener.at_end().beside) == len(records) > 2 * INTERVALS
    replayed = at_same_arrivals(header, records)
    np.testing.assert_equal(
        [tuple(each) for each in listener.at_end().beside], [tuple(each) for each in replayed.beside]
    )


ALIKE = ConfigurationSpace.of(max_batch_size=[1, 2, 4, 8])
INTERVAL_S, BASELINE = 4.0, 2


@dataclass(frozen=True)
class BurstsLater:
    """Calm arrivals in the baseline, and then bursts."""

    calm: Arrivals
    bursts: Arrivals

    @property
    def mean_rate_per_s(self) -> float:
        return self.bursts.mean_rate_per_s

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        calm_s = BASELINE * INTERVAL_S
        times_s = next(self.calm.times_s(rng))
        yield times_s[times_s < calm_s]
        for later_s in self.bursts.times_s(rng):
            yield calm_s + later_s


CALM = Poisson(10.0)
BURSTS = Bursts(30.0, burst_ratio=math.inf, mean_burst_s=0.8, mean_calm_s=3.0)


@pytest.mark.parametrize(
    ("arrivals", "slowdown"),
    [(CALM, (BASELINE, 3.0)), (BurstsLater(CALM, BURSTS), None)],
    ids=["slow", "bursts"],
)
def test_neither_a_slow_machine_nor_a_burst_is_charged_to_what_is_as_good(
    tmp_path: Path, arrivals: Arrivals, slowdown: tuple[int, float] | None
) -> None:
    """A batch takes as long as its requests one by one, so that all configurations are about alike."""
    one, sizes = np.array([1]), np.array([1, 2, 4, 8])
    alike = Machine(one, one, one, sizes, np.array([[[0.01 * sizes]]]))
    start = {"max_batch_size": 1}
    env = SimulatedServing(
        alike, ALIKE, arrivals=arrivals, interval_s=INTERVAL_S, start=start, slowdown=slowdown
    )
    env.np_random = np.random.default_rng(3)
    belief = Belief(ALIKE, env.objective, found=start)
    guard = Guard(env.start, expectation=belief)
    header = Header(
        ALIKE, "latency", None, "sweep", 0, "simulated", "model", start, start, INTERVAL_S, "2026-01-01"
    )
    settings = TuningSettings(intervals=12, baseline=BASELINE, validation=0)
    listener = StartBesideRun(header, guard, belief)
    with closing(Journal.create(tmp_path, header, synced=False)) as journal:
        Tuning(env, Sweeper(ALIKE), guard, journal, settings, [listener]).run()
        records = list(journal.records)
    told = cost_of_exploration(records, listener.at_end().start_ms)
    by_baseline = cost_of_exploration(records, guard.memory.start_latency_ms)
    assert told.intervals == 12
    assert told.search_request_s < 0.1 * by_baseline.search_request_s
