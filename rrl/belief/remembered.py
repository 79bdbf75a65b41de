"""What is remembered of past intervals, and what is forgotten.

What was seen long ago of one configuration is kept beside what was seen lately, ever farther apart in the
past. So a slow spell does not become what is usual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rrl.belief import drift

# So many intervals are remembered, as long as their rows are of so many entries.
MAX_INTERVALS = 80
MAX_ENTRIES = 160
# The newest intervals of one configuration that are remembered.
MAX_INTERVALS_ALIKE = 6
# None of them is older, in intervals.
MAX_AGE = 24
# What every interval tells anew is usually the median over so many of them.
USUAL_INTERVALS = 20


class SeenInterval(NamedTuple):
    """The rows of one interval."""

    time: int  # the interval's number since the first
    configuration: tuple[int, ...]
    entries: np.ndarray  # (rows,) int, each once
    log_times: np.ndarray  # (rows,)
    variances: np.ndarray  # (rows,)


class Remembered:
    """Intervals in their order."""

    def __init__(self) -> None:
        self._intervals: list[SeenInterval] = []

    def __bool__(self) -> bool:
        return bool(self._intervals)

    def add(self, interval: SeenInterval) -> None:
        """Takes in the newest, and forgets what is told least by."""
        self._intervals.append(interval)
        alike = [each for each in self._intervals if each.configuration == interval.configuration]
        if len(alike) > MAX_INTERVALS_ALIKE:  # One goes, so that others are not forgotten.
            forgotten = alike[_least_told([interval.time - each.time for each in alike])]
            self._intervals = [each for each in self._intervals if each is not forgotten]
        while len(self._intervals) > MAX_INTERVALS or self._entries_seen() > MAX_ENTRIES:
            del self._intervals[0]

    def rows(self) -> tuple[drift.Rows, np.ndarray]:
        """All rows, and the (T,) times of their intervals."""
        kept = self._intervals
        position = np.repeat(np.arange(len(kept)), [len(each.entries) for each in kept])
        entries, log_times, variances = (
            np.concatenate([getattr(each, name) for each in kept])
            for name in ("entries", "log_times", "variances")
        )
        return drift.Rows(position, entries, log_times, variances), np.array([e.time for e in kept], float)

    def _entries_seen(self) -> int:
        return len(set().union(*(each.entries.tolist() for each in self._intervals)))


def _least_told(ages: Sequence[int]) -> int:
    """Which of the intervals of these descending ages to forget: the one whose neighbours are nearest to it.

    Ages are compared as logarithms. The newest stays, and the oldest until it is too old.
    """
    if ages[0] > MAX_AGE:
        return 0
    logs = [math.log1p(age) for age in ages]
    return min(range(1, len(ages) - 1), key=lambda k: logs[k - 1] - logs[k + 1])
