"""Exhaustive sweep: every configuration in turn, then the best for ever. It yields the whole landscape."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from rrl.agent import Agent, Proposable, Task, Transition
from rrl.seeding import Seed, whole_seed


class ExhaustiveSweep(Agent):
    """Visits each configuration `repeats` times, each round in an order of its own.

    An interval without a cost, or with a gap, is repeated. Where the guard chose another configuration than
    the next one of the order, the next one is put off to the end. What was refused twice is left out.
    """

    def __init__(self, task: Task, seed: Seed = 0, repeats: int = 1) -> None:
        if repeats < 1:
            raise ValueError(f"a sweep visits each configuration at least once, got repeats={repeats}")
        self.space = task.space
        self._proposable = Proposable(task)
        rng = np.random.default_rng(whole_seed(seed))
        self._to_visit = deque(int(c) for _ in range(repeats) for c in rng.permutation(task.allowed))
        self._totals = np.zeros(len(task.space))
        self._counts = np.zeros(len(task.space), dtype=int)

    @property
    def done(self) -> bool:
        return not self._to_visit

    @property
    def mean_costs(self) -> np.ndarray:
        """(size,) mean cost of each configuration, NaN where it has none yet: the landscape."""
        return np.where(self._counts > 0, self._totals / np.maximum(1, self._counts), math.nan)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self._best() if self.done else self._to_visit[0])

    def update(self, transition: Transition) -> None:
        if not transition.has_cost:
            return
        number = self.space.number_of_action(transition.action)
        self._totals[number] += transition.cost
        self._counts[number] += 1
        if self._to_visit and number != self._to_visit[0]:
            self._to_visit.rotate(-1)
        if number in self._to_visit:
            self._to_visit.remove(number)

    def refused(self, number: int) -> None:
        self._proposable.refused(number)
        self._to_visit = deque(each for each in self._to_visit if self._proposable.mask[each])

    def _best(self) -> int:
        numbers = np.flatnonzero(self._proposable.mask)
        return int(numbers[np.argmin(np.nan_to_num(self.mean_costs[numbers], nan=math.inf))])
