"""Quick search: the hill climbing of NVIDIA's Triton Model Analyzer, as an agent.

Its documentation (github.com/triton-inference-server/model_analyzer, docs/config_search.md, "Quick Search
Mode") calls it a "heuristic sweep using a hill-climbing algorithm". It searches a model's instance count and
maximum batch size, with dynamic batching on. It leaves every other parameter of the configuration as it is.
How it climbs, and the constants, are those of version 1.58.0 on PyPI:

- The configuration found is measured first, then the *home*: the least value of every searched knob.
- Coordinates are indices of values. Instances grow by 1, batch sizes by powers of two.
- The *neighbourhood* of a home are the coordinates within a Euclidean distance of `radius`.
- At least `min_initialized` neighbours are measured. Next comes the one with the most indices that no
  measured neighbour has.
- The *step* of a knob to the next home is the mean gain over the home for each index moved (s_k below).
  `step_thresholds` make it an integer: above the first it is 1, above the second 2, above the third 3.
- The search ends where there is no step, or where it leads to a home for the third time.
- Ours: what must not be proposed is nobody's neighbour, and a step to it ends the search. The same holds for
  what the target refused twice, and for what the guard refuses before it was measured.

| symbol | here | meaning |
|---|---|---|
| h, n | `_home`, `neighbour` | coordinates: indices of the searched knobs' values |
| g(n) | `_gain` | (cost(h) - cost(n)) / ((cost(h) + cost(n)) / 2), in (-2, 2) |
| s_k | `_step` | Σ_n g(n) sign(n_k - h_k) / Σ_n abs(n_k - h_k), over the measured neighbours |

Then it stays with the best it measured, as an offline tool does. Nothing is measured twice, the configuration
found included.

The analyzer sends a closed loop of its own, of 2 x instances x batch size requests, and climbs throughput.
Here the load is the users', so the search climbs down the task's cost. Constraints are part of that cost. So
the analyzer's slow mode, for homes at the edge of a constraint, is not needed.

With `every_knob` it searches all knobs in the same way. Model Analyzer does not offer this, but it is what
its algorithm could do with this space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rrl.agent import Agent, Proposable, Task, Transition, number_in_force

SEARCHED = ("max_batch_size", "instances")

Coordinate = tuple[int, ...]


@dataclass(frozen=True)
class QuickSearchSettings:
    every_knob: bool = False  # False: the maximum batch size and the instances, as Model Analyzer does
    radius: int = 3  # of the neighbourhood, in indices
    min_initialized: int = 3  # neighbours measured before a step
    step_thresholds: tuple[float, ...] = (0.09, 0.3, 1.0)  # gains above which a step is 1, 2, 3 long
    most_visits: int = 2  # to one home

    def __post_init__(self) -> None:
        for name in ("radius", "min_initialized", "most_visits"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.step_thresholds or list(self.step_thresholds) != sorted(self.step_thresholds):
            raise ValueError(f"step_thresholds must ascend, got {self.step_thresholds}")


EVERY_KNOB = QuickSearchSettings(every_knob=True)
"""The search over all knobs of the space."""


class QuickSearch(Agent):
    """Climbs once, then stays. It draws nothing at random.

    An interval without a cost, or with a gap, is repeated. A configuration that the guard chose counts where
    it lies on the searched grid, and the proposal stays.
    """

    def __init__(self, task: Task, settings: QuickSearchSettings | None = None) -> None:
        self.space = task.space
        self.settings = settings or QuickSearchSettings()
        wanted = self.space.names if self.settings.every_knob else SEARCHED
        self._axes = [self.space.names.index(name) for name in wanted if name in self.space.names]
        if not self._axes:
            raise ValueError(
                f"quick search searches {' and '.join(SEARCHED)}, neither of which is among "
                f"{', '.join(self.space.names)}; add one (instances=1:4) or choose another agent"
            )
        self._proposable = Proposable(task)
        self._highest = np.asarray(self.space.shape)[self._axes] - 1
        self._found: np.ndarray | None = None  # (knobs,) the configuration found, as an action
        self._found_cost = math.nan
        self._costs: dict[Coordinate, float] = {}  # of what was measured
        self._home: Coordinate = (0,) * len(self._axes)
        self._visits: dict[Coordinate, int] = {}  # of homes
        self._next: Coordinate | None = self._home  # to measure; None: the search is over

    @property
    def done(self) -> bool:
        return self._next is None

    def act(self, observation: np.ndarray) -> np.ndarray:
        if self._found is None:
            return self.space.action(number_in_force(observation, self.space))
        if math.isnan(self._found_cost):
            return self._found.copy()
        return self._best() if self._next is None else self._action(self._next)

    def recommended(self) -> int | None:
        """The best it measured; None before the configuration found was."""
        return None if math.isnan(self._found_cost) else self.space.number_of_action(self._best())

    def update(self, transition: Transition) -> None:
        if self._found is None:
            self._found = self.space.action(number_in_force(transition.observation, self.space))
        if self.done or not transition.has_cost:
            return
        if math.isnan(self._found_cost) and np.array_equal(transition.action, self._found):
            self._found_cost = transition.cost
        coordinate = tuple(transition.action[self._axes].tolist())
        if np.array_equal(self._action(coordinate), transition.action):
            self._costs.setdefault(coordinate, transition.cost)
        self._go_on()

    def refused(self, number: int) -> None:
        self._proposable.refused(number)
        if self._found is not None:
            self._go_on()

    def keep_off(self, numbers: frozenset[int]) -> None:
        self._proposable.kept_off = numbers

    def _go_on(self) -> None:
        """Finds the next to measure, unless it is there. A home that may not be measured ends the search."""
        while self._next is not None and (self._next in self._costs or not self._may_be(self._next)):
            if self._home not in self._costs:
                self._next = None
            else:
                self._next = self._unmeasured_neighbour() if self._needs_neighbours() else self._next_home()

    def _needs_neighbours(self) -> bool:
        neighbours = self._neighbours()
        measured = sum(n in self._costs for n in neighbours)
        return measured < min(self.settings.min_initialized, len(neighbours))

    def _unmeasured_neighbour(self) -> Coordinate:
        """The neighbour with the most indices that no measured neighbour has; the nearest ones come first."""
        neighbours = self._neighbours()
        seen = [{n[k] for n in neighbours if n in self._costs} for k in range(len(self._axes))]

        def unseen(n: Coordinate) -> int:
            return sum(index not in seen[k] for k, index in enumerate(n))

        return max((n for n in neighbours if n not in self._costs), key=unseen)

    def _next_home(self) -> Coordinate | None:
        """Where the step leads; None if that ends the search."""
        home = tuple(np.clip(np.add(self._home, self._step()), 0, self._highest).tolist())
        visits = self._visits.get(home, 0)
        if home == self._home or visits >= self.settings.most_visits or not self._may_be(home):
            return None
        self._visits[home] = visits + 1
        self._home = home
        return home

    def _step(self) -> np.ndarray:
        """(searched knobs,) int: s_k, made an integer by the thresholds."""
        measured = [n for n in self._neighbours() if n in self._costs]
        if not measured:
            return np.zeros(len(self._axes), dtype=int)
        offsets = np.subtract(measured, self._home)  # (neighbours, searched knobs)
        gains = np.asarray([self._gain(n) for n in measured])
        moved = np.abs(offsets).sum(axis=0)
        vector = gains @ np.sign(offsets) / np.maximum(moved, 1)
        lengths = np.searchsorted(self.settings.step_thresholds, np.abs(vector))
        return (np.sign(vector) * lengths).astype(int)

    def _gain(self, neighbour: Coordinate) -> float:
        at_home, there = self._costs[self._home], self._costs[neighbour]
        mean = (at_home + there) / 2
        return (at_home - there) / mean if mean > 0 else 0.0

    def _neighbours(self) -> list[Coordinate]:
        """The coordinates within the radius of the home, without the home itself."""
        radius = self.settings.radius
        reach = np.indices([2 * radius + 1] * len(self._axes)).reshape(len(self._axes), -1).T - radius
        near = reach[(reach**2).sum(axis=1) <= radius**2]
        nearest_first_upwards_first = (*(near < 0).T[::-1], *np.abs(near).T[::-1])
        near = near[np.lexsort(nearest_first_upwards_first)]
        there = near + np.asarray(self._home)
        inside = ((there >= 0) & (there <= self._highest)).all(axis=1) & near.any(axis=1)
        return [tuple(row) for row in there[inside].tolist() if self._may_be(tuple(row))]

    def _may_be(self, coordinate: Coordinate) -> bool:
        """False for what must not be proposed; of what was measured the guard's refusal counts no more."""
        proposable = self._proposable
        mask = proposable.mask if coordinate in self._costs else proposable.admitted
        return bool(mask[self._number(coordinate)])

    def _best(self) -> np.ndarray:
        """Of what was measured and may be proposed; the configuration found where there is nothing else."""
        assert self._found is not None
        admitted = self._proposable.admitted
        free = [each for each in self._costs if admitted[self._number(each)]]
        best = min(free, key=lambda coordinate: self._costs[coordinate], default=None)
        if best is None or self._found_cost < self._costs[best]:
            return self._found.copy()
        return self._action(best)

    def _number(self, coordinate: Coordinate) -> int:
        return self.space.number_of_action(self._action(coordinate))

    def _action(self, coordinate: Coordinate) -> np.ndarray:
        """The configuration found, with the searched knobs at this coordinate."""
        assert self._found is not None
        action = self._found.copy()
        action[self._axes] = coordinate
        return action
