from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from envs.simulated import SimulatedServing
from rrl.agent import Transition
from rrl.change_log import Change
from rrl.guard import Guard, ToLeave
from rrl.journal import Ending, Header, Journal, Record, read, read_ending
from rrl.measurement import NOTHING_OBSERVED, Measurement
from rrl.region_q_learning import RegionQLearning
from rrl.report import summarise
from rrl.restore import RestorePoint, TargetTaken
from rrl.space import ConfigurationSpace
from rrl.tuning import RECENT_CHANGES, Observer, Outcome, Tuning, TuningSettings
from rrl.validation import UNKNOWN, Gain

SPACE = ConfigurationSpace.of(instances=[1, 2, 4, 8], intra_op_threads=[1, 2])
SETTINGS = TuningSettings(intervals=12, baseline=2, validation=2)


class Wanderer:
    """Proposes configurations at random, and remembers what it was taught."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self.taught: list[Transition] = []
        self.asked = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        self.asked += 1
        return self._rng.integers(SPACE.shape)

    def update(self, transition: Transition) -> None:
        self.taught.append(transition)


def simulated(kind: type[SimulatedServing] = SimulatedServing) -> SimulatedServing:
    """Mean latency in ms by configuration: overloaded, overloaded, 6300, 180, 270 (start), 130, 240, 130."""
    env = kind(machine=0, space=SPACE, arrivals=10.0, start={"instances": 4, "intra_op_threads": 1})
    env.np_random = np.random.default_rng(0)
    return env


def header(env: SimulatedServing) -> Header:
    start = SPACE.configuration(env.start)
    return Header(
        SPACE,
        "latency",
        None,
        "wanderer",
        0,
        "simulated",
        "machine",
        start,
        start,
        5.0,
        "2026-01-01T00:00:00",
    )


def tuning(
    folder: Path, env: SimulatedServing | None = None, resume: bool = False, **changes: object
) -> Tuning:
    env = env or simulated()
    journal = Journal.open_to_resume(folder) if resume else Journal.create(folder, header(env))
    values = {"settings": SETTINGS} | changes
    return Tuning(env, Wanderer(), Guard(env.start), journal, **values)


def run(tuning: Tuning) -> Outcome:
    try:
        return tuning.run()
    finally:
        tuning.journal.close()


def kinds(records: list[Record]) -> list[str]:
    return [r.kind for r in records]


def test_a_run_is_baseline_then_tuning_then_validation_in_turns(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    t.guard.turns.are_settled = lambda costs: False
    outcome = run(t)
    records = read(tmp_path)[1]
    assert kinds(records) == ["baseline"] * 2 + ["tune"] * 12 + ["validation"] * 4
    best, start, *again = [r.number for r in records if r.kind == "validation"]
    assert start == t.env.start != best
    assert again == [best, start]
    assert {r.number for r in records if r.kind == "baseline"} == {t.env.start}
    assert outcome == Outcome(best, stopped=False)


@pytest.mark.parametrize(
    ("gain", "turns"),
    [
        (Gain(1.1, 1.2, 1.3), 2),
        (Gain(0.9, 1.2, 1.5), 4),
        (Gain(0.8, 0.9, 1.2), 2),
        (UNKNOWN, 2),
    ],
)
def test_turns_that_leave_the_question_open_are_followed_by_as_many_again(
    tmp_path: Path, gain: Gain, turns: int
) -> None:
    t = tuning(tmp_path)
    t.guard.turns.are_settled = lambda costs: False
    t.guard.turns.gain = lambda costs: gain
    run(t)
    assert kinds(read(tmp_path)[1]).count("validation") == 2 * turns
    assert summarise(*read(tmp_path)).validated


def test_no_turns_follow_that_time_or_limits_forbid(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    t.guard.turns.gain = lambda costs: Gain(0.9, 1.2, 1.5)
    assert t._needs_more_turns({})
    t._end_s = t.clock() + 1.9 * t.journal.header.interval_s
    assert not t._needs_more_turns({})
    t._end_s, t.pause = math.inf, lambda changes=1: "only 1 change is left" if changes > 1 else ""
    assert not t._needs_more_turns({})
    t.journal.close()


class FarWorseAtFirst(SimulatedServing):
    """Takes ten times as long in the configuration found."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.shares: list[float] = []
        self.asked: list[bool] = []  # whether the interval may end once it has told enough

    def _interval(self, number: int) -> Measurement:
        self.shares.append(self.measured_share)
        self.asked.append(self.enough is not None)
        m = super()._interval(number)
        slower = m.latency._replace(mean_ms=10 * m.latency.mean_ms)
        return replace(m, latency=slower) if number == self.start else m


def test_a_start_that_must_excuse_the_best_is_measured_for_a_whole_turn(tmp_path: Path) -> None:
    """Where the best broke the limit in its turn, whether the start breaks it, too, decides."""
    t = tuning(tmp_path, simulated(FarWorseAtFirst))
    t.guard.fits = lambda number: False
    run(t)
    assert set(t.env.shares) == {1.0}
    assert not any(t.env.asked)


def test_a_start_that_one_turn_shows_to_be_worse_is_put_in_force_once_more_only(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated(FarWorseAtFirst))
    outcome = run(t)
    header, records = read(tmp_path)
    in_turns = [r.number for r in records if r.kind == "validation"]
    assert in_turns == [outcome.left, t.env.start, outcome.left]
    assert t.env.shares[-2] < 1
    assert set(t.env.shares[:-2] + t.env.shares[-1:]) == {1.0}
    assert t.env.asked[-2]
    assert not any(t.env.asked[:-2] + t.env.asked[-1:])
    summary = summarise(header, records)
    assert summary.validated
    assert (summary.best.intervals, summary.start.intervals) == (2, 1)
    first, start, last = (r.cost for r in records if r.kind == "validation")
    assert summary.gain == pytest.approx(start / math.sqrt(first * last))


def test_turns_that_were_broken_off_validate_nothing(tmp_path: Path) -> None:
    run(tuning(tmp_path, simulated(FarWorseAtFirst)))
    header, records = read(tmp_path)
    assert summarise(header, records).validated
    assert not summarise(header, records[:-1]).validated


class OverloadedAtFirst(SimulatedServing):
    """A queue grows in the configuration found."""

    def _interval(self, number: int) -> Measurement:
        m = super()._interval(number)
        return replace(m, backlog=m.arrivals, backlog_growth=m.arrivals) if number == self.start else m


def test_a_start_that_cannot_bear_the_load_is_measured_once(tmp_path: Path) -> None:
    stop = StopAfter(4)
    run(tuning(tmp_path, simulated(OverloadedAtFirst), observers=[stop], stop=stop))
    run(tuning(tmp_path, simulated(OverloadedAtFirst), resume=True))
    assert kinds(read(tmp_path)[1])[:7] == ["baseline"] + ["tune"] * 3 + ["baseline"] + ["tune"] * 2


def test_the_configuration_left_is_in_force_at_the_end(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    in_force: list[int] = []
    interval = t.env._interval
    t.env._interval = lambda number: in_force.append(number) or interval(number)
    outcome = run(t)
    assert in_force[-1] == outcome.left


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

    def _interval(self, number: int) -> Measurement:
        m = super()._interval(number)
        if number == self.STUCK:
            return replace(
                m, completions=0, latency=NOTHING_OBSERVED, backlog=0, backlog_growth=0, aborted=""
            )
        return replace(m, failures=m.arrivals // 10) if number == self.FAILS else m


def test_a_configuration_that_answers_nothing_or_fails_is_tried_once_and_not_left(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated(Stuck))
    proposals = iter([Stuck.STUCK, Stuck.STUCK, Stuck.FAILS, Stuck.FAILS] + [t.env.start] * 12)
    t.agent.act = lambda observation: SPACE.action(next(proposals))
    outcome = run(t)
    records = read(tmp_path)[1]
    assert [r.number for r in records].count(Stuck.STUCK) == 1
    assert [r.number for r in records].count(Stuck.FAILS) == 1
    assert sum(r.rollback for r in records) == 2
    assert sum(r.decision == "refused" for r in records) == 2
    assert len(t.agent.taught) == sum(r.counted for r in records)
    assert outcome.left == t.env.start


def test_a_replay_teaches_the_agent_what_the_run_did(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated(Stuck))
    run(t)
    stop = StopAfter(0)
    resumed = tuning(tmp_path, resume=True, observers=[stop], stop=stop)
    finished = []
    resumed.agent.finish_training = lambda: finished.append(len(resumed.agent.taught))
    run(resumed)
    assert len(resumed.agent.taught) == len(t.agent.taught)
    for again, first in zip(resumed.agent.taught, t.agent.taught, strict=True):
        np.testing.assert_equal(again.cost, first.cost)
    assert finished == list(range(1, len(t.agent.taught) + 1))  # before the next transition


def test_a_replay_waits_for_training_in_the_background(tmp_path: Path) -> None:
    run(tuning(tmp_path))
    replayed, expected = (RegionQLearning(SPACE, background_training=True) for _ in range(2))
    stop = StopAfter(0)
    t = tuning(tmp_path, resume=True, observers=[stop], stop=stop)
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

    def _interval(self, number: int) -> Measurement:
        self.count += 1
        if self.count in self.lost:
            return Measurement(5.0, 10, 5, 0, gap="the server restarted")
        if self.count in self.silent:
            return Measurement(5.0, 0, 0, 0)
        return super()._interval(number)


class Notes(Observer):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


def test_gaps_and_silence_are_journalled_but_neither_learned_from_nor_counted(tmp_path: Path) -> None:
    notes = Notes()
    env = Flaky(lost={0, 6}, silent={1, 8, 9, 10})
    t = tuning(tmp_path, env, observers=[notes])
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
    assert all(r.decision == "rollback" for r in quiet)  # the best known is held meanwhile


class StopAfter(Observer):
    def __init__(self, intervals: int) -> None:
        self.left = intervals

    def measured(self, record: Record) -> None:
        self.left -= 1

    def __call__(self) -> bool:
        return self.left <= 0


@pytest.mark.parametrize("after", [1, 3, 9, 15])
def test_stopped_at_any_point_it_leaves_the_start_or_better(tmp_path: Path, after: int) -> None:
    stop = StopAfter(after)
    t = tuning(tmp_path, observers=[stop], stop=stop)
    outcome = run(t)
    records = read(tmp_path)[1]
    assert outcome.stopped
    assert len(records) == after
    assert t._in_force == outcome.left
    mean = {
        n: np.mean([r.cost for r in records if r.number == n and r.learned])
        for n in {r.number for r in records}
    }
    assert mean[outcome.left] <= mean[t.env.start]


def test_an_agent_that_fails_leaves_the_start_or_better_in_force(tmp_path: Path) -> None:
    t = tuning(tmp_path)

    def broken(observation: np.ndarray) -> np.ndarray:
        if t.finished("tune") == 4:
            raise ZeroDivisionError("the agent's own fault")
        return SPACE.action(t.finished("tune"))

    t.agent.act = broken
    with pytest.raises(ZeroDivisionError):
        run(t)
    assert t._in_force == t.guard.to_leave()


def test_a_resumed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    stop = StopAfter(8)
    run(tuning(tmp_path, observers=[stop], stop=stop))
    t = tuning(tmp_path, resume=True)
    outcome = run(t)
    records = read(tmp_path)[1]
    assert not outcome.stopped
    tuned = ["baseline"] * 2 + ["tune"] * 6 + ["baseline"] + ["tune"] * 6
    assert kinds(records)[: len(tuned) + 4] == tuned + ["validation"] * 4
    assert len(t.agent.taught) == sum(r.counted for r in records)


def test_replay_gives_the_guard_the_state_it_had(tmp_path: Path) -> None:
    t = tuning(tmp_path, simulated())
    run(t)
    replayed = Guard(t.env.start)
    for record in read(tmp_path)[1]:
        replayed.replay(record)
    assert replayed == t.guard


# kill -9

KILLED = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from test_tuning import *

class Kill(Observer):
    count = 0
    def decided(self, kind, number, decision, reason):
        self.count += 1
        if self.count == {at}:
            os.kill(os.getpid(), signal.SIGKILL)

env = simulated()
point = RestorePoint("localhost:8500", "minilm")
point.claim(SPACE.configuration(env.start))
class Safe(Observer):
    def measured(self, record):
        point.safe(SPACE.configuration(t.guard.to_leave()))
t = tuning(Path({folder!r}), env, observers=[Safe(), Kill()])
run(t)
"""


def test_kill_9_loses_at_most_the_interval_in_flight_and_the_next_start_restores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    code = KILLED.format(tests=str(Path(__file__).parent), at=9, folder=str(tmp_path / "run"))
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ))
    assert killed.returncode == -signal.SIGKILL
    assert len(read(tmp_path / "run")[1]) == 8
    env = simulated()
    point = RestorePoint("localhost:8500", "minilm")
    left = point.left_behind()
    assert left is not None
    assert left.found == SPACE.configuration(env.start)
    assert set(left.best) == set(SPACE.names)
    assert not run(tuning(tmp_path / "run", env, resume=True)).stopped
    assert sum(r.kind == "tune" for r in read(tmp_path / "run")[1]) == 12


# the claim on a target


@pytest.fixture
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "rrl-tune"


def test_a_claim_is_a_file_that_a_clean_end_removes(state_home: Path) -> None:
    point = RestorePoint("localhost:8500", "minilm")
    assert point.left_behind() is None
    point.claim({"instances": 1})
    assert len(list(state_home.iterdir())) == 1
    point.safe({"instances": 2})
    assert len(list(state_home.iterdir())) == 1
    point.release()
    assert list(state_home.iterdir()) == []


def test_two_runs_cannot_tune_one_model_of_one_target(state_home: Path) -> None:
    RestorePoint("localhost:8500", "minilm").claim({"instances": 1})
    with pytest.raises(TargetTaken, match=rf"another rrl-tune \(pid {os.getpid()}\) tunes"):
        RestorePoint("localhost:8500", "minilm").claim({"instances": 4})
    RestorePoint("localhost:8500", "resnet").claim({"instances": 1})
    RestorePoint("localhost:8501", "minilm").claim({"instances": 1})
    assert len(list(state_home.iterdir())) == 3


def test_a_file_that_cannot_be_read_is_not_overwritten(state_home: Path) -> None:
    point = RestorePoint("localhost:8500", "minilm")
    state_home.mkdir()
    point.path.write_text("{")
    with pytest.raises(ValueError, match="by hand, then remove this file"):
        point.claim({"instances": 1})


@pytest.mark.parametrize("intervals", [0, -3])
def test_settings_that_make_no_run_are_refused(intervals: int) -> None:
    with pytest.raises(ValueError, match="at least one tuning"):
        TuningSettings(intervals=intervals)


def test_a_better_one_than_an_agent_recommends_is_not_left_unvalidated(tmp_path: Path) -> None:
    t = tuning(tmp_path)
    t.agent.recommended = lambda: t.env.start
    t.guard.trusts = lambda number: True
    outcome = run(t)
    assert outcome.left != t.env.start
    assert {r.number for r in read(tmp_path)[1] if r.kind == "validation"} == {outcome.left, t.env.start}


@pytest.mark.parametrize("worse", [False, True])
def test_a_resumed_run_that_is_stopped_leaves_what_it_found_unless_that_is_worse(
    tmp_path: Path, worse: bool
) -> None:
    """The run before it had shown that to be better, and was not asked again."""
    run(tuning(tmp_path))
    left_before = next(n for n in range(len(SPACE)) if n != simulated().start)
    stop = StopAfter(1)
    t = tuning(
        tmp_path,
        resume=True,
        settings=replace(SETTINGS, intervals=40),
        observers=[stop],
        stop=stop,
        found=SPACE.configuration(left_before),
    )
    t.guard.leaving = lambda validation=None: ToLeave(t.guard.start, "nothing is known to be better")
    t.guard.is_worse = lambda number: worse
    outcome = run(t)
    assert outcome.stopped
    assert outcome.left == (t.guard.start if worse else left_before)


def test_where_what_is_to_be_left_is_refused_what_was_found_comes_back(tmp_path: Path) -> None:
    changes = Changes()
    in_force: list[int] = []
    t = tuning(tmp_path, observers=[changes])

    def put_in_force(number: int) -> None:
        if number != t.env.start:
            raise RuntimeError("no memory for another process")
        in_force.append(number)

    t.put_in_force = put_in_force
    with pytest.raises(RuntimeError, match="no memory"):
        run(t)
    assert in_force == [t.env.start]
    assert changes.seen[-1].after == SPACE.configuration(t.env.start)
    assert changes.seen[-1].reason == "restored what was found: no memory for another process"
    ending = read_ending(tmp_path)
    assert ending.left == SPACE.configuration(t.env.start)
    assert ending.reason == (
        "what was to be left could not be put in force (no memory for another process), "
        "so what was found was put back"
    )


def test_where_nothing_can_be_put_in_force_the_journal_tells_of_no_end(tmp_path: Path) -> None:
    def put_in_force(number: int) -> None:
        raise RuntimeError("the target is away")

    with pytest.raises(RuntimeError, match="away"):
        run(tuning(tmp_path, put_in_force=put_in_force))
    assert read_ending(tmp_path) is None


@pytest.mark.parametrize("stops", [False, True])
def test_the_journal_ends_with_what_was_left_and_why(tmp_path: Path, stops: bool) -> None:
    stop = StopAfter(4) if stops else StopAfter(10**6)
    outcome = run(tuning(tmp_path, stop=stop, observers=[stop]))
    assert outcome.stopped == stops
    assert read_ending(tmp_path) == Ending(SPACE.configuration(outcome.left), outcome.reason)


def test_what_cannot_be_told_is_put_back_all_the_same(tmp_path: Path) -> None:
    """A full disk, or a terminal that is gone."""

    class DiskFull(Observer):
        def measured(self, record: Record) -> None:
            if record.kind == "tune":
                raise OSError("no space left on device")

        def changed(self, change: Change) -> None:
            if change.decision == "leave":
                raise OSError("no space left on device")

    in_force: list[int] = []
    t = tuning(tmp_path, observers=[DiskFull()], put_in_force=in_force.append)
    with pytest.raises(OSError, match="no space left"):
        run(t)
    assert in_force == [t.guard.to_leave()]
    assert read_ending(tmp_path).left == SPACE.configuration(in_force[0])


def test_a_resumed_run_that_found_what_its_grid_does_not_hold_says_what_it_restores(tmp_path: Path) -> None:
    run(tuning(tmp_path, stop=(stop := StopAfter(4)), observers=[stop]))
    changes, stop = Changes(), StopAfter(2)
    found = {"instances": 3, "intra_op_threads": 1}
    t = tuning(tmp_path, resume=True, observers=[changes, stop], stop=stop, found=found)
    t.agent.act = lambda observation: SPACE.action(5)
    t.guard.leaving = lambda validation=None: ToLeave(t.guard.start, "nothing is known to be better")
    assert run(t).left == t.env.start
    assert changes.seen[-1].reason == "restored the start of the run resumed: interrupted"


@pytest.mark.parametrize("intervals", [1, 8, 14])  # 2 of the start besides
def test_a_change_can_be_undone_within_the_time_that_the_slowest_of_late_took_and_back(
    intervals: int, tmp_path: Path
) -> None:
    class SlowOnce(SimulatedServing):
        asked = 0

        def _details(self) -> dict[str, object]:
            self.asked += 1
            return {"apply_ms": 40_000.0 if self.asked == 1 else 1_000.0}

    t = tuning(tmp_path, simulated(SlowOnce), settings=TuningSettings(intervals, baseline=2, validation=0))
    assert t._undone_within_s == 4 * 5.0
    run(t)
    assert t._undone_within_s == 4 * 5.0 + 2 * (40.0 if intervals + 2 <= RECENT_CHANGES else 1.0)


class Changes(Observer):
    def __init__(self) -> None:
        self.seen: list[Change] = []

    def changed(self, change: Change) -> None:
        self.seen.append(change)


class Refusing(SimulatedServing):
    """Keeps what it has where one configuration is asked for; somebody else changes it once."""

    refused, asked, number = 0, 0, -1

    def _interval(self, number: int) -> Measurement:
        self.asked, self.number = self.asked + 1, number
        return replace(super()._interval(number), gap="no memory" if number == self.refused else "")

    def _details(self) -> dict[str, object]:
        refuses = self.number == self.refused
        return {"refused": refuses, "changed": not refuses and self.asked == 2}


@pytest.mark.parametrize(("what", "turns"), [("the best known", 1), ("the start", 2)])
def test_what_is_refused_in_the_validation_ends_it(what: str, turns: int, tmp_path: Path) -> None:
    """As requests hold several items by then, say; the run must not ask for it for ever."""
    t = tuning(tmp_path, simulated(Refusing))
    refused = 5 if what == "the best known" else t.env.start
    t.env.refused = -1
    t._best = lambda: setattr(t.env, "refused", refused) or 5
    outcome = run(t)
    assert outcome.left == t.env.start
    assert outcome.reason == f"{what} cannot be measured again: no memory"
    assert kinds(read(tmp_path)[1]).count("validation") == turns


class Dying(SimulatedServing):
    """Is lost whenever one configuration is asked for, and comes back."""

    deadly = -1

    def _interval(self, number: int) -> Measurement:
        gap = "the target is lost (connection refused)" if number == self.deadly else ""
        return replace(super()._interval(number), gap=gap)


@pytest.mark.parametrize(("what", "turns"), [("the best known", 2), ("the start", 3)])
def test_what_brings_the_target_down_twice_in_the_validation_ends_it(
    what: str, turns: int, tmp_path: Path
) -> None:
    """A run without an end would bring it down for ever."""
    t = tuning(tmp_path, simulated(Dying))
    deadly = 5 if what == "the best known" else t.env.start
    t._best = lambda: setattr(t.env, "deadly", deadly) or 5
    outcome = run(t)
    assert outcome.left == t.env.start
    assert outcome.reason == f"{what} cannot be measured again: the target is lost (connection refused)"
    assert kinds(read(tmp_path)[1]).count("validation") == turns


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


class FoundChanged(SimulatedServing):
    """The second interval has a gap, and after it another configuration is in force."""

    gap, asked = "", 0

    def _interval(self, number: int) -> Measurement:
        self.asked += 1
        return replace(super()._interval(number), gap=self.gap if self.asked == 2 else "")

    def _details(self) -> dict[str, object]:
        return {"changed": self.asked == 3}


@pytest.mark.parametrize(
    ("gap", "who"),
    [
        ("the server restarted", "something (the server restarted) had changed it"),
        ("another client changed the configuration within the interval", "another client had changed it"),
    ],
)
def test_the_log_tells_who_had_changed_what_is_put_back(gap: str, who: str, tmp_path: Path) -> None:
    changes, env = Changes(), simulated(FoundChanged)
    env.gap = gap
    run(tuning(tmp_path, env, observers=[changes]))
    (again,) = [change for change in changes.seen if change.decision == "again"]
    assert again.reason.startswith(who)


def test_the_log_tells_what_was_refused_and_what_was_put_back(tmp_path: Path) -> None:
    changes = Changes()
    run(tuning(tmp_path, simulated(Refusing), observers=[changes]))
    again = [change for change in changes.seen if change.decision == "again"]
    assert [change.before for change in again] == [{}]
    assert "another client had changed it" in again[0].reason
    before = changes.seen[0].before
    for change in changes.seen:
        assert change.decision == "again" or change.before == before
        before = change.after
    refused = [
        change for change in changes.seen if change.decision == "refused" and change.reason == "no memory"
    ]
    assert refused
    assert all(change.before == SPACE.configuration(0) for change in refused)
