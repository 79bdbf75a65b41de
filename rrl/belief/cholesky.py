"""Cholesky factors of small matrices: scipy's own checks take longer than the work."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack


def factored(matrix: np.ndarray) -> np.ndarray:
    """L, lower, of a matrix L Lᵀ; LinAlgError where it is not positive definite."""
    lower, failed = lapack.dpotrf(matrix, lower=1, clean=1)
    _check(failed)
    return np.asarray(lower)


def factored_and_solved(matrix: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """L, and the x of L Lᵀ x = right; LinAlgError as `factored`. Above L is what was there."""
    lower, found, failed = lapack.dposv(matrix, right, lower=1)
    _check(failed)
    return np.asarray(lower), np.asarray(found)


def half_solved(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x of L x = right, of several columns."""
    found, _ = lapack.dtrtrs(lower, right, lower=1)
    return np.asarray(found)


def solved(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x of L Lᵀ x = right, of one or several columns."""
    found, _ = lapack.dpotrs(lower, right, lower=1)
    return np.asarray(found)


def log_determinant(lower: np.ndarray) -> float:
    """ln of that of L Lᵀ."""
    return 2.0 * float(np.log(lower.diagonal()).sum())


def _check(failed: int) -> None:
    if failed:
        raise np.linalg.LinAlgError("a covariance is not positive definite")
