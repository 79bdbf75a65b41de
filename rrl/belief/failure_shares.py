"""Which share of the requests fails under each configuration: seen where it ran, expected where it did not.

| symbol | here | meaning |
|---|---|---|
| p_m | `_own` | share seen under a measured configuration m in its last interval |
| p_0(c) | `everywhere` | share that fails whatever is in force, as clients may send what cannot be served |
| w_m(c) | `exp(-‖c - m‖)` | what m tells of another configuration c, by their distance on the grid |
| p(c) | `of` | (Σ w_m p_m + p_0) / (Σ w_m + 1) where c was not measured |

p_0 is the least p_m of n configurations, times n/(n + 1). So where only a start was measured, others are
expected to fail half as often. A start that fails is left, and what fails everywhere moves nothing.

Too little memory is a usual reason to fail. So p_0(c) is 0 as long as every m has more instances or larger
batches than c. Such a c says whether memory is the reason.
"""

from __future__ import annotations

import numpy as np

from rrl.knobs import MEMORY_KNOBS
from rrl.measurement import Measurement
from rrl.space import ConfigurationSpace


class FailureShares:
    """The share expected of every configuration; 0 of all as long as nothing failed."""

    def __init__(self, space: ConfigurationSpace) -> None:
        self._space = space
        in_memory = [k for k, name in enumerate(space.names) if name in MEMORY_KNOBS]
        self._memory = space.indices[:, in_memory]  # (size, memory knobs)
        self._needs_no_less = np.zeros(len(space), dtype=bool)  # than something measured
        self._own: dict[int, float] = {}
        self._shares = np.zeros(len(space))

    def learn(self, number: int, measurement: Measurement) -> None:
        """Takes in an interval; one in which no request was answered tells nothing."""
        if measurement.answered == 0:
            return
        if number not in self._own:
            self._needs_no_less |= (self._memory >= self._memory[number]).all(axis=1)
        self._own[number] = measurement.failure_share
        self._shares = self._expected()

    def of(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) the share expected of these configurations."""
        return self._shares[numbers]

    def _expected(self) -> np.ndarray:
        measured, own = np.array(list(self._own)), np.array(list(self._own.values()))
        if not own.any():
            return np.zeros(len(self._space))
        weights = np.exp(-np.stack([self._space.distances(number) for number in self._own]))
        everywhere = self._needs_no_less * own.min() * len(measured) / (len(measured) + 1)
        shares = (own @ weights + everywhere) / (weights.sum(axis=0) + 1.0)
        shares[measured] = own
        return np.asarray(shares)
