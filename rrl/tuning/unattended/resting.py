"""Intervals in which a run tries nothing: in silence, or in what somebody else has put in force."""

from __future__ import annotations

from contextlib import suppress

from rrl.guarding.guard import Admission, Guard
from rrl.interval import Watch
from rrl.tuning.in_force import InForce
from rrl.tuning.pacing import Pacing
from rrl.tuning.record_writer import RecordWriter
from rrl.tuning.scheduled import RunInterval, Scheduled
from rrl.tuning.set_by_others import TakenOver
from rrl.tuning.unattended.foreign_changes import STANDS_BACK, ForeignChanges
from rrl.tuning.unattended.watching import Watching


class Resting:
    """Runs them."""

    def __init__(
        self,
        interval: RunInterval,
        guard: Guard,
        scheduled: Scheduled,
        in_force: InForce,
        pacing: Pacing,
        foreign: ForeignChanges,
        records: RecordWriter,
    ) -> None:
        self._interval, self._guard, self._scheduled = interval, guard, scheduled
        self._in_force, self._pacing, self._foreign, self._records = in_force, pacing, foreign, records

    def in_silence(self, watching: Watching) -> None:
        """An interval in what is safe while no requests come, where a change to it is allowed."""
        safe, in_force = watching.in_silence(), self._in_force.number
        number = safe.number if in_force is None or self._pacing.may_return() else in_force
        self._guard.enter(number)
        self._interval("wait", Admission(number, "idle", safe.reason))
        watching.silence_is_over()

    def stand_back(self) -> None:
        """An interval in what others have set, whatever it is."""
        start = self._guard.start  # as a record must name a configuration of the grid
        self._guard.enter(start)
        self._interval("wait", Admission(start, "wait", STANDS_BACK), Watch(hands_off=True))

    def observe(self) -> None:
        """Where others have set another than the start: intervals in that, until one tells something."""
        while self._records.observation is None:
            with suppress(TakenOver):
                if self._foreign.stands_back or self._in_force.number is None:
                    self.stand_back()
                else:
                    self._scheduled.measured("wait", self._in_force.number)
