"""Runs whose changes are limited, over a simulated server whose clock only its intervals move."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from envs.simulated import SimulatedServing
from rrl.agent import Agent
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.interval import MeasuredInterval, Watch
from rrl.journal import Journal, read
from rrl.measurement import LatencySummary, Measurement
from rrl.records import NO_END, Record
from rrl.tuning.change_limits import HOUR_S, ChangeLimits, ChangeWindow
from rrl.tuning.change_log import ChangeLog, times_since
from rrl.tuning.pacing import MAX_INTERVAL_LENGTHS
from rrl.tuning.settings import TuningSettings
from rrl.tuning.unattended.rotation import RotationSettings
from rrl.views.exploration_cost import cost_of_exploration
from rrl.views.summary import whole_turns
from rrl.views.terminal import make_view
from tests.support.runs.tuned_runs import SPACE, LooseTuning, StopAfter, Told, Wanderer, header, run

INTERVAL_S = 300.0
SETTINGS = TuningSettings(intervals=8, baseline=2, validation=2)
NOON_S = datetime(2026, 11, 23, 12).timestamp()  # a Monday


MEANS_MS = (500.0, 400.0, 250.0, 150.0, 100.0, 60.0, 90.0, 70.0)  # of each configuration
START, SLOW, BAD, BEST = 4, 3, 1, 5  # slow is worse than the start, bad so much that it is rolled back


class Timed(SimulatedServing):
    """Each interval takes its time on the clock, has a latency of a few per cent about its configuration's,
    and is quiet where `silent` says so of the clock's time."""

    takes_s = INTERVAL_S

    def __init__(
        self, began_s: float = NOON_S, silent: Callable[[float], bool] = lambda now_s: False
    ) -> None:
        super().__init__(machine=0, space=SPACE, arrivals=40.0, start=SPACE.configuration(START))
        self.rng = np.random.default_rng(0)
        self.now_s, self.silent = began_s, silent
        self.set_at_s, self.set_by_s = math.inf, 0.0  # when somebody sets the clock, and by how much

    def mean_ms(self, number: int) -> float:
        return MEANS_MS[number] * float(np.exp(self.rng.normal(0, 0.03)))

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        self.now_s += self.takes_s
        if self.silent(self.now_s):
            return Measurement(4.0, 0, 0, 0)
        ms = self.mean_ms(number)
        return Measurement(4.0, 160, 160, 0, LatencySummary(ms, ms, 2 * ms, 3 * ms))

    def clock(self) -> float:
        return self.now_s + (self.set_by_s if self.now_s >= self.set_at_s else 0.0)

    def monotonic(self) -> float:
        return self.now_s


def tuning(
    folder: Path,
    env: Timed | None = None,
    limits: ChangeLimits | None = None,
    told: Told | None = None,
    resume: bool = False,
    guard: Guard | None = None,
    agent: Agent | None = None,
    **changes: Any,
) -> LooseTuning:
    env = env or Timed()
    about = replace(header(env), interval_s=env.takes_s)
    journal = Journal.open_to_resume(folder) if resume else Journal.create(folder, about, synced=False)
    values: dict[str, Any] = {
        "settings": SETTINGS,
        "listeners": [told or Told()],
        "clock": env.clock,
        "monotonic": env.monotonic,
    } | changes
    guard = guard or Guard(env.start)
    turns: Any = guard.turns
    turns.are_over = lambda costs: (
        turns._pairs(costs) >= 2
    )  # every turn planned, so that it needs every change
    return LooseTuning(
        env,
        agent or Wanderer(),
        guard,
        journal,
        limits=limits or ChangeLimits(),
        **values,
    )


class Proposes(Agent):
    """These configurations one after the other, the last for ever."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return SPACE.action(self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0])

    def update(self, transition: object) -> None:
        pass


class ComesBackWithAnother(Timed):
    """Has its own configuration put back in its second interval."""

    def _interval(self, number: int, watch: Watch) -> MeasuredInterval:
        measurement = self._measurement(number, watch)
        return MeasuredInterval(measurement, changed=self.now_s == NOON_S + 2 * INTERVAL_S)


def most_in_an_hour(times_s: list[float]) -> int:
    return max((sum(begin <= s < begin + HOUR_S for s in times_s) for begin in times_s), default=0)


# how often


@settings(max_examples=15, deadline=None)
@given(per_hour=st.integers(2, 8), seed=st.integers(0, 99))
def test_what_is_tried_and_taken_back_keeps_to_the_changes_of_an_hour(
    tmp_path_factory: pytest.TempPathFactory, per_hour: int, seed: int
) -> None:
    """Rollbacks included: for each that follows a try, one change was kept free."""
    told, folder = Told(), tmp_path_factory.mktemp("run")
    t = tuning(folder, limits=ChangeLimits(per_hour), told=told, agent=Wanderer(seed))
    kept = run(t)
    records = read(folder)[1]
    waited_back = [
        r.changed_at_s[-1]
        for r in records
        if r.kind == "wait" and r.decision == "rollback" and r.changed_at_s
    ]
    tried = [c.at.timestamp() for c in told.changes if c.decision != "leave"]
    assert most_in_an_hour(tried) <= per_hour + len(waited_back)
    without = [s for s in tried if s not in waited_back]
    assert most_in_an_hour(without) <= per_hour
    assert sum(r.kind == "tune" for r in records) == SETTINGS.intervals
    assert not kept.stopped


def test_while_no_change_is_allowed_it_waits_and_that_uses_up_no_interval(tmp_path: Path) -> None:
    told = Told()
    t = tuning(tmp_path, limits=ChangeLimits(3), told=told)
    run(t)
    records = read(tmp_path)[1]
    waits = [r for r in records if r.kind == "wait"]
    assert waits
    for wait in waits:
        assert wait.decision in ("wait", "rollback")
        if wait.decision == "wait":
            assert wait.reason.startswith("no more than 3 changes in an hour: the next at ")
    assert sum(r.kind == "tune" and r.counted for r in records) == SETTINGS.intervals
    assert len(t.agent.taught) == len(records)  # waits teach as well
    assert any(r.learned for r in waits)


def test_every_change_is_told_once_and_holds_until_the_next(tmp_path: Path) -> None:
    told = Told()
    t = tuning(tmp_path, limits=ChangeLimits(4), told=told)
    t.telling.listeners = [told, ChangeLog(tmp_path)]
    kept = run(t)
    in_force = SPACE.configuration(t.env.start)
    changes = iter(told.changes)
    for record in read(tmp_path)[1]:
        assert len(record.changed_at_s) == (record.configuration != in_force)
        if record.configuration != in_force:
            change = next(changes)
            assert (change.before, change.after) == (in_force, record.configuration)
            assert change.decision == record.decision
            assert [change.at.timestamp()] == list(record.changed_at_s)
        in_force = record.configuration
    assert in_force == SPACE.configuration(kept.number)  # its last turn was the validation's last
    assert not list(changes)
    log = (tmp_path / "changes.log").read_text().splitlines()
    assert log == [str(change) for change in told.changes]


def test_before_it_waits_it_returns_to_what_a_stop_would_leave(tmp_path: Path) -> None:
    env, told = Timed(), Told()
    t = tuning(tmp_path, env, ChangeLimits(2), told, agent=Proposes(SLOW))
    stop = StopAfter(6)
    t.telling.listeners, t.stop = [told, stop], stop
    run(t)
    assert [change.decision for change in told.changes[:2]] == ["agent", "wait"]
    assert told.changes[1].after == SPACE.configuration(env.start)
    assert told.changes[1].reason.startswith("the best known to be safe, while no change is allowed: no more")


def test_a_resumed_run_knows_the_changes_made_before(tmp_path: Path) -> None:
    env, told = Timed(), Told()
    stop = StopAfter(5)
    first = tuning(tmp_path, env, ChangeLimits(3), told, stop=stop)
    first.telling.listeners = [told, stop]
    run(first)
    made_s = list(told.times_s)
    assert len(made_s) >= 3  # the last one included
    again = tuning(
        tmp_path,
        env,
        ChangeLimits(3),
        told,
        resume=True,
        found=told.changes[-1].after,
        changed_before_s=made_s[-1:],
    )
    run(again)
    counted = [c.at.timestamp() for c in told.changes if c.decision not in ("rollback", "leave")]
    assert most_in_an_hour(counted) <= 3
    restart = next(s for s in told.times_s if s > made_s[-1])
    assert sum(s + HOUR_S > restart for s in made_s) < 3
    stored = [s for record in read(tmp_path)[1] for s in record.changed_at_s]
    assert stored == told.times_s  # no change follows the last record, as the last turn was the best's


def test_so_does_one_whose_journal_was_shortened_within_the_hour(tmp_path: Path) -> None:
    class Quick(Timed):
        takes_s = 60.0

    env, stop = Quick(), StopAfter(40)
    told, watches = Told(), replace(SETTINGS, intervals=NO_END, validation=0, watches=True)
    rotation = RotationSettings(newest=5, each=1, old=4, slack=3)
    heard = [told, stop, ChangeLog(tmp_path)]
    run(tuning(tmp_path, env, settings=watches, stop=stop, listeners=heard, rotation=rotation))
    records = read(tmp_path)[1]
    in_last_hour_s = [s for s in told.times_s if s + HOUR_S > env.now_s]
    assert sum(len(record.changed_at_s) for record in records) + 5 < len(in_last_hour_s)
    limits = ChangeLimits(len(in_last_hour_s))
    again = tuning(
        tmp_path,
        env,
        limits,
        resume=True,
        settings=watches,
        stop=lambda: True,
        found=told.changes[-1].after,
        changed_before_s=times_since(tmp_path, records[-1].wall_time_s),
    )
    run(again)
    assert limits.next_s(env.now_s) == in_last_hour_s[0] + HOUR_S


def test_a_rollback_is_allowed_when_no_other_change_is_and_is_counted(tmp_path: Path) -> None:
    env, told = Timed(), Told()
    guard = Guard(env.start, GuardSettings(latency_factor=1.01))
    t = tuning(tmp_path, env, ChangeLimits(1), told, guard=guard, agent=Proposes(SLOW))
    stop = StopAfter(4)
    t.telling.listeners, t.stop = [told, stop], stop
    run(t)
    assert [c.decision for c in told.changes] == ["agent", "rollback"]
    assert told.changes[1].reason.startswith("the guard rolled back: ")
    assert read(tmp_path)[1][-1].kind == "wait"
    assert len(t.limits._changed_at_s) == 2


class Modest(Timed):
    """The best is so little better that only its turns can show it."""

    def mean_ms(self, number: int) -> float:
        return super().mean_ms(number) * {START: 1.0, BEST: 85 / 60}.get(number, 10.0)


@pytest.mark.parametrize("environment", [Timed, Modest])
def test_the_turns_of_the_validation_wait_for_their_changes_and_the_last_change_does_not(
    environment: type[Timed], tmp_path: Path
) -> None:
    told = Told()
    t = tuning(tmp_path, environment(), limits=ChangeLimits(2), told=told)
    kept = run(t)
    records = read(tmp_path)[1]
    first = next(i for i, r in enumerate(records) if r.kind == "validation")
    turns = whole_turns(records)
    best, start = turns[0].number, t.env.start
    assert [r.number for r in turns] == [best, start, start, best]
    for turn, before in zip(records[first + 1 :], records[first:], strict=False):
        if turn.kind == "validation" and turn.number == start:  # and no wait before it
            assert before.kind == "validation"
    assert {r.number for r in records[first:] if r.kind == "wait"} == {best}  # nobody waits in the start
    assert kept.number == best


def test_a_wait_is_shown_and_costs_but_is_none_of_the_runs_intervals(tmp_path: Path) -> None:
    told, out = Told(), io.StringIO()
    t = tuning(tmp_path, limits=ChangeLimits(3), told=told)
    view = make_view(Console(file=out, width=300), t.journal, t.guard, SETTINGS, header(t.env).found)
    t.telling.listeners = [told, view]
    run(t)
    records = read(tmp_path)[1]
    lines = out.getvalue().splitlines()
    shown = [line for line in lines if line.startswith("[")]
    total = sum(r.kind != "wait" for r in records)
    assert total >= SETTINGS.baseline + SETTINGS.intervals + 2 * SETTINGS.validation
    assert len(shown) == len(records)
    assert shown[-1].startswith(f"[{total}/{total}] validation")
    assert any("(waits: no more than 3 changes in an hour: the next at " in line for line in shown)
    assert [line for line in lines if line in map(str, told.changes)] == [str(c) for c in told.changes]
    searching = sum(r.kind in ("tune", "wait") for r in records)
    assert cost_of_exploration(records, 100.0).intervals == searching > SETTINGS.intervals


# at which hours


def hour(at_s: float) -> int:
    return datetime.fromtimestamp(at_s).hour


def test_changes_happen_within_the_window_and_outside_what_is_safe_is_observed(tmp_path: Path) -> None:
    env, told = Timed(), Told()
    t = tuning(
        tmp_path,
        env,
        ChangeLimits(windows=ChangeWindow.parse(["22:00-02:00"])),
        told,
        settings=replace(SETTINGS, intervals=60),
    )
    run(t)
    assert told.changes
    assert all(hour(s) in (22, 23, 0, 1) for c, s in zip(told.changes, told.times_s, strict=True)
               if c.decision not in ("rollback", "leave"))  # fmt: skip
    records = read(tmp_path)[1]
    days = [r for r in records if 3 <= hour(r.wall_time_s) < 22]
    assert len(days) > 100
    assert all(r.kind in ("wait", "baseline") for r in days)
    start_mean = np.mean([r.cost for r in records if r.kind == "baseline"])
    assert np.mean([r.cost for r in days]) <= 1.1 * start_mean  # nothing bad was left in force over the day


def test_the_last_change_before_a_window_closes_is_to_what_is_safe_even_if_the_hours_changes_are_used_up(
    tmp_path: Path,
) -> None:
    env = Timed(began_s=datetime(2026, 11, 23, 1, 20).timestamp())
    told = Told()
    limits = ChangeLimits(1, ChangeWindow.parse(["22:00-02:00"]))
    t = tuning(tmp_path, env, limits, told, agent=Proposes(SLOW))
    stop = StopAfter(10)
    t.telling.listeners, t.stop = [told, stop], stop
    run(t)
    assert [c.decision for c in told.changes] == ["agent", "wait"]
    assert told.changes[1].after == SPACE.configuration(env.start)
    assert told.changes[1].at.hour == 1
    assert "the change window" in told.changes[1].reason


def test_a_validation_ends_though_an_hours_changes_never_suffice_within_a_window(tmp_path: Path) -> None:
    class HardlyBetter(Timed):
        takes_s = 900.0  # four in a window, for there are days of them

        def mean_ms(self, number: int) -> float:
            return 0.97 * super().mean_ms(START) if number == BEST else super().mean_ms(number)

    class Recommends(Proposes):
        def recommended(self) -> int:
            return BEST

    env = HardlyBetter(began_s=datetime(2026, 11, 23, 22).timestamp())
    limits = ChangeLimits(2, ChangeWindow.parse(["22:00-23:00"]))
    settings = replace(SETTINGS, intervals=3)
    run(tuning(tmp_path, env, limits, agent=Recommends(BEST), settings=settings))
    turns = [r.number for r in read(tmp_path)[1] if r.kind == "validation"]
    assert turns == [BEST, START, START, BEST]  # and none night after night


def test_a_validation_that_waits_for_the_window_leaves_nothing_unproven_in_force_meanwhile(
    tmp_path: Path,
) -> None:
    env = Modest(began_s=datetime(2026, 11, 23, 0, 47).timestamp())
    limits = ChangeLimits(windows=ChangeWindow.parse(["22:00-02:00"]))
    run(tuning(tmp_path, env, limits, agent=Proposes(BEST)))
    records = read(tmp_path)[1]
    days = [r for r in records if 3 <= hour(r.wall_time_s) < 22]
    turns = [r.wall_time_s for r in records if r.kind == "validation"]
    assert turns[0] < days[0].wall_time_s < turns[-1]
    assert {r.number for r in days} == {START}


def test_a_quiet_night_changes_nothing_outside_the_window(tmp_path: Path) -> None:
    """The guard's return to the best where no requests arrive is a precaution, not a rollback for safety."""
    env = Timed(silent=lambda now_s: 3 <= hour(now_s) < 8)
    told = Told()
    t = tuning(
        tmp_path,
        env,
        ChangeLimits(windows=ChangeWindow.parse(["22:00-02:00"])),
        told,
        settings=replace(SETTINGS, intervals=60),
    )
    run(t)
    quiet = [r for r in read(tmp_path)[1] if not r.measurement.arrivals]
    assert len(quiet) >= 50
    assert not any(r.changed_at_s for r in quiet)
    assert all(r.decision == "wait" for r in quiet)


# the end of the time


@pytest.mark.parametrize("limits", [ChangeLimits(1), ChangeLimits(windows=ChangeWindow.parse(["3:00-5:00"]))])
def test_the_time_ends_a_run_that_waits(tmp_path: Path, limits: ChangeLimits) -> None:
    env = Timed()
    t = tuning(tmp_path, env, limits, settings=replace(SETTINGS, intervals=50, duration_s=2 * HOUR_S))
    kept = run(t)
    assert 1.5 * HOUR_S <= env.now_s - NOON_S <= 2 * HOUR_S + 2 * INTERVAL_S
    assert not kept.stopped
    assert kept.number == t.in_force.number


def test_a_resumed_run_takes_its_time_by_its_own_intervals(tmp_path: Path) -> None:
    env, stop = Timed(), StopAfter(3)
    run(tuning(tmp_path, env, stop=stop, listeners=[stop]))
    longer = replace(header(env), interval_s=2 * INTERVAL_S)
    with closing(Journal.open_to_resume(tmp_path, longer)) as journal:
        again = LooseTuning(env, Wanderer(), Guard(env.start), journal)
        assert again.pacing.undone_within_s == MAX_INTERVAL_LENGTHS * 2 * INTERVAL_S


def test_where_the_run_ends_within_the_hour_changes_are_kept_for_the_validation(tmp_path: Path) -> None:
    t = tuning(tmp_path, limits=ChangeLimits(9), settings=replace(SETTINGS, intervals=50, duration_s=HOUR_S))
    run(t)
    records = read(tmp_path)[1]
    assert [r.kind for r in records].count("validation") == 4
    assert sum(r.kind == "tune" for r in records) < 50


# reasons


def test_an_agent_says_itself_why(tmp_path: Path) -> None:
    class Explains(Wanderer):
        def explain(self) -> str:
            return "expects 23 ms instead of 41 ms"

    told = Told()
    run(tuning(tmp_path, told=told, agent=Explains()))
    reasons = [c.reason for c in told.changes if c.decision == "agent"]
    assert set(reasons) == {"the agent: expects 23 ms instead of 41 ms"}
    assert {r.reason for r in read(tmp_path)[1] if r.decision == "agent" and r.changed_at_s} == set(reasons)


def test_of_an_agent_that_does_not_it_is_told_whether_it_explores(tmp_path: Path) -> None:
    told = Told()
    run(tuning(tmp_path, told=told))
    tried: set[str] = {str(SPACE.configuration(Timed().start))}
    reasons = set()
    for change in told.changes:
        if change.decision == "agent":
            known = str(change.after) in tried
            assert change.reason == ("the agent proposes it" if known else "the agent explores it")
            reasons.add(change.reason)
        tried.add(str(change.after))
    assert len(reasons) == 2


def test_a_winner_within_the_noise_is_not_left_and_the_run_says_so(tmp_path: Path) -> None:
    class Alike(Timed):
        """Every configuration costs the same; which looks best is chance."""

        def mean_ms(self, number: int) -> float:
            return super().mean_ms(START)

    told = Told()
    t = tuning(tmp_path, Alike(), told=told, settings=replace(SETTINGS, intervals=20))
    kept = run(t)
    assert [r.kind for r in read(tmp_path)[1]].count("validation") in (4, 8)
    assert kept.number == t.env.start
    assert "nothing was better beyond noise: in turns the best had " in kept.reason
    assert told.changes[-1].reason == f"restored what was found: {kept.reason}"


def test_a_stopped_run_says_what_it_puts_back_and_why(tmp_path: Path) -> None:
    told, stop = Told(), StopAfter(3)
    t = tuning(tmp_path, told=told, agent=Proposes(SLOW), stop=stop)
    t.telling.listeners = [told, stop]
    run(t)
    assert told.changes[-1].reason == "restored what was found: interrupted"


def test_a_best_that_fails_in_its_turns_is_not_tried_a_second_time(tmp_path: Path) -> None:
    class FailsLate(Timed):
        def _measurement(self, number: int, watch: Watch) -> Measurement:
            m = super()._measurement(number, watch)
            late = t.finished("tune") >= SETTINGS.intervals
            return replace(m, failures=m.arrivals // 2) if number == BEST and late else m

    told = Told()
    t = tuning(tmp_path, FailsLate(), told=told, agent=Proposes(BEST))
    kept = run(t)
    turns: list[Record] = [r for r in read(tmp_path)[1] if r.kind == "validation"]
    assert [r.number for r in turns] == [BEST, START]
    assert kept.number == START
    assert "failed" in kept.reason


def test_nor_is_one_that_fails_as_the_next_change_must_wait(tmp_path: Path) -> None:
    class FailsInItsSecondTurn(Timed):
        def _measurement(self, number: int, watch: Watch) -> Measurement:
            m = super()._measurement(number, watch)
            return replace(m, failures=m.arrivals // 2) if number == BEST and t.finished("validation") else m

    t = tuning(tmp_path, FailsInItsSecondTurn(), ChangeLimits(3), agent=Proposes(BEST))
    kept = run(t)
    assert [r.number for r in read(tmp_path)[1] if r.kind == "validation"] == [BEST, START, START, BEST]
    assert kept.number == START


# when somebody sets the clock


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_clock_that_is_set_neither_holds_changes_back_nor_sets_them_free(
    tmp_path: Path, hours: int
) -> None:
    """The run does, interval by interval, what it does by a clock that nobody sets."""
    numbers = []
    for name, set_by_s in (("left alone", 0.0), ("set", hours * HOUR_S)):
        env = Timed()
        env.set_at_s, env.set_by_s = NOON_S + 6 * INTERVAL_S, set_by_s
        run(tuning(tmp_path / name, env, ChangeLimits(2)))
        numbers.append([(r.kind, r.number) for r in read(tmp_path / name)[1]])
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("hours", [-24, 24])
def test_nor_does_one_that_is_set_within_the_interval_whose_change_is_counted(
    tmp_path: Path, hours: int
) -> None:
    """A server that comes back with another configuration has the run's own put back in that interval."""
    numbers = []
    for name, set_by_s in (("left alone", 0.0), ("set", hours * HOUR_S)):
        env = ComesBackWithAnother()
        env.set_at_s, env.set_by_s = NOON_S + 2 * INTERVAL_S, set_by_s
        run(tuning(tmp_path / name, env, ChangeLimits(2)))
        numbers.append([(r.kind, r.number) for r in read(tmp_path / name)[1]])
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_duration_is_as_long_whatever_the_clock_says(tmp_path: Path, hours: int) -> None:
    env = Timed()
    env.set_at_s, env.set_by_s = NOON_S + 3 * INTERVAL_S, hours * HOUR_S
    limited = replace(SETTINGS, intervals=100, duration_s=20 * INTERVAL_S)
    run(tuning(tmp_path, env, settings=limited))
    assert 16 * INTERVAL_S <= env.now_s - NOON_S <= 22 * INTERVAL_S


def test_changes_that_a_clock_since_set_back_tells_of_hold_nothing_back_for_longer_than_an_hour(
    tmp_path: Path,
) -> None:
    env, stop = Timed(), StopAfter(5)
    env.set_at_s, env.set_by_s = NOON_S, 24 * HOUR_S
    run(tuning(tmp_path, env, ChangeLimits(3), stop=stop, listeners=[stop]))
    env.set_by_s = 0.0
    began_s = env.now_s
    run(tuning(tmp_path, env, ChangeLimits(3), resume=True))
    assert env.now_s < began_s + 12 * HOUR_S
