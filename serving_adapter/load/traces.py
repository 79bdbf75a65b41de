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
MOST_PER_CHUNK = 1 << 16  # arrivals; bins with more come in parts, as nothing is sent while they are drawn


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
        whole_bins = int(offset_s / self.bin_s + 1e-9)  # 0.3 / 0.1 is less than 3
        return dataclasses.replace(self, counts=self.counts[whole_bins:])

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        per_bin = self.mean_rate_per_s * self.bin_s
        bins = max(1, int(ARRIVALS_PER_CHUNK / per_bin))
        whole, part = divmod(self.copies, 1.0)
        for first in range(0, len(self.counts), bins):
            counts = self.counts[first : first + bins]
            arrivals = int(whole) * counts + rng.binomial(counts, part)
            if arrivals.sum() > MOST_PER_CHUNK:
                for bin_number, number in enumerate(arrivals.tolist(), start=first):
                    yield from self._in_parts(rng, bin_number, number)
                continue
            bin_of_arrival = np.repeat(np.arange(first, first + len(counts)), arrivals)
            if bin_of_arrival.size:
                yield np.sort(bin_of_arrival + rng.random(bin_of_arrival.size)) * self.bin_s

    def _in_parts(self, rng: np.random.Generator, bin_number: int, number: int) -> Iterator[np.ndarray]:
        """So many arrivals within a bin, by equal parts of it."""
        parts = -(-number // ARRIVALS_PER_CHUNK) or 1
        for part, of_part in enumerate(rng.multinomial(number, np.full(parts, 1 / parts))):
            if of_part:
                yield (bin_number + (part + np.sort(rng.random(of_part))) / parts) * self.bin_s


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
