"""What configurations may cost, and which of them is probably better than the one in force.

| symbol | here | meaning |
|---|---|---|
| x_d(c) | `costs` | cost of configuration c in the d-th of D equally likely worlds; infinite: overloaded |
| c_0 | `present` | the configuration in force; `distances` are from it |
| P(c) | `no_worse` | the share of the worlds with x_d(c) <= x_d(c_0) |
| g(c) | `gain` | exp of the mean of ln x_d(c_0)/x_d(c): how many times lower the cost is |

A world is one of the ways in which things may be, by all that is known. Machine and load are the same in it
for all configurations, so that a comparison within it is one of configurations alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

CREDIBILITY = 0.9  # Of the intervals, and of being no worse.
MIN_GAIN_TO_RECOMMEND = 1.05  # Less is not worth a change.
EQUAL_GAINS_RATIO = 1.02  # Gains within such a factor count as equal.
CHOICES = 2  # that are judged, one after the other.
MAX_DISTANCE_SD = 3.5  # Worlds farther than this from what was observed are all equally unlikely.
MAX_COST_RATIO = 10.0  # To the observed cost: an overload, or anything worse, counts as much in a gain.


class Expectation(NamedTuple):
    """The median of a cost, and the bounds that hold it with `CREDIBILITY`. An overload is infinite."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class PossibleCosts:
    """The costs of K configurations in D worlds. The methods name a configuration by its position."""

    costs: np.ndarray  # (K, D)
    distances: np.ndarray  # (K,) From the present one.
    observed_cost: float  # Of the present one.
    numbers: np.ndarray  # (K,) The numbers of the configurations on the grid.
    worlds: np.ndarray  # (D,) What each world is called: one that was drawn twice counts as one.

    @property
    def present(self) -> int:
        return int(np.argmin(self.distances))

    def expectation(self, k: int) -> Expectation:
        tail = (1 - CREDIBILITY) / 2
        return Expectation(*np.quantile(self.costs[k], [tail, 0.5, 1 - tail], method="nearest").tolist())

    @property
    def no_worse(self) -> np.ndarray:
        """(K,) the share of the worlds in which each costs no more than the present one."""
        no_worse = np.isfinite(self.costs) & (self.costs <= self.costs[self.present])
        result: np.ndarray = no_worse.mean(axis=1)
        return result

    @property
    def gain(self) -> np.ndarray:
        """(K,) how many times lower each cost is than the present one's."""
        bounded = np.log(np.minimum(self.costs, MAX_COST_RATIO * self.observed_cost))
        result: np.ndarray = np.exp((bounded[self.present] - bounded).mean(axis=1))
        return result

    def best_guess(self) -> int:
        """The position of the largest gain, however uncertain."""
        return self._nearest_of_the_largest(self.gain)

    def recommended(self) -> int | None:
        """The position of the largest gain that is no loss with `CREDIBILITY`. None if it is too small.

        Every other world chooses, and the rest judge what was chosen: the largest of many gains is partly
        luck, which the worlds that chose it do not show. A world that was drawn twice does only one of both.
        Where what was chosen does not stand, the largest of the surer gains is judged.
        """
        _, place = np.unique(self.worlds, return_inverse=True)
        if place.max() == 0:
            return None
        choosing, judging = self._in_worlds(place % 2 == 0), self._in_worlds(place % 2 == 1)
        sure = choosing.no_worse >= CREDIBILITY
        for _ in range(CHOICES):
            best = self._nearest_of_the_largest(np.where(sure, choosing.gain, 0.0))
            if not sure[best] or best == self.present:
                break
            if judging.no_worse[best] >= CREDIBILITY and judging.gain[best] >= MIN_GAIN_TO_RECOMMEND:
                return best
            sure &= choosing.no_worse > choosing.no_worse[best]
        return None

    def _in_worlds(self, some: np.ndarray) -> PossibleCosts:
        return replace(self, costs=self.costs[:, some], worlds=self.worlds[some])

    def _nearest_of_the_largest(self, gain: np.ndarray) -> int:
        """The position of the largest gain. Among equal gains it is that of the smallest change."""
        largest = np.flatnonzero(gain * EQUAL_GAINS_RATIO >= gain.max())
        return int(largest[np.lexsort((-gain[largest], self.distances[largest]))[0]])


def likely_worlds(
    predicted: np.ndarray, observed: float, sd: float, count: int, rng: np.random.Generator
) -> np.ndarray:
    """(count,) worlds drawn by how well they explain what was observed (systematic resampling).

    `predicted` is what each world lets expect, and `sd` the standard deviation of its logarithm. A world that
    contradicts the observation keeps a little weight, as the model of it may be wrong.
    """
    distance = np.abs(np.log(np.clip(predicted, 1e-9, 1e9) / observed)) / sd
    weights = np.exp(-0.5 * np.minimum(distance, MAX_DISTANCE_SD) ** 2)
    positions = (np.arange(count) + rng.random()) / count
    drawn = np.searchsorted(np.cumsum(weights / weights.sum()), positions)
    return np.minimum(drawn, len(weights) - 1)
