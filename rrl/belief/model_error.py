"""What the queueing model gets wrong of each configuration: random effects, learned from replayed intervals.

    ln(observed / replayed) of interval t = sum over knobs of that of its value + own + noise

| symbol | here | meaning |
|---|---|---|
| K | `_covariance` | prior covariance of the errors; of a large grid it would not fit in memory as a whole |
| r_t | `errors` | ln of the latency observed over that of the interval's own arrivals, replayed |

The interval's own service times are replayed too. So neither a burst nor a slow moment is taken for an error.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

import numpy as np

from rrl.belief import cholesky
from rrl.belief.remembered import MAX_INTERVALS
from rrl.space import ConfigurationSpace

# Standard deviation of what a configuration has alone, and of what each value of a knob adds, as ln of a
# latency, before anything is known. `SCALES` are about it.
ERROR_SD = 0.06
ERROR_LIMIT = 1.0  # of r_t: what an overloaded interval says of the model is not worth more
# How large errors and noise are here, over what was expected: variances, with the ln of their prior.
SCALES = ((0.1, -0.5), (0.4, 0.0), (1.0, 0.0), (2.5, -1.0))
NOISES = ((1.0, -0.5), (6.0, 0.0), (36.0, -0.5))


class SeenDiscrepancy(NamedTuple):
    """r of an interval of this configuration, and the variance of its noise."""

    number: int
    error: float
    variance: float


class _Alike(NamedTuple):
    """What was seen, as one observation of each of M configurations: the mean by precision."""

    numbers: np.ndarray  # (M,) int, ascending
    errors: np.ndarray  # (M,)
    variances: np.ndarray  # (M,)
    repetitions: int  # observations beyond M
    squares: float  # of what observations differ by from these, in their variances
    log_variance: float  # ln of the variances of all observations, over those of these

    @classmethod
    def of(cls, seen: Iterable[SeenDiscrepancy]) -> _Alike:
        every, errors, variances = (np.array(column) for column in zip(*seen, strict=True))
        numbers, own = np.unique(every, return_inverse=True)
        precisions = np.bincount(own, 1.0 / variances)
        means = np.bincount(own, errors / variances) / precisions
        squares = float((errors**2 / variances).sum() - (means**2 * precisions).sum())
        log_variance = float(np.log(variances).sum() + np.log(precisions).sum())
        return cls(numbers, means, 1.0 / precisions, len(every) - len(numbers), squares, log_variance)

    def log_constant(self, noise: float) -> float:
        """What the likelihood of all has beyond that of these, with variances `noise` times as large."""
        return -0.5 * (self.squares / noise + self.repetitions * math.log(noise) + self.log_variance)


class ModelDiscrepancy:
    """The posterior of ln(latency / replayed) of every configuration."""

    def __init__(self, space: ConfigurationSpace) -> None:
        self._numbers_of_all = np.arange(len(space))
        # (knobs of several values, size)
        self._indices = space.indices[:, np.array(space.shape) > 1].T.copy()
        self._forget()

    def _forget(self) -> None:
        self._seen: deque[SeenDiscrepancy] = deque(maxlen=MAX_INTERVALS)
        self._mean = np.zeros(len(self._numbers_of_all))
        self._factor: np.ndarray | None = None
        self._numbers = np.empty(0, int)
        self._scale = 1.0
        self.log_evidence = 0.0
        """How well the errors are explained, but for a constant: nats."""

    def learn(self, number: int, error: float, variance: float) -> None:
        """Takes in r of an interval, and the variance of its noise."""
        self.learn_all([(number, error, variance)])

    def learn_all(self, told: Iterable[tuple[int, float, float]]) -> None:
        """The same of several intervals."""
        for number, error, variance in told:
            clipped = float(np.clip(error, -ERROR_LIMIT, ERROR_LIMIT))
            self._seen.append(SeenDiscrepancy(number, clipped, variance))
        if not self._seen:
            return
        alike = _Alike.of(self._seen)
        prior, own = self._covariance(alike.numbers, alike.numbers), np.diag(alike.variances)
        best = -math.inf
        for scale, of_scale in SCALES:
            for noise, of_noise in NOISES:
                covariance = scale * prior + noise * own
                factor, alpha = cholesky.factored_and_solved(covariance, alike.errors)
                explained = 0.5 * (alike.errors @ alpha + cholesky.log_determinant(factor))
                plausibility = of_scale + of_noise - explained + alike.log_constant(noise)
                if plausibility > best:
                    best, self._scale, self._factor, kept = plausibility, scale, factor, alpha
        self.log_evidence = float(best)
        self._numbers = alike.numbers
        self._mean = self._scale * self._covariance(alike.numbers, self._numbers_of_all).T @ kept

    def anew(self) -> ModelDiscrepancy:
        """One that knows nothing yet."""
        other = copy(self)
        other._forget()
        return other

    @property
    def learned_last(self) -> SeenDiscrepancy | None:
        """None before the first."""
        return self._seen[-1] if self._seen else None

    @property
    def log_ratio(self) -> np.ndarray:
        """(size,) expected ln(latency / replayed)."""
        return self._mean

    def standard_deviations(self, numbers: np.ndarray, beside: int | None = None) -> np.ndarray:
        """(K,) of it, or of what it differs by from that of one configuration, `beside`."""
        every = numbers if beside is None else np.append(numbers, beside)
        variance = np.full(len(every), self._scale * (ERROR_SD**2 * (1 + len(self._indices))))
        shared = np.empty((0, len(every)))
        weighted = shared
        if self._factor is not None:
            shared = self._scale * self._covariance(self._numbers, every)
            weighted = cholesky.solved(self._factor, shared)
            variance -= np.einsum("ij,ij->j", shared, weighted)
        if beside is not None:
            prior = self._covariance(every, every[-1:])[:, 0]
            covariance = self._scale * prior - shared.T @ weighted[:, -1]
            variance = (variance + variance[-1] - 2 * covariance)[:-1]
        return np.sqrt(np.maximum(variance, 1e-10))

    def _covariance(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        """(some, others) of K."""
        together = (some[:, None] == others).astype(float)
        for index in self._indices:
            together += index[some][:, None] == index[others]
        return np.asarray(ERROR_SD**2 * together)
