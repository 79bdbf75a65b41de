"""The tuning loop: baseline intervals in the found configuration, tuning, validation, and what is left.

    agent.act -> guard.admit -> env.step -> cost -> guard.judge -> journal -> agent.update

It runs over any environment whose `info` tells measurement, number and cost: simulated or live.

Where changes are limited, the run waits: a `wait` interval is measured and learned from as any other, but
tries nothing and uses up none of the run's intervals. Meanwhile what would be left at a stop is in force, as
long as a change to it is allowed: one is kept for it (of a single change an hour none can be), and it is made
before a window closes. The guard's rollbacks, and what the run leaves at its end, are never held back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import numpy as np

from rrl.agent import Agent, Transition
from rrl.guarding.guard import Guard, ToKeep
from rrl.journal import Decision, Ending, Journal, Kind, Record
from rrl.measurement import Measurement, Progress, SoFar, has_traffic
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.change_limits import HOUR_S, ChangeLimits
from rrl.tuning.decision_words import PUT_BACK, reason_in_words
from rrl.tuning.listener import Change, Listener

BASELINE_WITHOUT_VALIDATION = 3  # intervals of the found configuration where it is not measured again
RECENT_CHANGES = 10  # of which the slowest tells how long one may take
MAX_INTERVAL_LENGTHS = 4.0  # one that settles long lasts three and `settle_s`; with time to change back


@dataclass(frozen=True)
class TuningSettings:
    intervals: int = 50  # decisions to take
    # Intervals in the found configuration, first of all; fewer where it is overloaded. One is enough where
    # the validation measures it again: users bear every one of them.
    baseline: int = 1
    # Intervals each of the best and the found configuration in turns, last of all; twice as many at most,
    # where these leave open which is better, and one of the found, a short one, where that settles it.
    validation: int = 2
    duration_s: float = math.inf  # the run ends about then, whatever is left to do

    def __post_init__(self) -> None:
        if self.intervals < 1 or self.baseline < 1 or self.validation < 0:
            raise ValueError(
                f"at least one tuning and one baseline interval are needed, "
                f"got {self.intervals} and {self.baseline}"
            )


def baseline_for(validation: int) -> int:
    """Intervals of the found configuration at the beginning: more where no validation measures it again."""
    return TuningSettings.baseline if validation else BASELINE_WITHOUT_VALIDATION


class Environment(Protocol):
    """What the loop needs of a ServingEnv."""

    space: ConfigurationSpace
    interrupt: Callable[[Progress], str] | None
    measured_share: float
    enough: Callable[[SoFar], bool] | None

    def reset(self, *, seed: Any = ..., options: Any = ...) -> tuple[np.ndarray, dict[str, Any]]: ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]: ...


@dataclass(frozen=True)
class Kept:
    """The configuration that a run kept in force at its end."""

    number: int
    stopped: bool  # somebody ended the run early
    reason: str = field(default="", compare=False)  # why this one was kept


class Stopped(Exception):
    """Somebody asked the run to stop."""


class _NotTaken(Exception):
    """The target refuses what is to be validated, or is lost under it again; the text says which, and why."""


class _TimeUp(Exception):
    """The run's time is over while it waits."""


@dataclass
class Tuning:
    env: Environment
    agent: Agent
    guard: Guard
    journal: Journal
    settings: TuningSettings = TuningSettings()
    listeners: Sequence[Listener] = ()
    stop: Callable[[], bool] = lambda: False
    put_in_force: Callable[[int], None] | None = None  # at the end; default: a step of the environment
    limits: ChangeLimits = field(default_factory=ChangeLimits)
    found: Configuration | None = None  # in force at the beginning; default: the start
    changed_before_s: Sequence[float] = ()  # Unix times of changes that no record tells of
    clock: Callable[[], float] = time.time  # Unix time
    _observation: np.ndarray | None = field(default=None, init=False)  # of the last interval with traffic
    _begun: bool = field(default=False, init=False)  # the environment was reset
    _in_force: int | None = field(default=None, init=False)  # None: what was found is not on the grid
    _found_number: int | None = field(default=None, init=False)  # of a resumed run, not always its start's
    _changed_at_s: list[float] = field(default_factory=list, init=False)  # since the last record
    _end_s: float = field(default=math.inf, init=False)
    _silent: bool = field(default=False, init=False)

    def run(self) -> Kept:
        """Replays the journal, goes on from there, and leaves the better configuration in force."""
        for record in self.journal.records:
            self._replay(record)
        for at_s in self.changed_before_s:
            self._count_change(at_s)
        self._in_force = self._found_number = self._number_found()
        self._end_s = self.clock() + self.settings.duration_s
        self.env.interrupt = self._interrupt
        try:
            self._measure_start()
            self._search()
            to_keep = self.guard.keeping(self._validate())
        except Stopped as stopped:
            return self._keep(self._to_keep_early(str(stopped) or "interrupted"), stopped=True)
        except _TimeUp:
            return self._keep(
                self._to_keep_early("the time is up before the best could be measured in turns")
            )
        except _NotTaken as refused:
            return self._keep(ToKeep(self._as_found, str(refused)))
        except BaseException:
            with suppress(Exception):  # the first error tells more than one from putting things back
                self._keep(self._to_keep_early("the run failed"), stopped=True)
            raise
        return self._keep(to_keep)

    def finished(self, kind: Kind) -> int:
        """How many of the run's intervals of this kind are in the journal."""
        return sum(record.kind == kind and record.counted for record in self.journal.records)

    def pause(self, changes: int = 1) -> str:
        """Why so many changes of configuration are not allowed now, and when they are; empty if they are."""
        return self.limits.pause(self.clock(), changes, self._undone_within_s)

    def _replay(self, record: Record) -> None:
        self.guard.replay(record)
        self._teach(record)
        for at_s in record.changed_at_s:
            self.limits.changed(at_s)
        self.agent.finish_training()  # the next update needs its network

    def _number_found(self) -> int | None:
        if self.found is None:
            return self.guard.start
        with suppress(ValueError):
            return self.env.space.number(self.found)
        return None

    def _measure_start(self) -> None:
        """Once at least, as a resumed run needs an observation too; only once where it cannot bear the load.

        Its users wait meanwhile.
        """
        missing = 0 if self.finished("tune") else self.settings.baseline - self.finished("baseline")
        for _ in range(max(1, missing)):
            record = self._measured("baseline", self.guard.start)
            if self.guard.overloads(record.measurement):
                return

    def _search(self) -> None:
        space = self.env.space
        while self.finished("tune") < self.settings.intervals and self.clock() < self._search_end_s:
            if pause := self.pause(self._changes_to_explore):
                self._wait(pause)
                continue
            assert self._observation is not None
            began_s = time.perf_counter()
            action = None if self.guard.takes_over else self.agent.act(self._observation)
            number, decision, reason = self.guard.admit(
                None if action is None else space.number_of_action(action)
            )
            self._interval("tune", number, decision, reason, 1e3 * (time.perf_counter() - began_s))

    @property
    def _undone_within_s(self) -> float:
        """How long after a change it can be changed back, at the latest, where both take as long as the
        slowest of late."""
        applied_ms = [r.apply_ms for r in self.journal.records if r.apply_ms > 0]  # NaN, 0: no change
        slowest_ms = max(applied_ms[-RECENT_CHANGES:], default=0.0)
        return MAX_INTERVAL_LENGTHS * self.journal.header.interval_s + 2 * slowest_ms / 1e3

    @property
    def _search_end_s(self) -> float:
        """When the validation must begin to be over in time."""
        return self._end_s - 2 * self.settings.validation * self.journal.header.interval_s

    @property
    def _changes_to_explore(self) -> int:
        """How many must be free to try something: for itself, for the way back, and, where the run ends
        before they were free again, for the validation."""
        validation = 2 * self.settings.validation if self._search_end_s - self.clock() < HOUR_S else 0
        return 2 + validation

    def _validate(self) -> dict[int, list[float]] | None:
        """The costs of the best known and the found configuration, measured in turns: A B A B.

        At most as many turns follow where those leave the question open. Where the best was better beyond
        noise before, the first turn of the found configuration is only as long as it takes to show that
        again, as was to be expected or sooner; and where A B leaves no question open then, and another A
        agrees, its users are spared the second. Where a turn of the found configuration had to wait for its
        changes in the best, that is measured again: the load may have moved meanwhile.
        """
        start, best = self.guard.start, self._best()
        if start == best:
            best = self.guard.to_keep()
        if start == best or not self.settings.validation:
            return None
        costs: dict[int, list[float]] = {best: [], start: []}
        for turn in range(2 * self.settings.validation):
            if turn >= self.settings.validation and not self._needs_more_turns(costs):
                break
            cost = self._measured("validation", best).cost
            # Where another turn of the best follows, its change must be free, too: nobody waits in the start.
            changes = 2 if turn + 1 < self.settings.validation else 1
            settles = self._settles(costs, best, cost)
            if not settles and self._waited_to_change(start, changes) and self._in_force == best:
                cost = self._measured("validation", best).cost
                settles = self._settles(costs, best, cost)
            if settles:
                costs[best].append(cost)
                break
            share, enough = 1.0, None
            if turn == 0 and self.guard.fits(best):
                share = self.guard.turns.share_for_first(best)
                enough = partial(self.guard.turns.first_has_shown, best, cost)
            cost_of_start = self._measured("validation", start, share, changes, enough).cost
            if math.isfinite(cost) and math.isfinite(cost_of_start):
                costs[best].append(cost)
                costs[start].append(cost_of_start)
            if not self.guard.fits(best):
                break
        return costs

    def _settles(self, costs: dict[int, list[float]], best: int, cost: float) -> bool:
        """True if the turns leave nothing open with this one of the best, which is fit."""
        with_this = costs | {best: [*costs[best], cost]}
        return self.guard.fits(best) and self.guard.turns.are_settled(with_this)

    def _needs_more_turns(self, costs: dict[int, list[float]]) -> bool:
        """True if the best seems better, perhaps by chance, and neither time nor limits forbid a pair."""
        in_time = self.clock() + 2 * self.journal.header.interval_s < self._end_s
        return in_time and not self.pause(2) and self.guard.turns.gain(costs).undecided

    def _best(self) -> int:
        """What the agent recommends, if the guard knows nothing against it; else the guard's best.

        The guard goes by the few noisy intervals of each configuration, an agent by all it has learned.
        """
        number = self.agent.recommended()
        return number if number is not None and self.guard.trusts(number) else self.guard.best

    def _measured(
        self,
        kind: Kind,
        number: int,
        share: float = 1.0,
        changes: int = 1,
        enough: Callable[[SoFar], bool] | None = None,
    ) -> Record:
        """An interval of a configuration, or a share of one, or what of it is `enough`; again while there is
        no traffic, or an old queue to drain. It begins once so many changes are allowed, if it is not in
        force."""
        while True:
            self._waited_to_change(number, changes)
            self.guard.enter(number)
            self.env.measured_share, self.env.enough = share, enough
            try:
                record = self._interval(kind, number, "schedule", "", math.nan)
            finally:
                self.env.measured_share, self.env.enough = 1.0, None
            if record.learned or (record.counted and math.isnan(record.cost)):
                return record
            lost_again = bool(record.measurement.gap) and self.guard.was_lost_again(number)
            if kind == "validation" and (record.not_taken or lost_again):
                which = "the start" if number == self.guard.start else "the best known"
                raise _NotTaken(f"{which} cannot be measured again: {record.measurement.gap}")
            if self.clock() >= self._end_s:
                raise _TimeUp

    def _waited_to_change(self, number: int, changes: int) -> bool:
        """Waits until it may come into force, the first of so many changes, and says whether it had to; what
        was found off the grid cannot be waited in."""
        waited = False
        while self._in_force not in (None, number) and (pause := self.pause(changes)):
            if self.clock() >= self._end_s:
                raise _TimeUp
            self._wait(pause, stays=not self.pause() and not self.guard.is_worse(self._in_force))
            waited = True
        return waited

    def _wait(self, pause: str, stays: bool = False) -> None:
        """An interval that tries nothing: in the guard's choice if it must act, in what is safe, or, where it
        `stays` as one change is free and more are asked for, in what is in force."""
        if self.guard.must_act:
            number, decision, reason = self.guard.admit(None)
            self._interval("wait", number, decision, reason, math.nan)
        else:
            in_force = self._in_force
            number = in_force if stays and in_force is not None else self._safe_meanwhile()
            self.guard.enter(number)
            self._interval("wait", number, "wait", pause, math.nan)

    def _safe_meanwhile(self) -> int:
        """What is in force while the run waits: the start or what a stop would leave, if that is allowed."""
        assert self._in_force is not None
        safe = self.guard.to_keep()
        if self._in_force in (self.guard.start, safe):
            return self._in_force
        return safe if self.limits.may_return(self.clock(), self._undone_within_s) else self._in_force

    def _interval(
        self, kind: Kind, number: int, decision: Decision, reason: str, decision_ms: float
    ) -> Record:
        """One interval: run it, have it judged, write it down, learn from it."""
        was_in_force, changes = self._in_force, number != self._in_force
        if changes and decision == "agent":
            reason = self._agents_reason(number)
        for listener in self.listeners:
            listener.decided(kind, number, decision, reason)
        if changes:
            self._change(number, decision, reason_in_words(kind, decision, reason))
        after, info = self._run(number)
        measurement, cost = info["measurement"], float(info["cost"])
        if info.get("refused"):
            self._in_force = was_in_force
            if changes:
                kept = self._configuration(was_in_force)
                self._tell(self._configuration(number), kept, "refused", measurement.gap)
        if info.get("changed") and not changes:
            gap = measurement.gap or self._gap_before
            by_whom = f"something ({gap})" if gap and "another client" not in gap else "another client"
            self._count_change(self.clock())
            reason = f"{by_whom} had changed it: puts back that of this run"
            self._tell({}, self._configuration(number), PUT_BACK, reason)
        if self.stop():
            raise Stopped
        share = float(info.get("share", 1.0))
        settling: Measurement | None = info.get("settling")
        verdict = self.guard.judge(number, cost, measurement, kind, share, settling)
        before = after if self._observation is None else self._observation
        transition = Transition(before, self.env.space.action(number), cost, after, measurement)
        record = Record(
            kind=kind,
            number=number,
            configuration=self.env.space.configuration(number),
            transition=transition,
            decision=decision,
            reason=reason,
            verdict=verdict.reason,
            rollback=verdict.rollback,
            learned=verdict.learn,
            wall_time_s=self.clock(),
            decision_ms=decision_ms,
            apply_ms=float(info.get("apply_ms", math.nan)),
            changed_at_s=tuple(self._changed_at_s),
            not_taken=bool(info.get("refused")),
            settling=settling,
            share=share,
        )
        self._changed_at_s.clear()
        self.journal.append(record)
        self._teach(record)
        if record.counted:
            self._observation = after
        self._tell_of_silence(measurement)
        for listener in self.listeners:
            listener.measured(record)
        return record

    @property
    def _gap_before(self) -> str:
        last = self.journal.records[-1] if self.journal.records else None
        return "" if last is None or last.not_taken else last.measurement.gap

    def _teach(self, record: Record) -> None:
        """Every interval that counts makes the agent think anew; only one that is learned tells it a cost."""
        if record.counted:
            self.agent.update(record.lesson)
        elif record.not_taken:
            self.agent.refused(record.number)

    def _run(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        if not self._begun:
            self._begun = True
            return self.env.reset(options={"configuration": self.env.space.configuration(number)})
        observation, _, _, truncated, info = self.env.step(self.env.space.action(number))
        if truncated:  # a fixed workload ran out: begin it again
            self._begun = False
        return observation, info

    def _interrupt(self, progress: Progress) -> str:
        return "stopped" if self.stop() else self.guard.watch(progress)

    def _change(self, number: int, decision: str, reason: str) -> None:
        """Another configuration comes into force: counted, and told of before it happens."""
        before, self._in_force = self._in_force, number
        self._count_change(self.clock())
        self._tell(self._configuration(before), self._configuration(number), decision, reason)

    def _tell(self, before: Configuration, after: Configuration, decision: str, reason: str) -> None:
        change = Change(datetime.fromtimestamp(self.clock()), before, after, decision, reason)
        for listener in self.listeners:
            listener.changed(change)

    def _configuration(self, number: int | None) -> Configuration:
        """None: what was found, which is not on the grid."""
        return (self.found or {}) if number is None else self.env.space.configuration(number)

    def _count_change(self, at_s: float) -> None:
        self.limits.changed(at_s)
        self._changed_at_s.append(at_s)

    def _agents_reason(self, number: int) -> str:
        if why := self.agent.explain():
            return f"the agent: {why}"
        return "the agent proposes it" if self.guard.knows(number) else "the agent explores it"

    def _to_keep_early(self, why: str) -> ToKeep:
        number, reason = self.guard.keeping()
        if number != self.guard.start:
            return ToKeep(number, f"{reason}; {why}")
        return ToKeep(self._as_found, why)

    @property
    def _as_found(self) -> int:
        """What is left where nothing better is known: the start, but a resumed run may have found another."""
        found = self._found_number
        return self.guard.start if found is None or self.guard.is_worse(found) else found

    def _keep(self, to_keep: ToKeep, stopped: bool = False) -> Kept:
        number, reason = to_keep
        changes = number != self._in_force and (self._begun or self.put_in_force is not None)
        try:
            self._tell_what_is_kept(number, changes, reason)
        finally:  # a full disk, or a terminal that is gone, must not leave what was being explored in force
            if self.put_in_force is not None:
                self._put_in_force(self.put_in_force, number)
            elif changes:
                self.env.interrupt = lambda _: "the run is over"  # nothing more to measure
                self.env.step(self.env.space.action(number))
            self._write_ending(number, reason)
        self._in_force = number
        return Kept(number, stopped, reason)

    def _tell_what_is_kept(self, number: int, changes: bool, reason: str) -> None:
        if not changes:
            self._notice(f"left in force, {'as found' if number == self._as_found else 'as tuned'}: {reason}")
            return
        what = "restored what was found" if number == self._as_found else "left in force"
        if number == self._as_found and self._found_number is None and self.found is not None:
            what = "restored the start of the run resumed"  # whose grid does not hold what was found now
        self._change(number, "leave", f"{what}: {reason}")

    def _put_in_force(self, put_in_force: Callable[[int], None], number: int) -> None:
        """Where that is refused, what was found comes back rather than what was being explored."""
        try:
            put_in_force(number)
        except Exception as error:
            if number != self._as_found and self._found_number is not None:
                with suppress(Exception):  # the first error tells more
                    put_in_force(self._as_found)
                    refused = f"what was to be left could not be put in force ({error})"
                    self._write_ending(self._as_found, f"{refused}, so what was found was put back")
                    self._change(self._as_found, "leave", f"restored what was found: {error}")
            raise

    def _write_ending(self, number: int, reason: str) -> None:
        self.journal.end(Ending(self.env.space.configuration(number), reason))

    def _tell_of_silence(self, measurement: Measurement) -> None:
        """Says once that there is nothing to tune, and once that there is again."""
        silent = measurement.gap or ("" if has_traffic(measurement) else "no requests arrive")
        if silent and not self._silent:
            self._notice(f"{silent}: waiting, nothing is learned meanwhile")
        if not silent and self._silent:
            self._notice("requests are answered again")
        self._silent = bool(silent)

    def _notice(self, text: str) -> None:
        for listener in self.listeners:
            listener.notice(text)
