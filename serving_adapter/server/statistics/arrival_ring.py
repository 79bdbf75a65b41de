"""The newest arrivals at one model: a fixed number of bytes, however many requests come."""

from __future__ import annotations

from array import array

import numpy as np

from serving_adapter.recent_arrivals import LONGEST_AGE_US, MAX_REMEMBERED, Told


class ArrivalRing:
    """Remembers when the newest requests came and how many rows each held."""

    def __init__(self, capacity: int = MAX_REMEMBERED) -> None:
        self.total = 0  # arrivals so far
        self._capacity = capacity
        self._at_ns = array("q", bytes(8 * capacity))  # quicker to write one value of than NumPy's arrays
        self._rows = array("H", bytes(2 * capacity))

    def record(self, at_ns: int, rows: int) -> None:
        place = self.total % self._capacity
        self._at_ns[place] = at_ns
        self._rows[place] = rows
        self.total += 1

    def since(self, known: int, now_ns: int) -> Told:
        """The arrivals after the first `known`; all that are remembered if there were never so many."""
        first = max(known if known <= self.total else 0, self.total - self._capacity)
        places = np.arange(first, self.total) % self._capacity
        ages_us = (now_ns - np.frombuffer(self._at_ns, np.int64)[places]) // 1000
        rows = np.frombuffer(self._rows, np.uint16)[places]
        return Told(self.total, np.clip(ages_us, 0, LONGEST_AGE_US), rows)
