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
        rates_per_s = [r.measurement.arrival_rate_per_s for r in left]
        inside = _near_the_usual(np.log(np.maximum(rates_per_s, LEAST_RATE_PER_S)))
        groups.append([r for r, i in zip(left, inside, strict=True) if i])
        left = [r for r, i in zip(left, inside, strict=True) if not i]
    return groups


def _near_the_usual(logs: np.ndarray) -> np.ndarray:
    """(n,) bool: which rates are near the one that has the most near it; their logarithms are given."""
    ordered, reach = np.sort(logs), math.log(SAME_LOAD)
    many = np.searchsorted(ordered, logs + reach, "right") - np.searchsorted(ordered, logs - reach, "left")
    return np.asarray(np.abs(logs - logs[many.argmax()]) <= reach)
