"""A run that never ends: what it changes at constant load, along a real day, in silence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baselines import make_agent
from envs.simulated import SimulatedServing
from rrl.agent import Agent, Task, Transition
from rrl.belief.belief import Belief
from rrl.command_line.watch_run import BestByLoad
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.interval import Watch
from rrl.journal import Journal, read
from rrl.measurement import Measurement
from rrl.objective import OBJECTIVES, LeastResources, MeanLatency, Objective, make_objective
from rrl.records import NO_END, Record
from rrl.tuning.loop import Tuning
from rrl.tuning.settings import TuningSettings
from rrl.tuning.telling import Reminders
from rrl.tuning.unattended.watching import SILENT_INTERVALS, BestKnown
from serving_adapter.load.arrivals import Arrivals
from serving_adapter.load.trace_files import read_trace
from serving_adapter.load.traces import CountTrace
from tests.support import CHECKOUT
from tests.support.runs.tuned_runs import SPACE, StopAfter, Told, header

DAY_S = 24 * 3600.0
INTERVALS_A_DAY = int(os.environ.get("RRL_INTERVALS_A_DAY", "96"))
"""In place of 17,280, so that a day takes seconds: each stands for a quarter of an hour."""
INTERVAL_S = 5.0
FASTER = DAY_S / (INTERVALS_A_DAY * INTERVAL_S)  # than the clock of a day
START = {"instances": 4, "intra_op_threads": 1}
WIKIPEDIA = CHECKOUT / "../shared/traces/wikipedia_2007_rpm_12d.csv"


def watched(
    folder: Path,
    env: SimulatedServing,
    most: int,
    agent: Agent | None = None,
    objective: Objective | None = None,
    feeds_forward: bool = True,
    **changed: Any,
) -> tuple[list[Record], Told, Tuning]:
    """A watch of at most so many intervals over a simulated server."""
    objective = objective or MeanLatency()
    belief = Belief(SPACE, objective, env.cores)
    guard_settings = GuardSettings(slo_p95_ms=objective.slo_p95_ms, cost_is_latency=objective.unit == "ms")
    guard = Guard(env.start, guard_settings, expectation=belief)
    agent = agent or make_agent("guided", Task(SPACE, objective, env.cores, settles=True), 0)
    (name,) = (name for name in OBJECTIVES if isinstance(objective, type(make_objective(name, 1.0))))
    described = replace(header(env), objective=name, slo_p95_ms=objective.slo_p95_ms)
    log = Journal.create(folder, described, synced=False)
    heard, stop = Told(), StopAfter(most)
    settings: dict[str, Any] = {"intervals": NO_END, "validation": 0, "watches": True}
    tuning = Tuning(
        env,
        agent,
        guard,
        log,
        TuningSettings(**settings | changed),
        [heard, stop],
        stop,
        known_best=BestByLoad(log, None) if feeds_forward else None,
    )
    try:
        tuning.run()
    finally:
        log.close()
    return read(folder)[1], heard, tuning


def server(arrivals: Arrivals | float, objective: Objective | None = None) -> SimulatedServing:
    env = SimulatedServing(
        0,
        SPACE,
        objective,
        arrivals,
        interval_s=INTERVAL_S,
        start=START,
        service_variation=0.3,
    )
    env.np_random = np.random.default_rng(0)
    return env


def turns_back(records: Sequence[Record]) -> int:
    """How often a configuration that had lasted was left, and came back within an hour."""
    runs: list[list[Record]] = []
    for record in records:
        if runs and runs[-1][0].number == record.number:
            runs[-1].append(record)
        else:
            runs.append([record])
    hour = INTERVALS_A_DAY / 24
    return sum(
        before[0].number == after[0].number and 1 < len(between) <= hour and len(before) > 2
        for before, between, after in zip(runs, runs[1:], runs[2:], strict=False)
    )


def changes(records: Sequence[Record]) -> int:
    return sum(before.number != after.number for before, after in pairwise(records))


def test_at_constant_load_it_ends_in_one_configuration(tmp_path: Path) -> None:
    records, _, tuning = watched(tmp_path, server(10.0), INTERVALS_A_DAY)
    third = len(records) // 3
    assert changes(records) <= 2 * len(SPACE)
    assert changes(records[third:]) <= 1
    assert turns_back(records) == 0
    fastest = min(_means_ms(records).values())
    assert _means_ms(records)[records[-1].number] < 1.1 * fastest
    kept = tuning.guard.to_keep()
    assert not tuning.guard.choice.is_better(kept, records[-1].number)


def test_the_shape_of_a_real_day_is_followed_without_turning_back(tmp_path: Path) -> None:
    if not WIKIPEDIA.exists():
        pytest.skip("the trace of Wikipedia is not in this checkout's shared folder")
    trace = read_trace(WIKIPEDIA)
    assert isinstance(trace, CountTrace)
    day = replace(trace, counts=trace.counts[: int(DAY_S / trace.bin_s)])
    day = day.sped_up(FASTER).at_rate(10.0)
    records, _, _ = watched(tmp_path, server(day), INTERVALS_A_DAY - 1)
    assert max(r.measurement.arrival_rate_per_s for r in records) > 1.3 * min(
        r.measurement.arrival_rate_per_s for r in records
    )
    third = len(records) // 3
    assert changes(records[third:]) <= 6
    assert turns_back(records) == 0


class Flapper(Agent):
    """Proposes two configurations by turns, whatever it is taught."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers, self._taught = numbers, 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        return SPACE.action(self._numbers[self._taught % len(self._numbers)])

    def update(self, transition: Transition) -> None:
        self._taught += 1


def test_a_flapping_agent_changes_nothing_that_does_not_pay(tmp_path: Path) -> None:
    alike = [SPACE.number({"instances": n, "intra_op_threads": 2}) for n in (4, 8)]
    records, _, tuning = watched(tmp_path, server(4.0), 40, Flapper(alike), feeds_forward=False)
    assert {r.number for r in records} >= set(alike)  # each was tried
    assert changes(records[10:]) <= 1
    assert tuning.watching is not None
    assert tuning.watching.held_back > 10


def test_an_overloaded_configuration_is_left_at_once(tmp_path: Path) -> None:
    env = server(10.0)
    env.start = SPACE.number({"instances": 1, "intra_op_threads": 1})
    records, _, _ = watched(tmp_path, env, 20)
    assert records[0].number == env.start
    assert all(r.number != env.start for r in records[8:])


def _means_ms(records: Sequence[Record]) -> dict[int, float]:
    seen: dict[int, list[float]] = {}
    for record in records:
        if record.learned:
            seen.setdefault(record.number, []).append(record.measurement.latency.mean_ms)
    return {number: float(np.mean(ms)) for number, ms in seen.items()}


class NightAndDay(SimulatedServing):
    """No requests come in these intervals."""

    silent: range = range(0)
    asked = -1

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.asked += 1
        measurement = super()._measurement(number, watch)
        return Measurement(300.0, 0, 0, 0) if self.asked in self.silent else measurement


def quiet(silent: range, objective: Objective | None = None) -> NightAndDay:
    env = NightAndDay(0, SPACE, objective, 4.0, interval_s=INTERVAL_S, start=START)
    env.np_random = np.random.default_rng(0)
    env.silent = silent
    return env


def test_in_silence_what_is_safe_comes_into_force_and_the_run_goes_on_after_it(tmp_path: Path) -> None:
    begin, end = 12, 12 + 3 * SILENT_INTERVALS
    records, heard, _ = watched(tmp_path, quiet(range(begin, end)), end + 10)
    idle = [r for r in records if r.decision == "idle" and r.silent]
    assert len(idle) == end - begin - SILENT_INTERVALS
    assert len({r.number for r in idle}) == 1
    assert all(r.kind == "wait" and not r.learned for r in idle)
    assert "no requests arrive: waiting, nothing is learned meanwhile" in heard.notices
    assert "no requests arrive: still waiting, for 10 minutes now" in heard.notices
    assert "requests are answered again" in heard.notices
    assert sum(r.learned for r in records[end:]) > 5
    assert idle[0].number in {r.number for r in records[:begin] if r.learned}


def test_where_threads_cost_the_fewest_that_served_are_in_force_in_silence(tmp_path: Path) -> None:
    objective = LeastResources(2000.0)
    records, _, _ = watched(
        tmp_path, quiet(range(20, 60), objective), 50, objective=objective, feeds_forward=False
    )
    idle = [r for r in records if r.decision == "idle"]
    served = {r.number for r in records if r.learned and not r.verdict}
    assert idle
    assert SPACE.threads[idle[0].number] == min(SPACE.threads[list(served)])


@pytest.mark.parametrize("name", ["throughput", "goodput", "capacity"])
def test_where_answers_cost_what_bears_most_is_in_force_in_silence(tmp_path: Path, name: str) -> None:
    objective = make_objective(name, 2000.0)
    env = quiet(range(8, 60), objective)
    agent = Flapper([SPACE.number({"instances": 2, "intra_op_threads": 1}), env.start])
    records, _, tuning = watched(tmp_path, env, 24, agent, objective, feeds_forward=False)
    (idle,) = {r.number for r in records if r.decision == "idle"}
    assert idle == tuning.guard.to_keep()
    assert SPACE.threads[idle] > min(SPACE.threads[number] for number in tuning.guard.choice.fit)


def test_silence_uses_up_intervals_where_it_is_to_be_counted(tmp_path: Path) -> None:
    env = quiet(range(3, 10**6))
    records, _, _ = watched(tmp_path, env, 10**6, intervals=10, counts_silence=True)
    assert sum(r.counted for r in records) == 3
    assert len(records) == 11  # one of the start besides


def test_a_run_that_sees_no_request_at_all_ends_where_silence_is_counted(tmp_path: Path) -> None:
    env = quiet(range(10**6))
    records, _, _ = watched(tmp_path, env, 10**6, intervals=5, counts_silence=True, watches=False)
    assert len(records) == 5


class TableOf:
    """Knows the best of two loads."""

    def __init__(self, low: int, high: int) -> None:
        self._low, self._high = low, high

    def at(self, rate_per_s: float) -> BestKnown:
        return BestKnown(self._high if rate_per_s > 6 else self._low, "so it is written")


def test_what_another_run_knew_comes_into_force_with_the_load(tmp_path: Path) -> None:
    env = server(10.0)
    env.start = SPACE.number({"instances": 2, "intra_op_threads": 1})  # which does not bear it
    best = SPACE.number({"instances": 8, "intra_op_threads": 2})
    log = Journal.create(tmp_path, header(env), synced=False)
    stop = StopAfter(4)
    guard = Guard(env.start, expectation=Belief(SPACE, MeanLatency(), env.cores))
    settings = TuningSettings(NO_END, validation=0, watches=True)
    agent = Flapper([env.start])
    tuning = Tuning(env, agent, guard, log, settings, [stop], stop, known_best=TableOf(0, best))
    tuning.run()
    log.close()
    records = read(tmp_path)[1]
    fed = [r for r in records if r.decision == "table"]
    assert [r.number for r in fed] == [best]
    assert fed[0].reason == "so it is written"
    assert all(r.number == best for r in records[records.index(fed[0]) :])


def test_what_lasts_is_told_again_ever_more_seldom() -> None:
    reminders = Reminders()
    told = [(hour, text) for hour in range(24 * 4) if (text := reminders.due(3600.0 * (hour + 1)))]
    texts = ["60 minutes", "2 hours", "6 hours", "24 hours", "2 days", "3 days", "4 days"]
    assert [text for _, text in told] == texts
