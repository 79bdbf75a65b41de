"""A bounded summary of when requests arrived, and how bursty they came.

| symbol | here | meaning |
|---|---|---|
| n_k | `counts` | arrivals in slice k of an interval that is cut into equal slices |
| d_k | `durations_s` | how long slice k is; n_k is expected to be λ d_k, with λ = Σ n_k / Σ d_k |
| I | `index_of_dispersion` | var(n_k) / mean(n_k): 1 of Poisson arrivals, 0 of regular ones, more of bursts |
"""

from __future__ import annotations

import math

import numpy as np

from rrl.measurement import MAX_POINTS, ArrivalSummary

MIN_SLICES = 5  # of unlike lengths, of which a dispersion is told
SLICES = 16  # of an interval, in which arrivals are counted
MIN_REQUESTS = 20  # of which a dispersion is told
OFFSET_DECIMALS = 4  # of a second


def summarised(offsets_s: np.ndarray, items: np.ndarray | None = None) -> ArrivalSummary:
    """The summary of requests that arrived at these offsets, ascending, with so many items each (None: one).

    Where there are more than `MAX_POINTS`, those of the same slice of time become one point. A burst stays a
    burst, then, however long the silence around it.
    """
    offsets_s = np.round(offsets_s, OFFSET_DECIMALS)
    n = len(offsets_s)
    if n <= MAX_POINTS:
        requests = (1,) * n
        held = requests if items is None else tuple(np.asarray(items).astype(np.int64).tolist())
        return ArrivalSummary(tuple(offsets_s.tolist()), requests, held)
    since_s = offsets_s - offsets_s[0]
    slices = np.minimum(since_s * (MAX_POINTS / max(since_s[-1], 1e-9)), MAX_POINTS - 1).astype(np.int64)
    first = np.flatnonzero(np.diff(slices, prepend=-1))
    counts = np.diff(first, append=n)
    in_groups = counts if items is None else np.add.reduceat(np.asarray(items).astype(np.int64), first)
    return ArrivalSummary(tuple(offsets_s[first].tolist()), tuple(counts.tolist()), tuple(in_groups.tolist()))


def dispersion_of(summary: ArrivalSummary, duration_s: float) -> float:
    """I of the requests of an interval so long; NaN for fewer than `MIN_REQUESTS`.

    A group counts where its first request arrived, so that of many requests I is some percent too high.
    """
    return dispersion_of_times(np.array(summary.offsets_s), duration_s, np.array(summary.requests))


def dispersion_of_times(
    offsets_s: np.ndarray, duration_s: float, requests: np.ndarray | None = None
) -> float:
    """I of requests that arrived at these offsets in an interval so long; NaN for fewer than `MIN_REQUESTS`.

    `requests` arrived at each (None: one).
    """
    total = len(offsets_s) if requests is None else int(requests.sum())
    if not duration_s > 0 or total < MIN_REQUESTS:
        return math.nan
    slices = np.clip((offsets_s * (SLICES / duration_s)).astype(np.int64), 0, SLICES - 1)
    return index_of_dispersion(np.bincount(slices, weights=requests, minlength=SLICES))


def index_of_dispersion(counts: np.ndarray) -> float:
    """I of the counts of slices of one length; NaN where nothing arrived."""
    mean = float(np.mean(counts))
    return float(np.var(counts, ddof=1)) / mean if mean > 0 else math.nan


def dispersion_between_looks(counts: np.ndarray, durations_s: np.ndarray) -> float:
    """I of counts n_k in slices of unlike lengths d_k: Σ (n_k - λ d_k)² / (λ d_k), over their number less 1.

    For equal slices that is the variance over the mean. NaN for fewer than `MIN_SLICES` of them, and for
    fewer than `MIN_REQUESTS`.
    """
    if len(counts) < MIN_SLICES or counts.sum() < MIN_REQUESTS:
        return math.nan
    expected = counts.sum() * durations_s / durations_s.sum()
    return float(np.sum((counts - expected) ** 2 / expected)) / (len(counts) - 1)
