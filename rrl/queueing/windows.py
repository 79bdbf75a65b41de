"""Arrivals to replay: stretches of them, one after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SHORTENED_SLICES = 64  # of a stretch that is made shorter, of each of which a part is kept


class Windows(NamedTuple):
    """Stretches of arrivals, one after the other, of any length each."""

    arrival_s: np.ndarray  # (requests of all windows,) ascending
    bounds: np.ndarray  # (windows + 1,) int: where each begins among them, and where the last ends
    edge_s: np.ndarray  # (windows + 1,): when each begins, and when the last ends
    slowness: np.ndarray  # (windows,): what all service times are multiplied by in each
    together: int  # so many carry over what waits from one to the next; the last is served to its end

    def faster(self, factor: float) -> Windows:
        """The same arrivals at so many times their rate."""
        return self._replace(arrival_s=self.arrival_s / factor, edge_s=self.edge_s / factor)


def as_windows(
    stretches: list[tuple[np.ndarray, float]], together: int = 1, slowness: np.ndarray | None = None
) -> Windows:
    """Stretches given by offsets and duration, one after the other."""
    slowness = np.ones(len(stretches)) if slowness is None else slowness
    edge_s = np.concatenate([[0.0], np.cumsum([duration_s for _, duration_s in stretches])])
    bounds = np.concatenate([[0], np.cumsum([len(offsets_s) for offsets_s, _ in stretches])]).astype(np.int64)
    arrival_s = np.concatenate(
        [begin_s + offsets_s for begin_s, (offsets_s, _) in zip(edge_s[:-1], stretches, strict=True)]
    )
    return Windows(np.maximum.accumulate(arrival_s), bounds, edge_s, slowness, together)


def stretches_of(windows: Windows, kept: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """Offsets and durations of some of the stretches."""
    bounds, edge_s = windows.bounds, windows.edge_s
    return [
        (windows.arrival_s[bounds[k] : bounds[k + 1]] - edge_s[k], float(edge_s[k + 1] - edge_s[k]))
        for k in kept.tolist()
    ]


def shortened(offsets_s: np.ndarray, duration_s: float, most: int) -> tuple[np.ndarray, float]:
    """Offsets and duration of a stretch of at most so many requests that is like this one.

    Of each slice of time the same share is kept, from its first request on. So requests come at the same
    rates for a shorter time, and as unevenly. Where many come at one moment, whole slices are left out. A
    queue that grows throughout a burst which is longer than such a part grows for that share of the time
    alone.
    """
    count = len(offsets_s)
    if count <= most:
        return offsets_s, duration_s
    share, slice_s = most / count, duration_s / SHORTENED_SLICES
    slices = np.minimum((offsets_s / slice_s).astype(np.int64), SHORTENED_SLICES - 1)
    firsts_s = offsets_s[np.searchsorted(slices, slices)]
    since_s = offsets_s - firsts_s
    inside = since_s < share * slice_s
    kept_s = (share * slice_s * slices + since_s)[inside]
    taken = _slices_taken(np.bincount(slices[inside], minlength=SHORTENED_SLICES), most)
    return kept_s[taken[slices[inside]]][:most], share * duration_s


def _slices_taken(requests: np.ndarray, most: int) -> np.ndarray:
    """(slices,) bool: which, spread evenly, with less than a slice beyond so many requests in all."""
    if requests.sum() < most + requests.max():
        return np.ones(SHORTENED_SLICES, bool)
    due = (np.cumsum(requests) - requests) * (most / requests.sum())
    taken, so_far = np.zeros(SHORTENED_SLICES, bool), 0
    for k in range(SHORTENED_SLICES):
        taken[k] = so_far <= due[k]
        so_far += int(requests[k]) * int(taken[k])
    return taken
