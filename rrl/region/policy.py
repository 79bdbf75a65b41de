"""Drawing from a stochastic policy."""

from __future__ import annotations

import numpy as np


def drawn_index(weights: np.ndarray, draw: float) -> int:
    """The index on which a uniform draw from [0, 1) falls. The (n,) weights need not sum to 1."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, draw * cumulative[-1], side="right"))
    return min(index, len(weights) - 1)
