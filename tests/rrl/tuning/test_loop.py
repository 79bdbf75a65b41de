"""How a run goes: what the agent is taught, what counts, what the log tells."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.interval import MeasuredInterval, Watch
from rrl.journal import read
from rrl.knobs import in_words
from rrl.measurement import NODES_CHANGED, NOTHING_OBSERVED, Measurement
from rrl.records import Record
from rrl.region.q_learning import RegionQLearning
from rrl.tuning.giving_up import (
    MAX_CHANGED_BEFORE_EXPLORING,
    MAX_CHANGED_BY_OTHERS,
    MAX_NODES_CHANGED,
    GivenUp,
)
from rrl.tuning.listener import Listener
from rrl.tuning.pacing import RECENT_CHANGES
from rrl.tuning.settings import TuningSettings
from rrl.tuning.telling import Telling
from tests.support.runs.tuned_runs import SPACE, Changes, Refusing, StopAfter, Told, run, simulated, tuning


def test_the_agent_is_taught_what_the_journal_holds(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    run(t)
    records = [r for r in read(tmp_path)[1] if r.counted]
    assert len(t.agent.taught) == len(records)
    for taught, record in zip(t.agent.taught, records, strict=True):
        np.testing.assert_array_equal(taught.action, SPACE.action(record.number))
        np.testing.assert_equal(taught.cost, record.cost if record.learned else np.nan)


class Stuck(SimulatedServing):
    """Answers nothing in one configuration, and fails a tenth of all requests in another."""

    STUCK, FAILS = 5, 7

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        m = super()._measurement(number, watch)
        if number == self.STUCK:
            return replace(
                m, completions=0, latency=NOTHING_OBSERVED, backlog=0, backlog_growth=0, aborted=""
            )
        return replace(m, failures=m.arrivals // 10) if number == self.FAILS else m


def test_a_configuration_that_answers_nothing_or_fails_is_tried_once_and_not_left(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated(Stuck))
    proposals = iter([Stuck.STUCK, Stuck.STUCK, Stuck.FAILS, Stuck.FAILS] + [t.env.start] * 12)
    t.agent.act = lambda observation: SPACE.action(next(proposals))
    kept = run(t)
    records = read(tmp_path)[1]
    assert [r.number for r in records].count(Stuck.STUCK) == 1
    assert [r.number for r in records].count(Stuck.FAILS) == 1
    assert sum(r.rollback for r in records) == 2
    assert sum(r.decision == "refused" for r in records) == 2
    assert len(t.agent.taught) == sum(r.counted for r in records)
    assert kept.number == t.env.start


def test_a_replay_teaches_the_agent_what_the_run_did(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated(Stuck))
    run(t)
    stop = StopAfter(0)
    resumed = tuning(tmp_path, resume=True, listeners=[stop], stop=stop)
    finished = []
    resumed.agent.finish_training = lambda: finished.append(len(resumed.agent.taught))
    run(resumed)
    assert len(resumed.agent.taught) == len(t.agent.taught)
    for again, first in zip(resumed.agent.taught, t.agent.taught, strict=True):
        np.testing.assert_equal(again.cost, first.cost)
    assert finished == list(range(1, len(t.agent.taught) + 1))  # before the next transition


def test_a_replay_waits_for_training_in_the_background(tmp_path: Path) -> None:
    run(tuning(tmp_path))
    replayed, expected = (RegionQLearning(Task(SPACE), background_training=True) for _ in range(2))
    stop = StopAfter(0)
    t = tuning(tmp_path, resume=True, listeners=[stop], stop=stop)
    t.agent = replayed
    run(t)
    for record in (r for r in read(tmp_path)[1] if r.learned):
        expected.update(record.transition)
        expected.finish_training()
    for agent in (replayed, expected):
        agent.close()
    for level, perception in expected.perceptions.items():
        np.testing.assert_array_equal(replayed.perceptions[level].q, perception.q)


def test_each_transition_begins_where_the_last_one_ended(tmp_path: Path) -> None:
    run(tuning(tmp_path))
    records = read(tmp_path)[1]
    for before, after in pairwise(records):
        np.testing.assert_array_equal(after.transition.observation, before.transition.next_observation)


def test_a_decision_takes_as_long_as_what_agent_and_guard_think_of_the_interval_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    t = tuning(tmp_path)
    now_s = [0.0]
    monkeypatch.setattr("rrl.tuning.loop.time.perf_counter", lambda: now_s[0])

    def takes(seconds: float, call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*args: object) -> object:
            now_s[0] += seconds
            return call(*args)

        return slow

    t.agent.update, t.agent.act = takes(1.0, t.agent.update), takes(2.0, t.agent.act)
    t.guard.judge, t.guard.admit = takes(4.0, t.guard.judge), takes(8.0, t.guard.admit)
    run(t)
    by_agent = [r for r in read(tmp_path)[1] if r.kind == "tune" and r.decision == "agent"]
    assert {round(r.decision_ms) for r in by_agent} == {15_000}


def test_a_rollback_interval_does_not_ask_the_agent(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated())
    run(t)
    records = read(tmp_path)[1]
    rollbacks = sum(r.decision == "rollback" for r in records)
    assert rollbacks > 0
    assert t.agent.asked == 12 - rollbacks
    for before, after in pairwise(records):
        if before.rollback and before.kind == after.kind == "tune":
            assert after.decision == "rollback"
            assert after.number != before.number or not before.learned


class Flaky(SimulatedServing):
    """Loses the target in some intervals, and has no traffic in others."""

    def __init__(self, lost: set[int], silent: set[int]) -> None:
        super().__init__(machine=0, space=SPACE, arrivals=10.0)
        self.np_random = np.random.default_rng(0)
        self.lost, self.silent, self.count = lost, silent, -1

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.count += 1
        if self.count in self.lost:
            return Measurement(5.0, 10, 5, 0, gap="the server restarted")
        if self.count in self.silent:
            return Measurement(5.0, 0, 0, 0)
        return super()._measurement(number, watch)


class Notes(Listener):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


def test_gaps_and_silence_are_journalled_but_neither_learned_from_nor_counted(tmp_path: Path) -> None:
    notes = Notes()
    env = Flaky(lost={0, 6}, silent={1, 8, 9, 10})
    t = tuning(tmp_path, env, listeners=[notes])
    run(t)
    records = read(tmp_path)[1]
    assert len([r for r in records if not r.counted]) == 6
    assert sum(r.kind == "tune" and r.counted for r in records) == 12
    assert not any(r.learned for r in records if not r.counted)
    assert all(x.measurement.arrivals and not x.measurement.gap for x in t.agent.taught)
    assert sum("no requests arrive" in text for text in notes.texts) == 1
    assert sum("the server restarted" in text for text in notes.texts) == 2
    assert sum("again" in text for text in notes.texts) == 3
    quiet = [records[i] for i in (9, 10)]
    assert all(r.decision == "hold" for r in quiet)  # silence moves nothing


@pytest.mark.parametrize("intervals", [0, -3])
def test_settings_that_make_no_run_are_refused(intervals: int) -> None:
    with pytest.raises(ValueError, match="intervals must be at least 1"):
        TuningSettings(intervals=intervals)


@pytest.mark.parametrize("intervals", [1, 8, 14])  # 2 of the start besides
def test_a_change_can_be_undone_within_the_time_that_the_slowest_of_late_took_and_back(
    intervals: int, tmp_path: Path
) -> None:
    class SlowOnce(SimulatedServing):
        asked = 0

        def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
            self.asked += 1
            apply_ms = 40_000.0 if self.asked == 1 else 1_000.0
            return replace(super()._interval(number, watch), apply_ms=apply_ms)

    t = tuning(tmp_path, simulated(SlowOnce), settings=TuningSettings(intervals, baseline=2, validation=0))
    assert t.pacing.undone_within_s == 4 * 5.0
    run(t)
    assert t.pacing.undone_within_s == 4 * 5.0 + 2 * (40.0 if intervals + 2 <= RECENT_CHANGES else 1.0)


def test_the_agent_is_told_what_the_target_refused_and_a_resumed_one_is_too(tmp_path: Path) -> None:
    def told() -> list[int]:
        t = tuning(tmp_path, env := simulated(Refusing), resume=(tmp_path / "journal.jsonl").exists())
        env.refused = 3
        numbers: list[int] = []
        t.agent.refused = numbers.append
        t.agent.act = lambda observation: SPACE.action(3)
        run(t)
        return numbers

    first = told()
    assert first
    assert set(first) == {3}
    assert told()[: len(first)] == first


def test_what_the_server_refuses_is_told_as_refused_and_not_as_an_outage(tmp_path: Path) -> None:
    told, env = Told(), simulated(Refusing)
    t = tuning(tmp_path, env, listeners=[told])
    t.agent.act = lambda observation: SPACE.action(env.refused)
    run(t)
    refused = f"the server refused {in_words(SPACE.configuration(env.refused))}: no memory"
    refusals = [record for record in read(tmp_path)[1] if record.not_taken]
    assert refusals
    assert told.notices.count(refused) == len(refusals)
    assert not [text for text in told.notices if "waiting" in text or "answered again" in text]


def test_a_server_that_refuses_the_same_again_and_again_is_told_of_once(tmp_path: Path) -> None:
    run(tuning(tmp_path))
    record = read(tmp_path)[1][0]
    told, measurement = Told(), replace(record.measurement, gap="no memory")
    refusal = replace(record, not_taken=True, transition=replace(record.transition, measurement=measurement))
    telling = Telling([told], time.time)
    for each in (refusal, refusal, record, refusal):
        telling.measured(each)
    refused = f"the server refused {in_words(record.configuration)}: no memory"
    assert told.notices == [refused, refused]


class FoundChanged(SimulatedServing):
    """The second interval has a gap, and after it another configuration is in force."""

    gap, by_others, asked = "", False, 0
    replaced: dict[str, int] = {"instances": 8, "max_queue_delay_us": 5000}  # noqa: RUF012 (never changed)

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.asked += 1
        measurement = super()._measurement(number, watch)
        return (
            replace(measurement, gap=self.gap, gap_by_others=self.by_others)
            if self.asked == 2
            else measurement
        )

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        return replace(super()._interval(number, watch), changed=self.asked == 3, replaced=self.replaced)


@pytest.mark.parametrize(
    ("gap", "by_others", "who"),
    [
        ("the server restarted", False, "the server restarted, and it came back with another one: puts back"),
        ("another client changed the configuration", True, "another client had changed it: puts back"),
    ],
)
def test_the_log_tells_who_had_changed_what_is_put_back_and_from_what(
    gap: str, by_others: bool, who: str, tmp_path: Path
) -> None:
    changes, env = Changes(), simulated(FoundChanged)
    env.gap, env.by_others = gap, by_others
    run(tuning(tmp_path, env, listeners=[changes]))
    (again,) = [change for change in changes.seen if change.decision == "again"]
    assert again.reason.startswith(who)
    assert again.before == {"instances": 8}


def test_what_others_do_is_told_as_what_it_is(tmp_path: Path) -> None:
    notices: list[str] = []

    class Told(Listener):
        def notice(self, text: str) -> None:
            notices.append(text)

    env = simulated(FoundChanged)
    env.gap, env.by_others = "another client changed the configuration", True
    run(tuning(tmp_path, env, listeners=[Told()]))
    assert notices[0] == "another client changed the configuration; nothing is learned from this interval"
    assert not any("answered again" in text for text in notices)


class Contended(SimulatedServing):
    """Another client changes the target in every interval from one on, for so many intervals."""

    asked, first, last = 0, 1, 10**6
    gap = "another client changed the configuration"

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.asked += 1
        measurement = super()._measurement(number, watch)
        if self.first <= self.asked <= self.last:
            return replace(measurement, gap=self.gap, gap_by_others=True)
        return measurement


@pytest.mark.parametrize(("first", "most"), [(1, MAX_CHANGED_BEFORE_EXPLORING), (8, MAX_CHANGED_BY_OTHERS)])
def test_a_target_that_others_change_in_every_interval_is_left_to_them(
    first: int, most: int, tmp_path: Path
) -> None:
    env = simulated(Contended)
    env.first = first
    put: list[int] = []
    t = tuning(tmp_path, env, put_in_force=put.append)
    with pytest.raises(GivenUp, match=f"in {most} intervals in a row.*another tuner may be at work"):
        run(t)
    assert len(read(tmp_path)[1]) == first - 1 + most
    assert put == [t.guard.to_keep()]


def test_a_run_outlasts_others_that_come_and_go(tmp_path: Path) -> None:
    env = simulated(Contended)
    env.first, env.last = 5, 4 + MAX_CHANGED_BY_OTHERS - 1
    run(tuning(tmp_path, env))
    assert sum(record.measurement.gap_by_others for record in read(tmp_path)[1]) == MAX_CHANGED_BY_OTHERS - 1


def test_a_run_outlasts_nodes_that_come_and_go_and_takes_them_for_no_other_tuner(tmp_path: Path) -> None:
    env = simulated(Contended)
    env.gap, env.last = NODES_CHANGED, MAX_NODES_CHANGED - 1
    run(tuning(tmp_path, env))
    records = read(tmp_path)[1]
    assert sum(record.measurement.gap_by_others for record in records) == MAX_NODES_CHANGED - 1
    assert not any(record.rollback for record in records[: MAX_NODES_CHANGED - 1])


def test_nodes_that_come_and_go_in_every_interval_end_a_run_that_says_so(tmp_path: Path) -> None:
    env = simulated(Contended)
    env.gap = NODES_CHANGED
    with pytest.raises(GivenUp, match=f"nodes of the cluster went or came in {MAX_NODES_CHANGED} intervals"):
        run(tuning(tmp_path, env))


class Silent(SimulatedServing):
    """No requests come in the third interval, and none is answered in the fourth."""

    asked = 0

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.asked += 1
        measurement = super()._measurement(number, watch)
        if self.asked == 3:
            return replace(measurement, arrivals=0, completions=0, latency=NOTHING_OBSERVED, backlog=0)
        if self.asked == 4:
            return replace(measurement, completions=0, latency=NOTHING_OBSERVED)
        return measurement


def test_requests_are_told_to_be_answered_again_once_they_are(tmp_path: Path) -> None:
    told: list[str] = []

    class Told(Listener):
        def notice(self, text: str) -> None:
            told.append(text)

        def measured(self, record: Record) -> None:
            told.append("answered" if record.measurement.completions else "not answered")

    run(tuning(tmp_path, simulated(Silent), listeners=[Told()]))
    assert told[2:7] == [
        "no requests arrive: waiting, nothing is learned meanwhile",
        "not answered",
        "not answered",
        "requests are answered again",
        "answered",
    ]


def test_a_change_that_cannot_be_made_at_the_end_is_not_in_the_log(tmp_path: Path) -> None:
    def put(number: int) -> None:
        raise RuntimeError("the model is not there")

    changes = Changes()
    with pytest.raises(RuntimeError, match="not there"):
        run(tuning(tmp_path, listeners=[changes], put_in_force=put))
    assert not any(change.decision == "leave" for change in changes.seen)


def test_the_log_tells_what_was_refused_and_what_was_put_back(tmp_path: Path) -> None:
    changes = Changes()
    run(tuning(tmp_path, simulated(Refusing), listeners=[changes]))
    again = [change for change in changes.seen if change.decision == "again"]
    assert [change.before for change in again] == [{}]
    assert "another client had changed it" in again[0].reason
    before = changes.seen[0].before
    for change in changes.seen:
        assert change.decision == "again" or change.before == before
        before = change.after
    refused = [
        change for change in changes.seen if change.decision == "undone" and change.reason == "no memory"
    ]
    assert refused
    assert all(change.before == SPACE.configuration(0) for change in refused)
