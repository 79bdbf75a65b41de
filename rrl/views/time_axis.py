"""When the intervals of a run began and ended, as its pictures show them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rrl.records import Record

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
