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
from pathlib import Path

import numpy as np

from serving_adapter.load import trace_files

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


def read_trace(
    path: Path,
    rate_per_s: float | None = None,
    *,
    speed_up: float | None = None,
    offset_s: float = 0.0,
    bin_s: float | None = None,
    time_unit: str | None = None,
) -> Trace:
    """A trace from a file, replayed from `offset_s` (of the trace's own clock) to its end.

    `rate_per_s` is the mean over the part replayed (default: as recorded). `speed_up` quickens the clock
    of a trace of counts, the rate kept; the clock of timestamps is what their rate sets. `bin_s` and
    `time_unit` are what the file does not tell. ValueError, in one sentence, where nothing can be replayed.
    """
    found = trace_files.read(path, bin_s, time_unit)
    trace: Trace
    if isinstance(found, trace_files.TraceCounts):
        trace = CountTrace(found.counts, found.bin_s)
    else:
        trace = TimestampTrace(found.moments_s, found.sizes, found.note)
    if not 0 <= offset_s < (trace.duration_s or np.inf):
        raise ValueError(f"{path}: the offset must be within its {trace.duration_s:g} s, got {offset_s:g} s")
    trace = trace.from_offset(offset_s)
    if not _requests(trace) > 1:
        raise ValueError(
            f"{path} holds fewer than two requests after {offset_s:g} s; nothing can be replayed"
        )
    if isinstance(trace, TimestampTrace) and trace.duration_s == 0:
        raise ValueError(f"{path}: all requests come at the same moment, so that they have no rate to scale")
    if speed_up is not None:
        if isinstance(trace, TimestampTrace) and rate_per_s is not None:
            raise ValueError(f"{path} holds timestamps, whose clock the rate sets: leave the speed-up out")
        if not 0 < speed_up < np.inf:
            raise ValueError(f"the speed-up of a trace must be above 0, got {speed_up:g}")
        trace = trace.sped_up(speed_up)
    return trace if rate_per_s is None else trace.at_rate(rate_per_s)


def _requests(trace: Trace) -> int:
    return int(trace.counts.sum()) if isinstance(trace, CountTrace) else len(trace.moments_s)
