"""When a run's intervals began and ended, as its pictures show them, and how they show a long run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rrl.records import Record

MAX_DOTS = 400  # A longer run is drawn in as many spans, each with its median and its reach.
MAX_PAUSE_INTERVALS = 4  # A little longer than an interval that settles long.


def ends_min(records: Sequence[Record], interval_s: float) -> np.ndarray:
    """(n,) the end of each interval. A pause, as before a resumed run, counts as four intervals at most.

    Before a resume, intervals may have been longer than `interval_s`.
    """
    walls_s = np.array([r.wall_time_s for r in records])
    if len(walls_s) == 0:
        return walls_s
    lengths_s = np.maximum(interval_s, [r.measurement.duration_s if r.counted else 0.0 for r in records])
    steps_s = np.clip(
        np.diff(walls_s, prepend=walls_s[0] - interval_s), 1e-3, MAX_PAUSE_INTERVALS * lengths_s
    )
    return np.asarray(np.cumsum(steps_s) / 60.0)


def is_long(records: Sequence[Record]) -> bool:
    """True if a run's intervals are too many to be shown one by one."""
    return len(records) > MAX_DOTS


def medians(middles: np.ndarray, values: np.ndarray) -> Iterator[tuple[float, float]]:
    """(x, median) of each span; of a run that is not long, of each interval."""
    for span in _spans(len(values)):
        seen = values[span][np.isfinite(values[span])]
        yield float(middles[span].mean()), float(np.median(seen)) if len(seen) else math.nan


def reach(middles: np.ndarray, values: np.ndarray) -> Iterator[tuple[float, float, float]]:
    """(x, lowest, highest) of the spans of a long run."""
    for span in _spans(len(values)):
        seen = values[span][np.isfinite(values[span]) & (values[span] > 0)]
        if len(values) > MAX_DOTS and len(seen):
            yield float(middles[span].mean()), float(seen.min()), float(seen.max())


def _spans(count: int) -> list[slice]:
    """As many neighbours to a span as there are more intervals than can be shown."""
    many = math.ceil(count / MAX_DOTS)
    return [slice(i, i + many) for i in range(0, count, many)]
