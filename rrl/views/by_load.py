"""A run's intervals by load, as costs under unlike loads cannot be compared.

A group holds the intervals within `SAME_LOAD` of a rate. The rate with the most intervals comes first. Under
a closed loop the rate follows from the configuration, so that all intervals are of one load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rrl.guarding.interval_memory import LEAST_RATE_PER_S, SAME_LOAD
from rrl.records import Record


def groups_by_load(records: Sequence[Record], closed_loop: bool = False) -> list[list[Record]]:
    """Intervals that tell a cost, by load; the largest group first."""
    left = [r for r in records if r.learned and math.isfinite(r.cost) and r.cost > 0]
    if closed_loop:
        return [left] if left else []
    groups = []
    while left:
        logs = np.log([max(r.measurement.arrival_rate_per_s, LEAST_RATE_PER_S) for r in left])
        near = np.abs(logs[:, None] - logs[None, :]) <= math.log(SAME_LOAD)
        inside = near[int(near.sum(axis=1).argmax())]
        groups.append([r for r, i in zip(left, inside, strict=True) if i])
        left = [r for r, i in zip(left, inside, strict=True) if not i]
    return groups
