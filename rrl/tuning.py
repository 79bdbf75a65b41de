"""The tuning loop: baseline intervals in the found configuration, tuning, validation, and what is left.

    agent.act -> guard.admit -> env.step -> cost -> guard.judge -> journal -> agent.update

It runs over any environment whose `info` tells measurement, number and cost: simulated or live.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rrl.agent import Agent, Transition
from rrl.guard import Guard
from rrl.journal import Decision, Journal, Kind, Record, has_traffic
from rrl.measurement import Measurement, Progress
from rrl.reference_table import costs_by_configuration
from rrl.space import ConfigurationSpace


@dataclass(frozen=True)
class TuningSettings:
    intervals: int = 50  # decisions to take
    baseline: int = 3  # intervals in the found configuration, first of all
    validation: int = 2  # intervals each of the best and the found configuration in turns, last of all

    def __post_init__(self) -> None:
        if self.intervals < 1 or self.baseline < 1 or self.validation < 0:
            raise ValueError(
                f"at least one tuning and one baseline interval are needed, "
                f"got {self.intervals} and {self.baseline}"
            )


class Environment(Protocol):
    """What the loop needs of a ServingEnv."""

    space: ConfigurationSpace
    interrupt: Callable[[Progress], str] | None

    def reset(self, *, seed: Any = ..., options: Any = ...) -> tuple[np.ndarray, dict[str, Any]]: ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]: ...


class Observer:
    """Looks on. Subclasses override what they care for."""

    def decided(self, kind: Kind, number: int, decision: Decision, reason: str) -> None:
        """A configuration is about to come into force."""

    def measured(self, record: Record) -> None:
        """An interval is over, and in the journal."""

    def notice(self, text: str) -> None:
        """Something a person should know, e.g. that no requests arrive."""


@dataclass(frozen=True)
class Outcome:
    left: int  # the configuration left in force
    stopped: bool  # before its end


class Stopped(Exception):
    """Somebody asked the run to stop."""


@dataclass
class Tuning:
    env: Environment
    agent: Agent
    guard: Guard
    journal: Journal
    settings: TuningSettings = TuningSettings()
    observers: Sequence[Observer] = ()
    stop: Callable[[], bool] = lambda: False
    put_in_force: Callable[[int], None] | None = None  # at the end; default: a step of the environment
    _observation: np.ndarray | None = field(default=None, init=False)  # of the last interval with traffic
    _in_force: int | None = field(default=None, init=False)
    _waiting: bool = field(default=False, init=False)

    def run(self) -> Outcome:
        """Replays the journal, goes on from there, and leaves the better configuration in force."""
        for record in self.journal.records:
            self.guard.replay(record)
            self._teach(record)
            if finish_training := getattr(self.agent, "finish_training", None):
                finish_training()  # the next update needs its network
        self.env.interrupt = self._interrupt
        try:
            self._measure_start()
            self._search()
            validation = self._validate()
        except Stopped:
            return self._leave(self.guard.to_leave(), stopped=True)
        except BaseException:
            with suppress(Exception):  # the first error tells more than one from putting things back
                self._leave(self.guard.to_leave(), stopped=True)
            raise
        return self._leave(self.guard.to_leave(validation), stopped=False)

    def finished(self, kind: Kind) -> int:
        """How many of the run's intervals of this kind are in the journal."""
        return sum(record.kind == kind and record.counted for record in self.journal.records)

    def _measure_start(self) -> None:
        missing = self.settings.baseline - self.finished("baseline")
        for _ in range(max(1, missing)):  # a resumed run needs an observation too
            self._measured("baseline", self.guard.start)

    def _search(self) -> None:
        space = self.env.space
        while self.finished("tune") < self.settings.intervals:
            assert self._observation is not None
            began_s = time.perf_counter()
            action = None if self.guard.takes_over else self.agent.act(self._observation)
            number, decision, reason = self.guard.admit(
                None if action is None else space.number_of_action(action)
            )
            self._interval("tune", number, decision, reason, 1e3 * (time.perf_counter() - began_s))

    def _validate(self) -> dict[int, list[float]] | None:
        """The costs of the best known and the found configuration, measured in turns."""
        start, best = self.guard.start, self._best()
        if start == best:
            return None
        turns = (best, start) * self.settings.validation
        records = [self._measured("validation", number) for number in turns]
        return costs_by_configuration((r.number, r.cost) for r in records if math.isfinite(r.cost))

    def _best(self) -> int:
        """What the agent recommends, if the guard knows nothing against it; else the guard's best.

        The guard goes by the few noisy intervals of each configuration, an agent by all it has learned.
        """
        recommend = getattr(self.agent, "recommended", None)
        number: int | None = recommend() if recommend else None
        return number if number is not None and self.guard.trusts(number) else self.guard.best

    def _measured(self, kind: Kind, number: int) -> Record:
        """An interval of a configuration; again while there is no traffic, or an old queue to drain."""
        while True:
            self.guard.enter(number)
            record = self._interval(kind, number, "schedule", "", math.nan)
            if record.learned or (record.counted and math.isnan(record.cost)):
                return record

    def _interval(
        self, kind: Kind, number: int, decision: Decision, reason: str, decision_ms: float
    ) -> Record:
        """One interval: run it, have it judged, write it down, learn from it."""
        for observer in self.observers:
            observer.decided(kind, number, decision, reason)
        after, info = self._run(number)
        measurement, cost = info["measurement"], float(info["cost"])
        if self.stop():
            raise Stopped
        verdict = self.guard.judge(number, cost, measurement, kind == "baseline")
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
            wall_time_s=time.time(),
            decision_ms=decision_ms,
            apply_ms=float(info.get("apply_ms", math.nan)),
        )
        self.journal.append(record)
        self._teach(record)
        if record.counted:
            self._observation = after
        self._tell_of_waiting(measurement)
        for observer in self.observers:
            observer.measured(record)
        return record

    def _teach(self, record: Record) -> None:
        """Every interval that counts makes the agent think anew; only one that is learned tells it a cost."""
        if record.counted:
            self.agent.update(record.lesson)

    def _run(self, number: int) -> tuple[np.ndarray, dict[str, Any]]:
        if self._in_force is None:
            configuration = self.env.space.configuration(number)
            self._in_force = number
            return self.env.reset(options={"configuration": configuration})
        self._in_force = number
        observation, _, _, truncated, info = self.env.step(self.env.space.action(number))
        if truncated:  # a fixed workload ran out: begin it again
            self._in_force = None
        return observation, info

    def _interrupt(self, progress: Progress) -> str:
        return "stopped" if self.stop() else self.guard.watch(progress)

    def _leave(self, number: int, stopped: bool) -> Outcome:
        if self.put_in_force is not None:
            self.put_in_force(number)
        elif self._in_force not in (None, number):
            self.env.interrupt = lambda _: "the run is over"  # nothing more to measure
            self.env.step(self.env.space.action(number))
        self._in_force = number
        return Outcome(number, stopped)

    def _tell_of_waiting(self, measurement: Measurement) -> None:
        """Says once that there is nothing to tune, and once that there is again."""
        waiting = measurement.gap or ("" if has_traffic(measurement) else "no requests arrive")
        if waiting and not self._waiting:
            self._notice(f"{waiting}: waiting, nothing is learned meanwhile")
        if not waiting and self._waiting:
            self._notice("requests are answered again")
        self._waiting = bool(waiting)

    def _notice(self, text: str) -> None:
        for observer in self.observers:
            observer.notice(text)
