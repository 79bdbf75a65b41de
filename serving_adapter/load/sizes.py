"""Request sizes: what a variable dimension of a request measures (tokens, samples, ...).

| text | sizes |
|---|---|
| `fixed:N` | all N |
| `uniform:LOW:HIGH` | each from LOW to HIGH equally likely |
| `lognormal:MEDIAN:SIGMA[:MAX]` | exp of a normal variable, rounded, at most MAX |
| `mix:SMALL:LARGE:SHARE` | the share SHARE of the requests LARGE, the others SMALL |
| `trace[:MAX]` | drawn from a trace's sizes, its largest scaled to MAX |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

DEFAULT_MAX_SIZE = 512  # the default MAX: what the default model, MiniLM, takes
MOST_SIZE = 1_000_000_000


class Sizes(Protocol):
    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray: ...


@dataclass(frozen=True)
class FixedSizes:
    size: int

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.full(n, self.size)


@dataclass(frozen=True)
class UniformSizes:
    low: int
    high: int  # itself included

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return rng.integers(self.low, self.high, n, endpoint=True)


@dataclass(frozen=True)
class LognormalSizes:
    median: float
    sigma: float
    largest: int = DEFAULT_MAX_SIZE

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        sizes = rng.lognormal(math.log(self.median), self.sigma, n)
        return np.clip(np.rint(sizes), 1, self.largest).astype(np.int64)


@dataclass(frozen=True)
class TwoSizes:
    """Two workloads on one server: the share `share` of the requests is `large`, the others are `small`."""

    small: int
    large: int
    share: float  # of the large ones, 0 to 1

    @property
    def mean(self) -> float:
        return self.small + self.share * (self.large - self.small)

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        return np.where(rng.random(n) < self.share, self.large, self.small)


@dataclass(frozen=True, eq=False)
class TraceSizes:
    """Sizes of a trace in proportion, rounded up, so that the least is at least 1."""

    sizes: np.ndarray  # (requests,) int
    largest: int = DEFAULT_MAX_SIZE

    def sample(self, rng: np.random.Generator, n: int) -> np.ndarray:
        scaled = rng.choice(self.sizes, n) * (self.largest / max(1, self.sizes.max()))
        return np.clip(np.ceil(scaled), 1, self.largest).astype(np.int64)


def make_sizes(text: str, trace_sizes: np.ndarray | None = None) -> Sizes:
    """The distribution a command line names; `trace_sizes` are those of the arrivals' trace, if any."""
    kind, *arguments = text.split(":")
    if kind == "trace" and trace_sizes is None:
        raise ValueError("sizes from a trace need arrivals from a trace with a context_tokens column")
    try:
        sizes = _parsed(kind, arguments, trace_sizes)
    except ValueError:  # a word or a fraction where a whole number belongs
        sizes = None
    if sizes is None:
        raise ValueError(
            f"sizes {text!r} are not understood; expected fixed:N, uniform:LOW:HIGH, "
            "lognormal:MEDIAN:SIGMA[:MAX], mix:SMALL:LARGE:SHARE or trace[:MAX], "
            f"each size a whole number from 1 to {MOST_SIZE:,}"
        )
    return sizes


def _parsed(kind: str, arguments: list[str], trace_sizes: np.ndarray | None) -> Sizes | None:
    if kind == "fixed" and len(arguments) == 1:
        return FixedSizes(_whole(arguments[0]))
    if kind == "uniform" and len(arguments) == 2:
        low, high = map(_whole, arguments)
        return UniformSizes(low, high) if low <= high else None
    if kind == "lognormal" and len(arguments) in (2, 3):
        median, sigma = map(float, arguments[:2])
        sensible = 1 <= median < math.inf and 0 <= sigma < math.inf
        return LognormalSizes(median, sigma, *map(_whole, arguments[2:])) if sensible else None
    if kind == "mix" and len(arguments) == 3:
        share = float(arguments[2])
        small, large = map(_whole, arguments[:2])
        return TwoSizes(small, large, share) if 0 <= share <= 1 else None
    if kind == "trace" and len(arguments) <= 1 and trace_sizes is not None:
        return TraceSizes(trace_sizes, *map(_whole, arguments))
    return None


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= MOST_SIZE:
        raise ValueError
    return number
