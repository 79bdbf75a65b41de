"""How often the target was lost under each configuration, and whether that was chance. Pure logic.

A server that is restarted is lost under whatever is in force. So losses speak against a configuration only
where it met more of them than chance gives to as many intervals.

| symbol | here | meaning |
|---|---|---|
| N, K | | intervals of the run, and those in which the target was lost |
| n, k | | the same under one configuration |
| P(X >= k) | `_chance` | how probable so many are, where losses hit intervals at random (hypergeometric) |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln

from rrl.records import Record

MIN_LOSSES = 2  # one may always be chance


@dataclass
class Losses:
    """Counts the intervals under each configuration, and those in which the target was lost."""

    _intervals: int = 0
    _ran: Counter[int] = field(default_factory=Counter)  # intervals under each
    _lost: Counter[int] = field(default_factory=Counter)
    _in_a_row: Counter[int] = field(default_factory=Counter)  # since each served last

    @classmethod
    def of(cls, records: Iterable[Record]) -> Losses:
        """Those in the intervals of a journal."""
        losses = cls()
        for record in records:
            losses.count_interval(record.number)
            if record.measurement.gap and not record.measurement.gap_by_others:
                losses.lost(record.number)
            elif record.counted:
                losses.served(record.number)
        return losses

    def count_interval(self, number: int) -> None:
        self._intervals += 1
        self._ran[number] += 1

    def lost(self, number: int) -> None:
        self._lost[number] += 1
        self._in_a_row[number] += 1

    def served(self, number: int) -> None:
        self._in_a_row[number] = 0

    def in_a_row(self, number: int) -> int:
        """How often the target was lost under it since it served last."""
        return self._in_a_row[number]

    def beyond_chance(self, chance: float) -> frozenset[int]:
        """The configurations whose losses are less probable than that."""
        suspects = [number for number, lost in self._lost.items() if lost >= MIN_LOSSES]
        return frozenset(number for number in suspects if self._chance(number) < chance)

    def _chance(self, number: int) -> float:
        total, lost = self._intervals, self._lost.total()
        own, of_own = self._ran[number], self._lost[number]
        k = np.arange(max(of_own, lost - (total - own)), min(own, lost) + 1)
        ways = _log_ways(own, k) + _log_ways(total - own, lost - k) - _log_ways(total, lost)
        return float(np.exp(ways).sum())


def _log_ways(among: int, chosen: int | np.ndarray) -> np.ndarray:
    """ln of how many ways there are to choose so many. Of months of intervals the number itself is huge."""
    return np.asarray(gammaln(among + 1) - gammaln(chosen + 1) - gammaln(among - chosen + 1))
