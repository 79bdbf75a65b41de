"""Latency as a function of the configuration at one load, and how it changes with distance (RRL, Fig. 6).

| symbol | here | meaning |
|---|---|---|
| c | `LatencyLandscape.values` | a configuration: the values of its knobs |
| r(c) | `LatencyLandscape.latency_ms` | its mean latency, one for each round |
| d(c, c') | `pairs().distance` | Euclidean distance in the knobs' values (Fig. 9) |
| D(c, c') | `pairs().difference` | difference in performance, as the ratio max(r, r') / min(r, r') |

A ratio, unlike a difference in ms, does not depend on how fast the machine is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata

from scripts.figures.bootstrap import DRAWS, LEVEL, BootstrapInterval
from scripts.figures.served.measuring import Asked
from scripts.kept_rows import Row

NEAR = 2.0  # the radius of the paper's example region
_BOOTSTRAP_DRAWS = DRAWS // 10  # pairs are many
LARGEST_BOOTSTRAPPED = 250  # configurations; of more, so many are drawn


@dataclass(frozen=True, eq=False)
class LatencyLandscape:
    """What every configuration costs at one load."""

    label: str  # e.g. "Inception-V3, 14/s"
    knobs: tuple[str, ...]
    values: np.ndarray  # (configurations, knobs) int
    latency_ms: np.ndarray  # (configurations, rounds)

    @property
    def mean_ms(self) -> np.ndarray:
        """(configurations,) the geometric mean over rounds: a slow spell of one round counts less."""
        means: np.ndarray = np.exp(np.log(self.latency_ms).mean(axis=1))
        return means

    @property
    def noise(self) -> float:
        """The median ratio between two rounds of the same configuration; NaN with one round."""
        return typical_ratio_of_rounds(self.latency_ms)

    def on(self, axis: Sequence[int]) -> LatencyLandscape:
        """The part whose values are all among these."""
        return self._taken(np.flatnonzero(np.isin(self.values, list(axis)).all(axis=1)))

    def grid_ms(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The values of x and of y, and (y, x) latencies, of two knobs; NaN where nothing was measured."""
        x, y = (np.unique(self.values[:, knob]) for knob in (0, 1))
        grid_ms = np.full((len(y), len(x)), np.nan)
        grid_ms[np.searchsorted(y, self.values[:, 1]), np.searchsorted(x, self.values[:, 0])] = self.mean_ms
        return x, y, grid_ms

    def _taken(self, index: np.ndarray) -> LatencyLandscape:
        return LatencyLandscape(self.label, self.knobs, self.values[index], self.latency_ms[index])


def typical_ratio_of_rounds(latency_ms: np.ndarray) -> float:
    """The median ratio of any two rounds of (configurations, rounds) latencies; NaN with one round."""
    logs = np.log(latency_ms)
    k, m = np.triu_indices(logs.shape[1], 1)
    return float(np.exp(np.median(np.abs(logs[:, k] - logs[:, m])))) if len(k) else float("nan")


def of_rows(
    label: str, knobs: tuple[str, ...], asked: Sequence[Asked], rows: Sequence[Row]
) -> LatencyLandscape:
    """The landscape of measurements of one load, every configuration in the same rounds."""
    found: dict[tuple[int, ...], list[float]] = {}
    for one, row in zip(asked, rows, strict=True):
        place = tuple(one.configuration.get(knob, 1) for knob in knobs)
        found.setdefault(place, []).append(float(row["latency_ms"]))
    return LatencyLandscape(label, knobs, np.array(list(found)), np.array(list(found.values())))


class Pairs(NamedTuple):
    """All pairs of configurations of a landscape."""

    distance: np.ndarray  # (pairs,) d
    difference: np.ndarray  # (pairs,) D, at least 1


def pairs(landscape: LatencyLandscape, index: np.ndarray | None = None) -> Pairs:
    """Of all configurations, or of those of `index`; one drawn twice makes no pair with itself."""
    index = np.arange(len(landscape.values)) if index is None else index
    values, logs = landscape.values[index].astype(float), np.log(landscape.mean_ms[index])
    i, j = np.triu_indices(len(index), 1)
    apart = index[i] != index[j]
    i, j = i[apart], j[apart]
    distance = np.sqrt(((values[i] - values[j]) ** 2).sum(axis=1))
    return Pairs(distance, np.exp(np.abs(logs[i] - logs[j])))


class DistanceFigures(NamedTuple):
    """How differences grow with distance, each with its interval over configurations."""

    rank_correlation: BootstrapInterval  # Spearman's, of d and D
    near: BootstrapInterval  # the median D of pairs at most `NEAR` apart
    far: BootstrapInterval  # of the others
    near_by_far: BootstrapInterval  # ln(near) / ln(far): 1 where distance does not matter


def distance_figures(landscape: LatencyLandscape) -> DistanceFigures:
    """From a landscape, with a bootstrap that draws configurations, not pairs."""
    size = len(landscape.values)
    rng = np.random.default_rng(0)
    whole = _distance_figures(pairs(landscape))
    drawn = min(size, LARGEST_BOOTSTRAPPED)
    draws = np.array(
        [_distance_figures(pairs(landscape, rng.integers(size, size=drawn))) for _ in range(_BOOTSTRAP_DRAWS)]
    )
    return DistanceFigures(*(interval(value, column) for value, column in zip(whole, draws.T, strict=True)))


def _distance_figures(of: Pairs) -> tuple[float, float, float, float]:
    is_near = of.distance <= NEAR
    if not is_near.any() or is_near.all():
        return (np.nan,) * 4
    near, far = float(np.median(of.difference[is_near])), float(np.median(of.difference[~is_near]))
    shares = np.log(near) / np.log(far) if far > 1 else np.nan
    return rank_correlation(of.distance, of.difference), near, far, float(shares)


def rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's: Pearson's of the ranks; NaN where one of the two never varies."""
    ranks = [rankdata(values) for values in (x, y)]
    if min(float(np.ptp(each)) for each in ranks) == 0:
        return float("nan")
    return float(np.corrcoef(*ranks)[0, 1])


def interval(estimate: float, draws: np.ndarray) -> BootstrapInterval:
    """The estimate with the percentiles of its draws; draws that have no figure are left out."""
    finite = draws[np.isfinite(draws)]
    if not len(finite):
        return BootstrapInterval(estimate, float("nan"), float("nan"))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(finite, [tail, 100 - tail])
    return BootstrapInterval(float(estimate), float(low), float(high))


def median_interval(values: np.ndarray) -> BootstrapInterval:
    """The median and its interval over the values."""
    rng = np.random.default_rng(0)
    draws = np.median(rng.choice(values, (_BOOTSTRAP_DRAWS, len(values))), axis=1)
    return interval(float(np.median(values)), draws)
