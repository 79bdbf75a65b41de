"""Arrivals replayed from a trace, scaled to a rate. What its file may look like is in `trace_files`.

Counts are scaled by thinning and duplicating single requests. At 2.3 copies each request comes twice, and
with probability 0.3 a third time. Below 1 this is binomial thinning, which keeps a Poisson process one.
Within their bin requests are spread evenly at random. Timestamps are scaled by their clock: every request and
every gap stays, only faster or slower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ARRIVALS_PER_CHUNK = 4096


@dataclass(frozen=True, eq=False)
class CountTrace:
    """Requests counted per bin."""

    counts: np.ndarray  # (bins,) int
    bin_s: float
    copies: float = 1.0  # replayed requests for each one of the trace

    @property
    def mean_rate_per_s(self) -> float:
        return float(self.counts.mean()) * self.copies / self.bin_s

    @property
    def duration_s(self) -> float:
        return len(self.counts) * self.bin_s

    def at_rate(self, rate_per_s: float) -> CountTrace:
        return dataclasses.replace(self, copies=self.copies * rate_per_s / self.mean_rate_per_s)

    def sped_up(self, factor: float) -> CountTrace:
        return dataclasses.replace(self, bin_s=self.bin_s / factor)

    def from_offset(self, offset_s: float) -> CountTrace:
        return dataclasses.replace(self, counts=self.counts[int(offset_s / self.bin_s) :])

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        per_bin = self.mean_rate_per_s * self.bin_s
        bins = max(1, int(ARRIVALS_PER_CHUNK / per_bin))
        whole, part = divmod(self.copies, 1.0)
        for first in range(0, len(self.counts), bins):
            counts = self.counts[first : first + bins]
            arrivals = int(whole) * counts + rng.binomial(counts, part)
            bin_of_arrival = np.repeat(np.arange(first, first + len(counts)), arrivals)
            if bin_of_arrival.size:
                yield np.sort(bin_of_arrival + rng.random(bin_of_arrival.size)) * self.bin_s


@dataclass(frozen=True, eq=False)
class TimestampTrace:
    """The moment of each request, and its size where the trace tells."""

    moments_s: np.ndarray  # (requests,) ascending from 0
    sizes: np.ndarray | None = None  # (requests,) int
    note: str = ""  # one sentence on what was not taken as the file has it

    @property
    def mean_rate_per_s(self) -> float:
        return (len(self.moments_s) - 1) / self.duration_s

    @property
    def duration_s(self) -> float:
        return float(self.moments_s[-1])

    def at_rate(self, rate_per_s: float) -> TimestampTrace:
        return self.sped_up(rate_per_s / self.mean_rate_per_s)

    def sped_up(self, factor: float) -> TimestampTrace:
        return dataclasses.replace(self, moments_s=self.moments_s / factor)

    def from_offset(self, offset_s: float) -> TimestampTrace:
        first = int(np.searchsorted(self.moments_s, offset_s))
        sizes = None if self.sizes is None else self.sizes[first:]
        moments_s = self.moments_s[first:]
        return dataclasses.replace(self, moments_s=moments_s - moments_s[:1], sizes=sizes)

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for first in range(0, len(self.moments_s), ARRIVALS_PER_CHUNK):
            yield self.moments_s[first : first + ARRIVALS_PER_CHUNK]


Trace = CountTrace | TimestampTrace
