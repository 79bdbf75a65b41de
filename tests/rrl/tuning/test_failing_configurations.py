"""What the default agent and the guard do where requests fail, over a simulated server."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.guided.agent import Guided
from rrl.interval import Watch
from rrl.journal import Journal
from rrl.measurement import NOTHING_OBSERVED, Measurement
from rrl.queueing.machine import Machine
from rrl.records import Header, Record
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.giving_up import MAX_ALL_FAILED, GivenUp
from rrl.tuning.listener import Change, Listener
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings

SPACE = ConfigurationSpace.of(instances=[1, 2], max_batch_size=[1, 2, 4, 8, 16])
ONE = np.array([1])
SHARE = 0.4

FailureShare = Callable[[Configuration], float]


class Failing(SimulatedServing):
    """Fails a share of the requests, by the configuration."""

    share: FailureShare
    asked = 0  # intervals

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.asked += 1
        m = super()._measurement(number, watch)
        failures = round(self.share(self.space.configuration(number)) * m.completions)
        if failures == m.completions:
            times = replace(m, latency=NOTHING_OBSERVED, queue=NOTHING_OBSERVED, service=NOTHING_OBSERVED)
            return replace(times, completions=0, failures=failures, telemetry=(), mean_batch_size=math.nan)
        return replace(m, completions=m.completions - failures, failures=failures)


def limited_to(rows: int) -> FailureShare:
    return lambda configuration: SHARE * (configuration["max_batch_size"] > rows)


def opened(folder: Path, kind: type[Any], start_batch: int) -> tuple[Any, Guard, Journal]:
    times_s = np.array([[[[20, 22, 26, 34, 50], [24, 27, 32, 42, 62]]]]) / 1e3
    machine = Machine(ONE, ONE, np.array([1, 2]), np.array([1, 2, 4, 8, 16]), times_s)
    start = {"instances": 1, "max_batch_size": start_batch}
    env = kind(machine, SPACE, arrivals=40.0, interval_s=4.0, start=start, cores=2)
    env.np_random = np.random.default_rng(0)
    guard = Guard(env.start, expectation=Belief(SPACE, env.objective, cores=2))
    described = (SPACE, "latency", None, "guided", 0, "simulated", "machine", start, start, 4.0, "2026-01-01")
    return env, guard, Journal.create(folder, Header(*described))


def tuned(folder: Path, share: FailureShare, start_batch: int, intervals: int) -> tuple[Tuning, list[Record]]:
    env, guard, journal = opened(folder, Failing, start_batch)
    env.share = share
    agent = Guided(Task(SPACE, env.objective, cores=2))
    with closing(journal):
        run = Tuning(env, agent, guard, journal, TuningSettings(intervals=intervals))
        run.run()
    return run, journal.records


class Outage(Failing):
    """Fails all requests in some intervals, whatever is in force; or is silent in them."""

    first, last = 1, 10**6
    silent = False

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.share = lambda _: float(self.first <= self.asked <= self.last)
        m = super()._measurement(number, watch)
        nothing = replace(m, arrivals=0, failures=0, backlog=0, backlog_growth=0)
        return nothing if self.silent and m.failures else m


@dataclass
class Heard(Listener):
    """What the run says, under a clock by which each interval takes 4 s."""

    notices: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    intervals: int = 0

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def changed(self, change: Change) -> None:
        self.changes.append(change)

    def measured(self, record: Record) -> None:
        self.intervals += 1

    def clock(self) -> float:
        return 1e9 + 4.0 * self.intervals


def in_outage(folder: Path, heard: Heard, duration_s: float = math.inf, **how: Any) -> tuple[Tuning, Journal]:
    env, guard, journal = opened(folder, Outage, start_batch=1)
    for name, value in how.items():
        setattr(env, name, value)
    settings = TuningSettings(intervals=30, duration_s=duration_s)
    agent = Guided(Task(SPACE, env.objective, cores=2))
    clock = heard.clock
    run = Tuning(env, agent, guard, journal, settings, [heard], clock=clock, monotonic=clock)
    return run, journal


def failing(records: list[Record]) -> list[Record]:
    return [record for record in records if record.failures]


def test_what_fails_is_hardly_tried_again_and_no_proposal_is_wasted_on_it(tmp_path: Path) -> None:
    run, records = tuned(tmp_path, limited_to(4), start_batch=4, intervals=80)
    assert len(failing(records)) <= 3
    assert not any(record.decision == "refused" for record in records)
    assert SPACE.configuration(run.in_force.number or 0)["max_batch_size"] <= 4


def test_where_all_larger_batches_fail_a_few_requests_batches_of_one_are_found(tmp_path: Path) -> None:
    """After three sizes that fail alike, clients may be the reason as well as memory."""

    def above_one(configuration: Configuration) -> float:
        return 0.08 * (configuration["max_batch_size"] > 1)

    run, records = tuned(tmp_path, above_one, start_batch=8, intervals=20)
    assert SPACE.configuration(run.in_force.number or 0)["max_batch_size"] == 1
    assert len(failing(records)) <= 4


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


def test_a_target_that_fails_all_from_some_moment_on_is_given_up_and_nothing_is_judged_by_it(
    tmp_path: Path,
) -> None:
    heard = Heard()
    run, journal = in_outage(tmp_path, heard, first=10)
    with closing(journal), pytest.raises(GivenUp, match=f"all requests failed in {MAX_ALL_FAILED} intervals"):
        run.run()
    served = {record.number for record in journal.records if record.measurement.completions}
    assert not served & run.guard.fitness.unfit(run.guard.memory.near_present_load())
    assert not served & run.guard.refuses
    assert run.in_force.number == run.guard.to_keep() != run.guard.start  # what was proven before
    (notice,) = (text for text in heard.notices if "waiting" in text)
    assert notice.endswith("waiting, nothing is learned meanwhile")
    assert any("all requests failed in" in text for text in (heard.notices[-1], str(heard.changes[-1])))
    charged = [r for r in journal.records if r.counted and not r.measurement.completions]
    assert len(charged) <= 1  # under what had never served


def test_a_target_that_fails_all_before_anything_was_tried_is_left_as_found(tmp_path: Path) -> None:
    run, journal = in_outage(tmp_path, Heard(), first=2)
    with closing(journal), pytest.raises(GivenUp):
        run.run()
    assert run.in_force.number == run.guard.start


def test_a_run_goes_on_after_an_outage_as_before_it(tmp_path: Path) -> None:
    heard = Heard()
    run, journal = in_outage(tmp_path, heard, first=10, last=14)
    with closing(journal):
        run.run()
        again, empty = in_outage(tmp_path / "again", Heard())
        empty.close()
        for record in journal.records:
            again.guard.replay(record)
    assert "requests are answered again" in heard.notices
    assert len(failing(journal.records)) == 5
    for guard in (run.guard, again.guard):
        served = {record.number for record in journal.records if record.measurement.completions}
        assert not served & guard.fitness.unfit(guard.memory.near_present_load())


def test_traffic_that_ends_for_good_is_told_once_and_waited_for_until_the_time_is_up(tmp_path: Path) -> None:
    heard = Heard()
    run, journal = in_outage(tmp_path, heard, duration_s=200.0, first=10, silent=True)
    with closing(journal):
        kept = run.run()
    assert heard.clock() <= 1e9 + 200.0 + 4.0
    assert [text for text in heard.notices if "waiting" in text] == [
        "no requests arrive: waiting, nothing is learned meanwhile"
    ]
    assert kept.number == run.in_force.number == run.guard.to_keep() != run.guard.start
    silent = [record for record in journal.records if not record.measurement.arrivals]
    assert len(silent) > 30
    assert len({record.number for record in silent}) == 1
