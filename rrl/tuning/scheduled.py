"""Intervals that no agent chooses: those of the start, the turns of the validation, and those that wait.

Where changes are limited, the run waits. A `wait` interval is measured and learned from as any other, but it
tries nothing and uses up none of the run's intervals. Meanwhile the run has in force what it would keep at a
stop, as long as a change to it is allowed. One change is kept free for that, unless an hour may have only
one, and it is made before a window closes. The guard's rollbacks and a run's last change are never held back.
"""

from __future__ import annotations

import math
from typing import Protocol

from rrl.guarding.guard import Admission, Guard
from rrl.interval import UNWATCHED, Watch
from rrl.records import Kind, Record
from rrl.tuning.in_force import InForce
from rrl.tuning.pacing import Pacing


class CannotMeasure(Exception):
    """The target refuses the start or the best, or is lost under it again; the text says which, and why."""


class RunInterval(Protocol):
    """The loop's interval."""

    def __call__(
        self, kind: Kind, choice: Admission, watch: Watch = ..., decision_ms: float = ...
    ) -> Record: ...


class Scheduled:
    """Runs intervals of given configurations, once their changes are allowed."""

    def __init__(self, interval: RunInterval, guard: Guard, in_force: InForce, pacing: Pacing) -> None:
        self._interval, self._guard, self._in_force, self._pacing = interval, guard, in_force, pacing

    def measured(self, kind: Kind, number: int, changes: int = 1, watch: Watch = UNWATCHED) -> Record:
        """An interval of a configuration; again while there is no traffic, or an old queue to drain.

        It begins once so many changes are allowed, if the configuration is not in force.
        """
        while True:
            self.waited_to_change(number, changes)
            self._guard.enter(number)
            record = self._interval(kind, Admission(number, "schedule", ""), watch)
            if record.learned or (record.counted and math.isnan(record.cost)):
                return record
            was_lost = bool(record.measurement.gap) and not record.measurement.gap_by_others
            lost_again = was_lost and self._guard.fitness.was_lost_again(number)
            refused, validates = record.not_taken and kind != "wait", kind == "validation"
            # A start that is in force as it was found is not put there by the run.
            may_be_to_blame = validates or (kind == "baseline" and number != self._in_force.found_number)
            if refused or (may_be_to_blame and lost_again):
                which = "the start" if number == self._guard.start else "the best known"
                again = " again" if validates else ""
                raise CannotMeasure(f"{which} cannot be measured{again}: {record.measurement.gap}")
            self._pacing.check_time()
            if record.measurement.gap_by_others and self._guard.must_act:
                self.wait(record.measurement.gap)  # in what shows whether this one is to blame

    def waited_to_change(self, number: int, changes: int) -> bool:
        """Waits until a configuration may come into force as the first of so many changes.

        True if it had to wait. What was found off the grid is not waited in, as no interval can run in it.
        """
        waited = False
        while self._in_force.number not in (None, number) and (pause := self._pacing.pause(changes)):
            self._pacing.check_time()
            in_force = self._in_force.number
            stays = (
                in_force is not None
                and not self._pacing.pause()
                and not self._guard.choice.is_worse(in_force)
            )
            self.wait(pause, stays)
            waited = True
        return waited

    def wait(self, pause: str, stays: bool = False) -> None:
        """An interval that tries nothing.

        It runs in the guard's choice if the guard must act, else in what is safe. What is in force `stays`
        where one change is free and more are asked for.
        """
        if self._guard.must_act:
            choice = self._guard.admit(None)
        else:
            in_force = self._in_force.number
            number = in_force if stays and in_force is not None else self._safe_meanwhile()
            self._guard.enter(number)
            choice = Admission(number, "wait", pause)
        self._interval("wait", choice)

    def _safe_meanwhile(self) -> int:
        """What to have in force during a wait: the start, or what a stop would keep if that may change."""
        in_force, safe = self._in_force.number, self._guard.to_keep()
        assert in_force is not None
        if in_force in (self._guard.start, safe, self._in_force.adopted):
            return in_force
        return safe if self._pacing.may_return() else in_force
