"""Runs of two agents under the same requests, compared machine by machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev


def geometric_mean_of(log_ratios: Sequence[float]) -> tuple[float, float]:
    """The geometric mean of ratios, and two standard errors of its ln; NaN of a single one."""
    error = 2 * stdev(log_ratios) / math.sqrt(len(log_ratios)) if len(log_ratios) > 1 else math.nan
    return math.exp(mean(log_ratios)), error
