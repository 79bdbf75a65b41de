"""Counters that never fall, of processes and nodes that come and go.

A node's page tells what every process on it has counted. What a process counted stays there after it has
ended, until the node's own agent ends. Then the page is gone, or begins again at 0, and what was counted
stays in the ledger.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from serving_adapter.latency_histogram import CumulativeHistogram
from serving_adapter.target.ray_serve.metrics_text import PROCESS, PageSample, Where

_MS = 1e-3


@dataclass
class _Counter:
    """One series of one page."""

    labels: Mapping[str, str]
    earlier: float = 0.0  # before it last began again
    last: float = 0.0

    @property
    def value(self) -> float:
        return self.earlier + self.last


class CounterLedger:
    """The sums of all that the pages of a cluster have ever told."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[tuple[str, str], _Counter]] = defaultdict(dict)  # by name

    def enter(self, page: str, told: Iterable[PageSample]) -> None:
        """What a page tells now."""
        for each in told:
            counter = self._counters[each.name].setdefault((page, each.series), _Counter(each.labels))
            if each.value < counter.last:
                counter.earlier += counter.last
            counter.last = each.value

    def sum(self, name: str, where: Where) -> float:
        """Over all series of a name that count."""
        return math.fsum(each.value for each in self._counters[name].values() if where(each.labels))

    def count(self, name: str, where: Where) -> int:
        return round(self.sum(name, where))

    def histogram(self, name: str, where: Where) -> CumulativeHistogram | None:
        """Of milliseconds, in seconds; None where there is none, or where processes have other bounds."""
        counts: dict[float, float] = defaultdict(float)
        numbers: dict[float, int] = defaultdict(int)
        for each in self._counters[f"{name}_bucket"].values():
            if where(each.labels):
                bound_s = _MS * float(each.labels.get("le", "nan"))
                counts[bound_s] += each.value
                numbers[bound_s] += 1
        bounds_s = tuple(sorted(counts))
        if not bounds_s or not math.isinf(bounds_s[-1]) or len(set(numbers.values())) > 1:
            return None
        cumulative = tuple(round(counts[bound_s]) for bound_s in bounds_s)
        if any(later < earlier for earlier, later in pairwise(cumulative)):
            return None
        return CumulativeHistogram(bounds_s, cumulative, _MS * self.sum(f"{name}_sum", where))

    def marks(self) -> dict[str, float]:
        """A number for each process, which grows whenever it has told what it counted."""
        marks: dict[str, float] = defaultdict(float)
        for counters in self._counters.values():
            for each in counters.values():
                marks[each.labels.get(PROCESS, "")] += each.value
        return marks
