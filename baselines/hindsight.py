"""Bounds from hindsight: the oracle, and the best configuration that never changes.

Both are told what no server knows beforehand. One is the true arrival rate λ_t of every interval to come. The
other is the expected cost E[r | λ, c] of every configuration at every rate, by long simulation.

| symbol | here | meaning |
|---|---|---|
| λ_t | `rates_per_s[t]` | the true arrival rate of the interval that decision t is for |
| E[r given λ, c] | `expected_costs(rate)` | (size,) expected cost of an interval under each configuration |

| agent | chooses | bounds |
|---|---|---|
| oracle | c_t = argmin_c E[r given λ_t, c] | every agent, in expectation, unless queues are carried over |
| best fixed | c = argmin_c Σ_t E[r given λ_t, c] | every agent that does not adapt to the load |
"""

from __future__ import annotations

import math

import numpy as np

from rrl.agent import Agent, Hindsight, Task, Transition


class Oracle(Agent):
    """Takes for decision t the configuration that costs least at that interval's rate.

    Every update counts as one interval, whatever it measured. After the last known rate the oracle stays.
    """

    def __init__(self, task: Task) -> None:
        self.space = task.space
        self._hindsight = _hindsight(task, "the oracle")
        self._excluded = list(task.excluded)
        self._best: dict[float, int] = {}  # by rate
        self._decision = 0

    def act(self, observation: np.ndarray) -> np.ndarray:
        rates_per_s = self._hindsight.rates_per_s
        rate_per_s = float(rates_per_s[min(self._decision, len(rates_per_s) - 1)])
        if rate_per_s not in self._best:
            self._best[rate_per_s] = _cheapest(self._hindsight.expected_costs(rate_per_s), self._excluded)
        return self.space.action(self._best[rate_per_s])

    def update(self, transition: Transition) -> None:
        self._decision += 1


class BestFixed(Agent):
    """The one configuration whose expected cost, summed over all intervals to come, is lowest."""

    def __init__(self, task: Task) -> None:
        self.space = task.space
        hindsight = _hindsight(task, "the best fixed configuration")
        rates_per_s, intervals = np.unique(hindsight.rates_per_s, return_counts=True)
        costs = [hindsight.expected_costs(float(rate)) for rate in rates_per_s]
        self._number = _cheapest(intervals @ np.stack(costs), list(task.excluded))

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self._number)

    def update(self, transition: Transition) -> None:
        pass


def _cheapest(costs: np.ndarray, excluded: list[int]) -> int:
    """The number with the lowest cost; one without a cost (NaN) or excluded is never it, unless all are."""
    known = np.nan_to_num(costs, nan=math.inf)
    known[excluded] = math.inf
    return int(np.argmin(known))


def _hindsight(task: Task, who: str) -> Hindsight:
    if task.hindsight is None:
        raise ValueError(
            f"{who} needs every configuration's expected cost, which only a simulation knows beforehand; "
            "use rrl-compare"
        )
    if len(task.hindsight.rates_per_s) == 0:
        raise ValueError(f"{who} needs the true arrival rate of at least one interval, got none")
    return task.hindsight
