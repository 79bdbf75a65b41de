"""Latencies counted by bucket, as servers, taps and loads do it, and how such counts are read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

import numpy as np

# The bounds are 8% apart, so a percentile interpolated inside a bucket is off by at most 4%.
BUCKET_BOUNDS_S: tuple[float, ...] = tuple(float(f"{x:.4g}") for x in 50e-6 * 1.08 ** np.arange(212))
BUCKETS = len(BUCKET_BOUNDS_S) + 1


def bucket_of(value_s: float) -> int:
    """Bucket i has the durations in (bound[i-1], bound[i]], the last all above."""
    return bisect_left(BUCKET_BOUNDS_S, value_s)


class BucketHistogram:
    """Durations counted by bucket."""

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        self.counts[bucket_of(value_s)] += 1
        self.sum_s += value_s

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """Counts up to each upper bound, as Prometheus wants them."""
        bounds = (*map(repr, BUCKET_BOUNDS_S), "+Inf")
        yield from zip(bounds, accumulate(self.counts), strict=True)


class CumulativeHistogram(NamedTuple):
    """Cumulative counts of a duration: `cumulative[i]` observations were at most `bounds_s[i]` long."""

    bounds_s: tuple[float, ...]  # ascending; the last is infinite
    cumulative: tuple[int, ...]
    sum_s: float
