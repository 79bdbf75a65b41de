"""How fast a run may go: when changes are allowed, and when its time is over.

Its time is the monotonic clock's. Changes are counted by the wall clock, as journals are, which somebody may
set: the changes made so far are then set with it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from rrl.journal import Journal
from rrl.tuning.change_limits import HOUR_S, ChangeLimits
from rrl.tuning.settings import TuningSettings

RECENT_CHANGES = 10  # the slowest of these tells how long a change may take
# How many intervals the longest one lasts. One that settles long lasts three and `settle_s`; the rest is time
# to change back.
MAX_INTERVAL_LENGTHS = 4.0

MAX_CLOCK_DRIFT_S = 1.0  # between two looks; what goes beyond it was set


class TimeUp(Exception):
    """The run's time is over while it waits. The text may say why."""


class Pacing:
    """Answers whether the run may change the configuration now, and whether it has time to go on."""

    def __init__(
        self,
        limits: ChangeLimits,
        journal: Journal,
        settings: TuningSettings,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        """`clock` tells Unix time, which may be set; `monotonic` goes on whatever happens to it."""
        self.limits = limits
        self.end_s = math.inf  # by the monotonic clock
        self._journal, self._settings = journal, settings
        self._clock, self._monotonic = clock, monotonic
        self._apart_s = clock() - monotonic()
        self._applied_ms: deque[float] = deque(maxlen=RECENT_CHANGES)
        self._looked_at = 0  # records of the journal

    def begin(self) -> None:
        """The run's time begins now."""
        self.limits.none_after(self.now_s())
        self.end_s = self._monotonic() + self._settings.duration_s

    def now_s(self) -> float:
        """Unix time. Where the clock was set since it was asked last, the changes so far are set with it."""
        now_s = self._clock()
        set_by_s = now_s - self._monotonic() - self._apart_s
        if abs(set_by_s) > MAX_CLOCK_DRIFT_S:
            self.limits.shift(set_by_s)
            self._apart_s += set_by_s
        return now_s

    def pause(self, changes: int = 1) -> str:
        """Why so many changes are not allowed now, and when they are; empty if they are."""
        return self.limits.pause(self.now_s(), changes, self.undone_within_s)

    def pause_before_exploring(self) -> str:
        """As `pause`, for all the changes that must be free before something is tried.

        These are the change itself and the way back. Where the run ends before they were free again, those of
        the validation must be free as well.
        """
        ends_soon = self._search_end_s - self._monotonic() < HOUR_S
        return self.pause(2 + (2 * self._settings.validation if ends_soon else 0))

    def may_return(self) -> bool:
        """True if a change back to what is safe is allowed."""
        return self.limits.may_return(self.now_s(), self.undone_within_s)

    @property
    def undone_within_s(self) -> float:
        """How long after a change it can be changed back, at the latest.

        Both changes are taken to last as long as the slowest of late.
        """
        records = self._journal.records
        if self._looked_at > len(records):  # it was shortened
            self._looked_at = max(0, len(records) - RECENT_CHANGES)
        new = (r.apply_ms for r in records[self._looked_at :])
        self._applied_ms.extend(ms for ms in new if ms > 0)  # NaN, 0: no change
        self._looked_at = len(records)
        slowest_ms = max(self._applied_ms, default=0.0)
        return MAX_INTERVAL_LENGTHS * self._interval_s + 2 * slowest_ms / 1e3

    @property
    def is_over(self) -> bool:
        return self._monotonic() >= self.end_s

    @property
    def search_is_over(self) -> bool:
        """True once the validation must begin to be over in time."""
        return self._monotonic() >= self._search_end_s

    @property
    def has_time_for_a_pair(self) -> bool:
        """True if a turn of the best and one of the start are over in time."""
        return self._monotonic() + 2 * self._interval_s < self.end_s

    def check_time(self) -> None:
        if self.is_over:
            raise TimeUp

    @property
    def _search_end_s(self) -> float:
        return self.end_s - 2 * self._settings.validation * self._interval_s

    @property
    def _interval_s(self) -> float:
        return self._journal.header.interval_s
