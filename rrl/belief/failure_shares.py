"""Which share of the requests fails under each configuration: seen where it ran, expected where it did not.

| symbol | here | meaning |
|---|---|---|
| b_m, b̄_m | `_Blamed` | share blamed on a measured configuration m: in its last interval, on average |
| p_m | `_Blamed.share` | b̄_m + (b_m - b̄_m) `KEPT`^k, where its last interval is k intervals ago |
| p_0(c) | `_everywhere` | share that fails whatever is in force, as clients may send what cannot be served |
| w_m(c) | `exp(-‖c - m‖)` | what m tells of another configuration c, by their distance on the grid |
| p(c) | `of` | (Σ w_m p_m + p_0) / (Σ w_m + 1) where c was not measured |

p_0 is the least p_m of n configurations, times n/(n + 1). So where only a start was measured, others are
expected to fail half as often. A start that fails is left, and what fails everywhere moves nothing.

Too little memory is a usual reason to fail. So p_0(c) is 0 as long as every m has more instances or larger
batches than c. Such a c says whether memory is the reason.

What is blamed on a configuration comes from `shared_failures`. The share that fails now under others, too, is
expected of all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rrl.belief.shared_failures import SharedFailures
from rrl.knobs import MEMORY_KNOBS
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace

KEPT = 0.9  # by each interval, of what a last interval had more than usual


@dataclass
class _Blamed:
    """The shares blamed on one configuration, of all its intervals."""

    count: int = 0
    total: float = 0.0
    last: float = 0.0
    at: int = 0  # the interval that was its last

    def begin(self, interval: int) -> None:
        self.count, self.last, self.at = self.count + 1, 0.0, interval

    def blame(self, share: float) -> None:
        """So much is blamed on it in its last interval, whatever was before."""
        self.total += share - self.last
        self.last = share

    def share(self, interval: int) -> float:
        """p_m in this interval."""
        mean = self.total / self.count
        return mean + (self.last - mean) * KEPT ** (interval - self.at)


class FailureShares:
    """The share expected of every configuration; 0 of all as long as nothing failed."""

    def __init__(self, space: ConfigurationSpace) -> None:
        self._space = space
        in_memory = [k for k, name in enumerate(space.names) if name in MEMORY_KNOBS]
        self._memory = space.indices[:, in_memory]  # (size, memory knobs)
        self._intervals = 0
        self._blamed: dict[int, _Blamed] = {}
        self._shared = SharedFailures()
        self._shares = np.zeros(len(space))

    def learn(self, number: int, measurement: Measurement) -> None:
        """Takes in an interval; one in which no request was answered tells nothing."""
        self._intervals += 1
        if measurement.answered == 0:
            return
        self._blamed.setdefault(number, _Blamed()).begin(self._intervals)
        for each, share in self._shared.learn(number, measurement).items():
            self._blamed[each].blame(share)
        self._shares = self._shared.share + (1.0 - self._shared.share) * self._expected()

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) the share expected of these configurations."""
        return self._shares[numbers]

    def _expected(self) -> np.ndarray:
        measured = np.array(list(self._blamed))
        own = np.array([each.share(self._intervals) for each in self._blamed.values()])
        if not own.any():
            return np.zeros(len(self._space))
        weights = np.exp(-np.stack([self._space.distances(number) for number in self._blamed]))
        shares = (own @ weights + self._everywhere(measured, own)) / (weights.sum(axis=0) + 1.0)
        shares[measured] = own
        return np.asarray(shares)

    def _everywhere(self, measured: np.ndarray, own: np.ndarray) -> np.ndarray:
        """(size,)"""
        needs_no_less = (self._memory[:, None] >= self._memory[measured]).all(axis=2).any(axis=1)
        count = len(measured)
        return np.where(needs_no_less, own.min() * count / (count + 1), 0.0)
