"""How sure a mean over intervals is: Student's t interval of their logarithms, as latencies are skewed.

| symbol | here | meaning |
|---|---|---|
| x̄ | `Estimate.value` | the mean of n intervals, weighted by their completions; half of one counts as half |
| ν, d | `Noise` | relative standard deviation of one interval, and the degrees of freedom behind it |
| x̄ exp(± t ν / √n) | `low`, `high` | t: quantile of Student's distribution of d degrees of freedom |

How much one interval scatters is estimated from all intervals of its configuration, or of several, and from
what is usual for a server: see `gain.pooled_noise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rrl.guarding.gain import Noise, students_t


class Estimate(NamedTuple):
    """A mean and its confidence interval. NaN where nothing was observed."""

    value: float
    low: float
    high: float
    intervals: int  # n

    @property
    def known(self) -> bool:
        return math.isfinite(self.value)


NO_ESTIMATE = Estimate(math.nan, math.nan, math.nan, 0)


def mean_interval(
    values: Sequence[float], weights: Sequence[float], noise: Noise, shares: Sequence[float] | None = None
) -> Estimate:
    """The weighted mean of figures that are not negative. Those not observed (NaN) are left out.

    `shares` says for which part of an interval each was measured, by default for all of it.
    """
    x, w = np.asarray(values, dtype=float), np.asarray(weights, dtype=float)
    seen = np.isfinite(x) & (w > 0)
    if not seen.any():
        return NO_ESTIMATE
    mean = float(np.average(x[seen], weights=w[seen]))
    n = float(seen.sum() if shares is None else np.asarray(shares, dtype=float)[seen].sum())
    factor = math.exp(students_t(noise.freedom) * noise.relative / math.sqrt(n))
    return Estimate(mean, mean / factor, mean * factor, int(seen.sum()))
