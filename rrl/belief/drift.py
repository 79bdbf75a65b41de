"""How slow the machine is at each moment, which all service times of an interval share.

    ln S of a row of interval t = its entry + d_t + s_t + noise
    d_t = r^(t - t') d_t' + e_t,    Var e_t = k_t σ_d² (1 - r^(2 (t - t')))
    Var s_t = k'_t σ_s²

| symbol | here | meaning |
|---|---|---|
| d_t | | drift: comes and goes over intervals, autoregressive of correlation r |
| s_t | | scatter: of one interval alone |
| k_t, k'_t | `Shocks` | how much more than usual an interval varies: the weights of Student's t |
| σ_d, σ_s | `Scale` | usual standard deviations; which of `SCALES` holds is told by likelihood |

N is the rows' noise with drift and scatter, and Z says which entry each row is of. Generalised least squares
makes one observation of each entry from all its rows. With W = Zᵀ N⁻¹ Z and v = Zᵀ N⁻¹ y it is W⁻¹v, and its
noise has the covariance W⁻¹.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rrl.belief import cholesky

CORRELATION = 0.85  # r, from one interval to the next
FREEDOM = 4.0  # of Student's t: real changes of a machine are rare and large


class Scale(NamedTuple):
    """Usual standard deviations of ln S."""

    drift_sd: float
    scatter_sd: float


SCALES = (Scale(0.004, 0.003), Scale(0.03, 0.015), Scale(0.08, 0.05))
# Standard deviations of a row of one interval, beyond what telemetry says of it, and the ln of their prior.
NOISES = {0.004: -0.5, 0.04: 0.0, 0.15: -1.0}
LIKELIEST_NOISE_SD = max(NOISES, key=NOISES.__getitem__)  # before an entry was seen twice


class Rows(NamedTuple):
    """All rows that are remembered: (R,) each."""

    interval: np.ndarray  # int: position of the interval among those remembered
    entry: np.ndarray  # int: number of the entry
    log_time: np.ndarray
    variance: np.ndarray  # of the noise, drift and scatter apart

    def with_noise(self, noise_sd: float) -> Rows:
        """The same with so much more of it in each row."""
        return self._replace(variance=self.variance + noise_sd**2)


class Shocks(NamedTuple):
    """k and k' of every interval remembered, estimated anew with each fit."""

    drift: np.ndarray  # (T,)
    scatter: np.ndarray  # (T,)


class Slowness(NamedTuple):
    """How slow the machine was, as ln of service times over the usual ones."""

    seen: Mapping[int, float]  # by the interval's number since the first
    sd: float  # what is usual where nothing was seen


class Evidence(NamedTuple):
    """What the rows say of the E entries that they are of."""

    entries: np.ndarray  # (E,) int, ascending
    log_times: np.ndarray  # (E,) W⁻¹v
    noise: np.ndarray  # (E, E) W⁻¹
    log_constant: float  # what the likelihood of the rows has beyond that of `log_times`


class Noisy(NamedTuple):
    """Evidence under the likeliest of `NOISES`."""

    noise_sd: float
    evidence: Evidence


class Effects(NamedTuple):
    """What the intervals shared: (T,) each."""

    drift: np.ndarray  # d
    scatter: np.ndarray  # s


def correlations(times: np.ndarray, shocks: Shocks) -> np.ndarray:
    """(T, T) covariance of d at these ascending times, in intervals, over σ_d²."""
    kept = CORRELATION ** np.diff(times, prepend=times[:1])
    variances, previous = [], 1.0
    for square, shock in zip((kept**2).tolist(), shocks.drift.tolist(), strict=True):
        previous = square * previous + shock * (1 - square)
        variances.append(previous)
    positions = np.arange(len(times))
    earlier = np.minimum(positions[:, None], positions)
    return np.asarray(np.array(variances)[earlier] * CORRELATION ** np.abs(times[:, None] - times))


def evidences(
    rows: Rows, times: np.ndarray, scales: Iterable[Scale], shocks: Shocks
) -> dict[Scale, Evidence]:
    """Of rows whose intervals were at these times, under each of some scales."""
    entries, own = np.unique(rows.entry, return_inverse=True)
    precision = 1.0 / rows.variance
    by_interval = np.bincount(rows.interval, precision, len(times))  # Aᵀ R⁻¹ A
    cells = np.bincount(own * len(times) + rows.interval, precision, len(entries) * len(times))
    both = cells.reshape(len(entries), len(times))  # Zᵀ R⁻¹ A
    weighted = precision * rows.log_time
    total = np.bincount(own, weighted, len(entries))  # Zᵀ R⁻¹ y
    of_interval = np.bincount(rows.interval, weighted, len(times))  # Aᵀ R⁻¹ y
    # M = (D⁻¹ + G)⁻¹ = G⁻¹ - G⁻¹ (D + G⁻¹)⁻¹ G⁻¹, with G = Aᵀ R⁻¹ A
    scaled = both / by_interval
    mean = of_interval / by_interval
    apart = np.diag(both.sum(axis=1)) - both @ scaled.T
    told = total - both @ mean
    squares = float(weighted @ rows.log_time - of_interval @ mean)
    log_noise = float(np.log(by_interval).sum() - np.log(precision).sum())
    correlated, right = correlations(times, shocks), np.column_stack([scaled.T, mean])
    found = {}
    for scale in scales:
        own_variance = shocks.scatter * scale.scatter_sd**2 + 1.0 / by_interval
        factor = cholesky.factored(scale.drift_sd**2 * correlated + np.diag(own_variance))
        inner = cholesky.solved(factor, right)
        of_entries = cholesky.factored(apart + scaled @ inner[:, :-1])  # of W
        v = told + scaled @ inner[:, -1]
        noise = cholesky.solved(of_entries, np.eye(len(entries)))
        log_times = noise @ v
        residue = squares + float(mean @ inner[:, -1] - v @ log_times)
        log_sizes = cholesky.log_determinant(factor) + cholesky.log_determinant(of_entries)
        constant = -0.5 * (residue + log_noise + log_sizes)
        found[scale] = Evidence(entries, log_times, noise, constant)
    return found


def with_likeliest_noise(
    rows: Rows, times: np.ndarray, scales: Sequence[Scale], shocks: Shocks
) -> dict[Scale, Noisy]:
    """The same under the noise that makes the rows likeliest, whatever their entries.

    Its log_constant is the restricted likelihood (Patterson and Thompson, 1971).
    """
    found = {noise_sd: evidences(rows.with_noise(noise_sd), times, scales, shocks) for noise_sd in NOISES}

    def likeliest(scale: Scale) -> Noisy:
        noise_sd = max(NOISES, key=lambda sd: found[sd][scale].log_constant + NOISES[sd])
        return Noisy(noise_sd, found[noise_sd][scale])

    return {scale: likeliest(scale) for scale in scales}


def effects(
    rows: Rows, times: np.ndarray, scale: Scale, shocks: Shocks, expected: np.ndarray
) -> tuple[Effects, Shocks]:
    """What the intervals shared, given the (R,) ln S expected of the rows, and what that says of k."""
    precision = np.bincount(rows.interval, 1.0 / rows.variance, len(times))
    rest = np.bincount(rows.interval, (rows.log_time - expected) / rows.variance, len(times)) / precision
    d = scale.drift_sd**2 * correlations(times, shocks)
    s = shocks.scatter * scale.scatter_sd**2
    total = d + np.diag(s + 1.0 / precision)
    factor = cholesky.factored(total)
    alpha = cholesky.solved(factor, rest)
    inverse = cholesky.solved(factor, np.eye(len(times)))
    drift, scatter = d @ alpha, s * alpha
    drift_covariance = d - d @ inverse @ d
    kept = CORRELATION ** np.diff(times, prepend=times[:1])
    before = np.concatenate([[0.0], drift[:-1]])
    steps = drift - kept * before
    variance = np.diag(drift_covariance)
    variance_before = np.concatenate([[0.0], variance[:-1]])
    beside = np.concatenate([[0.0], np.diag(drift_covariance, 1)])
    squares = steps**2 + np.maximum(variance + kept**2 * variance_before - 2 * kept * beside, 0.0)
    fresh = np.maximum(1 - kept**2, 1e-9)
    fresh[0] = 1.0
    scatter_squares = scatter**2 + np.maximum(s - s**2 * np.diag(inverse), 0.0)
    again = Shocks(
        (FREEDOM + squares / (fresh * scale.drift_sd**2)) / (FREEDOM + 1),
        (FREEDOM + scatter_squares / scale.scatter_sd**2) / (FREEDOM + 1),
    )
    return Effects(drift, scatter), again


def persisting(intervals: float = 1.0) -> float:
    """The share of a drift that is expected to be left after so many intervals."""
    return math.pow(CORRELATION, intervals)
