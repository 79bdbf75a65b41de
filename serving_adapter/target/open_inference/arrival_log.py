"""The arrivals that a server told, on the reader's clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from serving_adapter.recent_arrivals import MAX_REMEMBERED, Told
from serving_adapter.target.reading import RecentArrivals


class ArrivalLog:
    """Asks for the arrivals since the last look, and keeps the newest of all."""

    def __init__(
        self,
        ask: Callable[[int], Told],
        clock: Callable[[], float] = time.monotonic,
        max_kept: int = MAX_REMEMBERED,
    ) -> None:
        """`ask(known)` tells the arrivals after the first `known`."""
        self._ask, self._clock, self._max_kept = ask, clock, max_kept
        self._known = 0
        self._kept = RecentArrivals(np.empty(0), np.empty(0, np.uint16), -math.inf)

    def read(self) -> RecentArrivals:
        """All that are kept, up to now. In the middle of the call the server looks at its clock."""
        asked_s = self._clock()
        told = self._ask(self._known)
        now_s = (asked_s + self._clock()) / 2
        at_s, new = now_s - 1e-6 * told.ages_us, told.total - self._known
        kept = self._kept
        if new != len(at_s):  # some are missing, or the server has started again
            first_s = float(at_s[0]) if len(at_s) else now_s
            kept = RecentArrivals(np.empty(0), np.empty(0, np.uint16), first_s)
        at_s = np.concatenate([kept.at_s, at_s])[-self._max_kept :]
        rows = np.concatenate([kept.rows, told.rows])[-self._max_kept :]
        complete_since_s = kept.complete_since_s
        if len(kept.at_s) + len(told.rows) > self._max_kept:
            complete_since_s = max(complete_since_s, float(at_s[0]))
        self._known = told.total
        self._kept = RecentArrivals(np.maximum.accumulate(at_s), rows, complete_since_s)
        return self._kept
