"""Bootstrap intervals over seeds: percentiles of a statistic of seeds drawn with replacement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

DRAWS = 2000
LEVEL = 0.95


class BootstrapInterval(NamedTuple):
    estimate: float
    low: float
    high: float

    def text(self, format_spec: str = ".3g", unit: str = "") -> str:
        """E.g. `61 % [55, 66]`."""
        return f"{self.estimate:{format_spec}}{unit} [{self.low:{format_spec}}, {self.high:{format_spec}}]"


def _draws(count: int) -> np.ndarray:
    """(DRAWS, count) int: the same for the same number of seeds, so that every run agrees."""
    return np.random.default_rng(0).integers(count, size=(DRAWS, count))


def bootstrap_mean(values: np.ndarray) -> BootstrapInterval:
    """The mean of (seeds,) values and its 95 % interval; NaN where there are no values."""
    values = np.asarray(values, dtype=float)
    means = values[_draws(len(values))].mean(axis=1)
    return _interval(float(values.mean()), means)


def bootstrap_median(values: np.ndarray) -> BootstrapInterval:
    """The median of (seeds,) values (infinity allowed) and its 95 % interval."""
    values = np.asarray(values, dtype=float)
    return _interval(_median(values), np.array([_median(v) for v in values[_draws(len(values))]]))


def bootstrap_change(ours: np.ndarray, theirs: np.ndarray) -> BootstrapInterval:
    """mean(ours) / mean(theirs) - 1 over (seeds,) pairs of runs. Seeds are drawn in pairs."""
    ours, theirs = np.asarray(ours, dtype=float), np.asarray(theirs, dtype=float)
    draws = _draws(len(ours))
    changes = ours[draws].mean(axis=1) / theirs[draws].mean(axis=1) - 1.0
    return _interval(float(ours.mean() / theirs.mean() - 1.0), changes)


def bootstrap_band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, low and high, each (times,), of (seeds, times) curves. The mean leaves NaNs out."""
    curves = np.asarray(curves, dtype=float)
    means = np.nanmean(curves[_draws(len(curves))[:500]], axis=1)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means, [tail, 100 - tail], axis=0)
    return np.nanmean(curves, axis=0), low, high


def _interval(estimate: float, draws: np.ndarray) -> BootstrapInterval:
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(draws, [tail, 100 - tail], method="nearest")
    return BootstrapInterval(estimate, float(low), float(high))


def _median(values: np.ndarray) -> float:
    """The middle value. It is the higher of two, so that infinity (never) is not averaged."""
    return float(np.sort(values)[len(values) // 2])
