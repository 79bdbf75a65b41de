"""The rate of the load: a Kalman filter on its root, whose counting noise is the same at all rates.

It lets go when the load jumps, and tells how much of a distance from the mean lasts.

| symbol | here | meaning |
|---|---|---|
| y_t | `counted` | root of the rate counted in interval t, of T seconds |
| x_t | `roots` | root of the rate expected when interval t was over |
| P | `variance` | of the last of them |
| λ | `jumped` | probability that the load has jumped in the newest interval |
| I | `dispersion` | index of dispersion of counts: 1 for Poisson arrivals, more for bursts |
| v | `noise` | variance of y_t: I/4T, or what is usual between intervals if that is more |
| q | `WALK_SD`² x² / 4 | what the load itself may drift by in an interval |
| m_t | `mean` | root of the mean rate of the intervals until t |
| w | `lasting` | how much of x - m is left an interval later |

A surprise beyond √2 of its standard deviations is taken in part for a jump: half of its excess is added to P,
so that the newest interval counts for more, and a great surprise for nearly all. Where the load swings in
most intervals, that is the noise which is usual, and no jump. After a surprise the rate of now is that of the
newest interval with probability λ, else what it was.

Where the load stays at rates that it has come to, w is near 1. Where it swings and comes back, w is near 0.
It is the slope of y_(t+1) - m_t over x_t - m_t. The distance of now counts as one that lasts, and chance, a
squared distance of v, as one that does not. No distance counts for more than that of now, or than is usual:
one burst, or one lull, does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

WALK_SD = 0.03  # of ln of the rate, in an interval
LEAST_SURPRISES = 4
MEDIAN_OF_SQUARE = 0.455  # of a normal variable of variance 1
LEAST_RATE_PER_S = 0.01
MAX_JUMPED = 11 / 12  # one interval alone never settles that the load is another


@dataclass(frozen=True)
class FilteredRate:
    """After the last interval; NaN before the first. The fields are those of the table above."""

    roots: np.ndarray  # (intervals,)
    variance: float
    noise: float
    usual: float = math.nan  # root of the rate if the load has not jumped in the newest interval
    newest: float = math.nan  # and if it has
    jumped: float = 0.0
    mean: float = math.nan
    lasting: float = 1.0

    @classmethod
    def after(cls, counts: Sequence[int], durations_s: Sequence[float], dispersion: float) -> FilteredRate:
        """After intervals of so many arrivals each, at least one, given the noise that is usual by now.

        What was taken for a jump is none where such swings turn out usual.
        """
        counted = np.sqrt(np.array(counts) / durations_s)
        least = noise = dispersion / (4 * median(durations_s))
        for _ in range(2):
            found, surprises = _filtered(counted.tolist(), noise)
            if len(surprises) >= LEAST_SURPRISES:
                noise = max(least, median(surprises) / MEDIAN_OF_SQUARE - found.variance)
        means = np.sqrt(np.cumsum(counts) / np.cumsum(durations_s))
        return replace(
            found, noise=noise, mean=float(means[-1]), lasting=_lasting(found.roots, counted, means, noise)
        )

    @property
    def rate_per_s(self) -> float:
        """On average over what may come next."""
        usual, newest = (self.mean + self.lasting * (x - self.mean) for x in (self.usual, self.newest))
        return max((1 - self.jumped) * usual**2 + self.jumped * newest**2, LEAST_RATE_PER_S)

    @property
    def log_sd(self) -> float:
        """Standard deviation of ln of the rate that will be counted in the next interval."""
        root = math.sqrt(self.rate_per_s)
        return 2 * math.sqrt(self.variance + self.noise + (WALK_SD * root / 2) ** 2) / root

    def times(self, factor: float) -> FilteredRate:
        """That of a load so many times as high."""
        root = math.sqrt(factor)
        return replace(
            self,
            roots=root * self.roots,
            variance=factor * self.variance,
            noise=factor * self.noise,
            usual=root * self.usual,
            newest=root * self.newest,
            mean=root * self.mean,
        )


NO_RATE = FilteredRate(np.array([math.nan]), 0.0, 0.0)


def _filtered(counted: Sequence[float], noise: float) -> tuple[FilteredRate, list[float]]:
    """All but what the mean tells, and the squared surprises."""
    first, *others = counted
    roots, variance, surprises = [first], noise, []
    usual, newest, jumped = first, first, 0.0
    for newest in others:
        root, surprise = roots[-1], newest - roots[-1]
        variance += (WALK_SD * root / 2) ** 2
        usual_gain = variance / (variance + noise)
        usual_surprise = math.sqrt(2.0 * (variance + noise))
        variance += 0.5 * max(0.0, surprise**2 - usual_surprise**2)
        gain = variance / (variance + noise)
        jumped = min((gain - usual_gain) / (1 - usual_gain), MAX_JUMPED)
        usual = root + usual_gain * min(max(surprise, -usual_surprise), usual_surprise)
        roots.append(root + gain * surprise)
        variance *= 1 - gain
        surprises.append(surprise**2)
    return FilteredRate(np.array(roots), variance, noise, usual, newest, jumped), surprises


def _lasting(roots: np.ndarray, counted: np.ndarray, means: np.ndarray, noise: float) -> float:
    """w"""
    away, later = roots - means, counted[1:] - means[:-1]
    most = max(abs(away[-1]), np.median(np.abs(away)))
    away, later = np.clip(away, -most, most), np.clip(later, -most, most)
    slope = (away[:-1] @ later + away[-1] ** 2) / (away @ away + noise)
    return min(max(float(slope), 0.0), 1.0)
