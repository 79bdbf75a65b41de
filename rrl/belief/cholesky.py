"""Cholesky factors of small matrices: scipy's own checks take longer than the work."""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack


def factored(matrix: np.ndarray) -> np.ndarray:
    """L, lower, of a matrix L Lᵀ; LinAlgError where it is not positive definite."""
    lower, failed = lapack.dpotrf(matrix, lower=1, clean=1)
    if failed:
        raise np.linalg.LinAlgError("a covariance is not positive definite")
    return np.asarray(lower)


def half_solved(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x of L x = right, of several columns."""
    found, _ = lapack.dtrtrs(lower, right, lower=1)
    return np.asarray(found)


def solved(lower: np.ndarray, right: np.ndarray) -> np.ndarray:
    """x of L Lᵀ x = right, of one or several columns."""
    found, _ = lapack.dpotrs(lower, right, lower=1)
    return np.asarray(found)
