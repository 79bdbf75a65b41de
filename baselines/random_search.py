"""Random search: a configuration drawn uniformly for every interval. Any learner must beat it."""

from __future__ import annotations

import numpy as np

from rrl.agent import Agent, Proposable, Task, Transition
from rrl.seeding import Seed, whole_seed


class RandomSearch(Agent):
    """Draws the next configuration when a transition arrives, so that replaying a journal resumes exactly."""

    def __init__(self, task: Task, seed: Seed = 0) -> None:
        self.space = task.space
        self._proposable = Proposable(task)
        self._rng = np.random.default_rng(whole_seed(seed))
        self._next = self._drawn()

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self._next)

    def update(self, transition: Transition) -> None:
        self._next = self._drawn()

    def refused(self, number: int) -> None:
        self._proposable.refused(number)

    def _drawn(self) -> int:
        numbers = np.flatnonzero(self._proposable.mask)
        return int(numbers[self._rng.integers(len(numbers))])
