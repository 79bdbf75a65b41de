"""What the default agent and the guard do where requests fail, over a simulated server."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.guided.agent import Guided
from rrl.interval import Watch
from rrl.journal import Header, Journal, Record
from rrl.measurement import NOTHING_OBSERVED, Measurement
from rrl.queueing.machine import Machine
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings

SPACE = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 2, 4, 8, 16])
ONE = np.array([1])
SHARE = 0.4

FailureShare = Callable[[Configuration], float]


class Failing(SimulatedServing):
    """Fails a share of the requests, by the configuration."""

    share: FailureShare

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        m = super()._measurement(number, watch)
        failures = round(self.share(self.space.configuration(number)) * m.completions)
        if failures == m.completions:
            times = replace(m, latency=NOTHING_OBSERVED, queue=NOTHING_OBSERVED, service=NOTHING_OBSERVED)
            return replace(times, completions=0, failures=failures, telemetry=(), mean_batch_size=math.nan)
        return replace(m, completions=m.completions - failures, failures=failures)


def limited_to(rows: int) -> FailureShare:
    return lambda configuration: SHARE * (configuration["max_batch_size"] > rows)


def tuned(folder: Path, share: FailureShare, start_batch: int, intervals: int) -> tuple[Tuning, list[Record]]:
    times_s = np.array([[[[20, 22, 26, 34, 50], [24, 27, 32, 42, 62]]]]) / 1e3
    machine = Machine(ONE, ONE, np.array([1, 2]), np.array([1, 2, 4, 8, 16]), times_s)
    start = {"instances": 1, "max_batch_size": start_batch}
    env = Failing(machine, SPACE, arrivals=40.0, interval_s=4.0, start=start, cores=2)
    env.share = share
    env.np_random = np.random.default_rng(0)
    agent = Guided(Task(SPACE, env.objective, cores=2))
    guard = Guard(env.start, expectation=Belief(SPACE, env.objective, cores=2))
    described = (SPACE, "latency", None, "guided", 0, "simulated", "machine", start, start, 4.0, "2026-01-01")
    with closing(Journal.create(folder, Header(*described))) as journal:
        run = Tuning(env, agent, guard, journal, TuningSettings(intervals=intervals))
        run.run()
    return run, journal.records


def failing(records: list[Record]) -> list[Record]:
    return [record for record in records if record.failures]


def test_what_fails_is_hardly_tried_again_and_no_proposal_is_wasted_on_it(tmp_path: Path) -> None:
    run, records = tuned(tmp_path, limited_to(4), start_batch=4, intervals=80)
    assert len(failing(records)) <= 3
    assert not any(record.decision == "refused" for record in records)
    assert SPACE.configuration(run.in_force.number or 0)["max_batch_size"] <= 4


@pytest.mark.parametrize("share", [SHARE, 1.0])
def test_a_start_that_fails_is_left_at_once_and_for_good(tmp_path: Path, share: float) -> None:
    def above_two(configuration: Configuration) -> float:
        return share * (configuration["max_batch_size"] > 2)

    run, records = tuned(tmp_path, above_two, start_batch=4, intervals=20)
    tried = [record.number for record in records if record.kind == "tune"]
    assert run.guard.start not in tried[:1]
    assert SPACE.configuration(run.in_force.number or 0)["max_batch_size"] <= 2
    assert not failing(records[-10:])


def test_what_fails_everywhere_alike_is_nobodys_fault(tmp_path: Path) -> None:
    _, records = tuned(tmp_path, lambda _: 0.05, start_batch=1, intervals=30)
    assert not any(record.rollback for record in records if "failed" in record.verdict)
    assert len({record.number for record in records}) <= 6
