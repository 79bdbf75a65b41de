"""What the start would have cost: known interval by interval while a run goes on, as a replay finds it."""

from __future__ import annotations

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
from rrl.views.same_arrivals import StartBesideRun, at_same_arrivals
from rrl.views.summary import summarise

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
