"""Arrivals in bursts, by name: on and off, gaps and batches of a wanted variation, and traces.

| name | arrivals | coefficient of variation of gaps |
|---|---|---|
| `poisson` | exponential gaps | 1 |
| `on-off` | a Markov-modulated Poisson process: on for 0.8 s, off for 3 s on average | by the rate |
| `gaps:CV` | hyperexponential gaps with balanced means: runs of short gaps, then a long one | CV |
| `batches:CV` | requests that come together, geometrically many, after exponential gaps | CV |
| `FILE.csv` | a trace as `rrl-load` reads it, again from its beginning where it is too short | the trace's |
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from serving_adapter.load.arrivals import Arrivals, Bursts, Poisson, read_trace
from serving_adapter.load.traces import ARRIVALS_PER_CHUNK

ON_S, OFF_S = 0.8, 3.0  # mean stays of `on-off`


@dataclass(frozen=True)
class _OfVariation:
    """Arrivals of this mean rate, whose gaps have this coefficient of variation, c."""

    rate_per_s: float
    variation: float

    def __post_init__(self) -> None:
        _check_variation(self.variation)

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s


@dataclass(frozen=True)
class HyperexponentialGaps(_OfVariation):
    """Gaps of two exponential kinds, each of which makes up half of the time (balanced means).

    With p the probability of a short gap, 2 p (1 - p) = 1 / (1 + c²), c the coefficient of variation.
    """

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        squared = self.variation**2
        short = (1 + math.sqrt((squared - 1) / (squared + 1))) / 2
        last_s = 0.0
        while True:
            is_short = rng.random(ARRIVALS_PER_CHUNK) < short
            means_s = 1 / (2 * self.rate_per_s * np.where(is_short, short, 1 - short))
            times_s = last_s + np.cumsum(rng.exponential(means_s))
            last_s = float(times_s[-1])
            yield times_s


@dataclass(frozen=True)
class BatchArrivals(_OfVariation):
    """Poisson moments at each of which geometrically many requests come; m on average give c² = 2 m - 1."""

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        mean_size = (self.variation**2 + 1) / 2
        last_s = 0.0
        while True:
            batches = max(1, int(ARRIVALS_PER_CHUNK / mean_size))
            moments_s = last_s + np.cumsum(rng.exponential(mean_size / self.rate_per_s, batches))
            last_s = float(moments_s[-1])
            yield np.repeat(moments_s, rng.geometric(1 / mean_size, batches))


def arrivals_named(name: str, rate_per_s: float) -> Arrivals:
    kind, _, variation = name.partition(":")
    if name == "poisson":
        return Poisson(rate_per_s)
    if name == "on-off":
        return Bursts(rate_per_s, math.inf, ON_S, OFF_S)
    if name.endswith(".csv"):
        return read_trace(Path(name), rate_per_s)
    try:
        if kind == "gaps":
            return HyperexponentialGaps(rate_per_s, float(variation))
        if kind == "batches":
            return BatchArrivals(rate_per_s, float(variation))
    except ValueError as error:
        raise ValueError(f"cannot read the arrivals {name!r}: {error}") from error
    raise ValueError(f"unknown arrivals {name!r}; expected poisson, on-off, gaps:CV, batches:CV or FILE.csv")


def moments_of(arrivals: Arrivals, seed: int, length_s: float) -> np.ndarray:
    """All moments before `length_s`. A trace that is too short begins again, a mean gap after its end."""
    rng = np.random.default_rng([seed, 0])
    parts, turn_s, last_s = [], 0.0, 0.0
    while last_s < length_s:
        for chunk_s in arrivals.times_s(rng):
            parts.append(turn_s + chunk_s)
            last_s = float(parts[-1][-1])
            if last_s >= length_s:
                break
        turn_s = last_s + 1 / arrivals.mean_rate_per_s
    moments_s = np.concatenate(parts)
    return moments_s[moments_s < length_s]


def variation_of_gaps(moments_s: np.ndarray) -> float:
    """Their coefficient of variation."""
    gaps_s = np.diff(moments_s)
    return float(gaps_s.std() / gaps_s.mean())


def _check_variation(variation: float) -> None:
    if not 1 < variation < math.inf:
        raise ValueError(f"the coefficient of variation of gaps must be above 1, got {variation:g}")
