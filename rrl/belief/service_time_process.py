"""The Gaussian process over ln of service times: what is known of them before any is seen.

    ln S = ln S_1 + w · φ(i, a, n, b, u, o) + f(i, a, n, b, u) + χ · h(c, n) + own

| symbol | here | meaning |
|---|---|---|
| φ, w | `features`, `WEIGHTS` | what is known of parallel programs, each term with a Gaussian weight |
| f | `smooth` | what is not: smooth deviations along each axis, and rougher ones over all of them |
| h | `crowding` | the same n among more instances: where batches share processors, company arrives sooner |
| C, η, χ | `Hypothesis` | cores; how much of its threads a batch keeps busy; whether h counts (0 or 1) |
| own | `own_sd` | what an entry has alone: only its own batches tell of it |

| term of φ | weight (mean, standard deviation) | meaning |
|---|---|---|
| 1 | 0, 3 | |
| ln a, ln i | -0.4, 0.45; -0.4, 0.3 | speed-up by threads, which small models often lack |
| ln max(1, n·(i·a)^η / C) | 1.1, 0.3 | over-subscription: threads take turns |
| (n - 1) / C | 0.45, 0.4 | neighbours share caches and memory bandwidth |
| ln b | 0.6, 0.3 | batching |
| ln u | -0.7, 0.5 | speed-up by nodes, near -1 in Fig. 3 of SERF; where u is a knob |
| o | 0, 0.1 | requests are taken one by one; where both can be |

The weights are ours, around Amdahl's law with common fractions. Lengths and deviations of f were chosen by
the predictive likelihood of unseen service times, on machines of the family with seeds below 1000.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rrl.belief import cholesky, learned_prior
from rrl.belief.learned_prior import Kind

WEIGHTS = np.array([[0.0, 3.0], [-0.4, 0.45], [-0.4, 0.3], [1.1, 0.3], [0.45, 0.4], [0.6, 0.3]])
NODES_WEIGHT = np.array([-0.7, 0.5])
ONE_BY_ONE_SD = 0.1
AXIS_SD, AXIS_LENGTH = 0.2, 1.2  # squared exponential along ln i, ln a, ln n, ln b, ln(n·i·a) and ln u
FIELD_SD, FIELD_LENGTH = 0.3, 1.2  # Matérn 5/2 over all of i, a, n, b, u
CROWDING_SD = 0.3  # squared exponential of length 1 over ln c and ln n
CORES_SD = 0.5  # of ln C around the largest number of threads or instances in the space
TEMPER = 0.25  # of the posterior: φ is only nearly right, so the data say less than they seem to


class Hypothesis(NamedTuple):
    """One way in which service times may come about."""

    cores: float  # C
    utilisation: float  # η
    crowding: bool  # χ
    own_sd: float  # of what every entry has alone
    kind: str = ""  # of machines that a prior was learned of; none: w is generic
    field: float = 1.0  # what the standard deviations of f are multiplied by


class Terms(NamedTuple):
    """What is expected of ln S/S_1 of P entries, the smooth deviations apart: N(mean, factor factorᵀ)."""

    mean: np.ndarray  # (P,)
    factor: np.ndarray  # (P, terms)


class Fit(NamedTuple):
    """The process conditioned on all entries seen, under one hypothesis."""

    plausibility: float  # tempered log posterior
    hypothesis: Hypothesis
    cholesky: np.ndarray  # (entries, entries) lower
    alpha: np.ndarray  # (entries,)


def terms(points: np.ndarray, hypothesis: Hypothesis, weights: np.ndarray) -> Terms:
    """w · φ without o, whose weights (terms, 2) are given by mean and standard deviation."""
    known = features(points, hypothesis)
    return _with_nodes(Terms(known @ weights[:, 0], known * weights[:, 1]), points)


def learned_terms(points: np.ndarray, cores: float, kind: Kind) -> Terms:
    """w · φ of a prior that was learned over machines of one kind."""
    known = learned_prior.features(points, cores)
    return _with_nodes(Terms(known @ kind.mean, known @ kind.factor), points)


def with_one_by_one(known: Terms, one_by_one: np.ndarray) -> Terms:
    """The same with the term of o (P,), where both can be."""
    if not one_by_one.any():
        return known
    return Terms(known.mean, np.column_stack([known.factor, ONE_BY_ONE_SD * one_by_one]))


def _with_nodes(known: Terms, points: np.ndarray) -> Terms:
    """The same with the term of u, where it is a knob."""
    if points.shape[1] == 5:
        return known
    log_nodes = np.log(points[:, 5])
    mean, sd = NODES_WEIGHT
    return Terms(known.mean + mean * log_nodes, np.column_stack([known.factor, sd * log_nodes]))


def conditioned(
    residual: np.ndarray, covariance: np.ndarray, hypothesis: Hypothesis, usual_cores: float
) -> Fit:
    """The process given what ln S/S_1 of the entries seen is beyond w · φ in the mean.

    `covariance` is that of w · φ + f + χ·h and of all noise.
    """
    factor, alpha = cholesky.factored_and_solved(covariance, residual)
    log_likelihood = -0.5 * (residual @ alpha + cholesky.log_determinant(factor))
    plausibility = TEMPER * (log_prior(hypothesis, usual_cores) + float(log_likelihood))
    return Fit(plausibility, hypothesis, factor, alpha)


def log_prior(hypothesis: Hypothesis, usual_cores: float) -> float:
    return -0.5 * (math.log(hypothesis.cores / usual_cores) / CORES_SD) ** 2


def features(points: np.ndarray, hypothesis: Hypothesis) -> np.ndarray:
    """(P, terms) φ, without that of u."""
    i, a, _, n, b = points[:, :5].T
    over = np.log(np.maximum(1.0, n * (i * a) ** hypothesis.utilisation / hypothesis.cores))
    neighbours = (n - 1) / hypothesis.cores
    return np.stack([np.ones(len(points)), np.log(a), np.log(i), over, neighbours, np.log(b)], axis=1)


def smooth(points: np.ndarray, point: np.ndarray) -> np.ndarray:
    """(P,) covariance of f with one point."""
    columns = [0, 1, 3, *range(4, points.shape[1])]  # i, a, n, b and, where it is a knob, u
    axes = np.log(points[:, columns] / point[columns])
    squares = np.column_stack([axes**2, axes[:, :3].sum(axis=1) ** 2])
    along_axes = AXIS_SD**2 * np.exp(-0.5 * squares / AXIS_LENGTH**2).sum(axis=1)
    d = np.sqrt(5.0 * squares[:, :-1].sum(axis=1)) / FIELD_LENGTH
    result: np.ndarray = along_axes + FIELD_SD**2 * (1.0 + d + d**2 / 3.0) * np.exp(-d)
    return result


def smooth_variance(points: np.ndarray) -> float:
    """That of f at any of these points."""
    return points.shape[1] * AXIS_SD**2 + FIELD_SD**2


def crowding(points: np.ndarray, point: np.ndarray) -> np.ndarray:
    """(P,) covariance of h with one point."""
    axes = np.log(points[:, [2, 3]] / point[[2, 3]])
    result: np.ndarray = CROWDING_SD**2 * np.exp(-0.5 * (axes**2).sum(axis=1))
    return result


def prior_covariance(
    points: np.ndarray, hypothesis: Hypothesis, others: np.ndarray | None = None
) -> np.ndarray:
    """(P, others) of f + χ·h between these points and others; None: and one another."""
    field, crowds = hypothesis.field**2, hypothesis.crowding
    others = points if others is None else others
    columns = [field * smooth(points, point) + crowds * crowding(points, point) for point in others]
    return np.stack(columns, axis=1)
