"""Drawing from a stochastic policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def drawn_index(weights: np.ndarray, draw: float) -> int:
    """The index on which a uniform draw from [0, 1) falls. The (n,) weights need not sum to 1."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    return min(index, len(weights) - 1)


def drawn_indices(policy: Sequence[np.ndarray], draws: Iterable[float], may_be: np.ndarray) -> list[int]:
    """An index for each axis of a grid, one after the other, by the (length,) weights of each.

    `may_be` (bool, of the grid's shape) holds for what may be drawn, at least once. An index that leaves
    nothing of it has no weight. Where the others have none either, all of them are alike.
    """
    indices = []
    for weights, draw in zip(policy, draws, strict=True):
        possible = np.asarray(may_be.reshape(len(weights), -1).any(axis=1))
        of_these = np.where(possible, weights, 0.0)
        indices.append(drawn_index(of_these if of_these.any() else possible, draw))
        may_be = may_be[indices[-1]]
    return indices
