"""How often predictions held, by the quantile of its prediction at which each observation lies."""

from __future__ import annotations

import numpy as np

COVERAGES = (0.5, 0.9)
PIT_BINS = 10


def coverages(quantiles: np.ndarray) -> list[float]:
    """The shares of the observations within the central 50 and 90 % of their predictions."""
    return [float(np.mean(np.abs(quantiles - 0.5) <= share / 2)) for share in COVERAGES]


def pit(quantiles: np.ndarray) -> np.ndarray:
    """(10,) the shares of the observations in ten equal bins (probability integral transform).

    Even ones are calibrated. Heavy ends mean that predictions are too sure.
    """
    return np.asarray(np.histogram(quantiles, PIT_BINS, (0.0, 1.0))[0] / len(quantiles))


def cells(quantiles: np.ndarray) -> list[str]:
    """Both coverages and the PIT in percent, for a table."""
    within = [f"{share:.0%}" for share in coverages(quantiles)]
    return [*within, " ".join(f"{100 * share:.0f}" for share in pit(quantiles))]
