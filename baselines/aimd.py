"""AIMD batching: Clipper's adaptive batch size (Crankshaw et al., NSDI 2017, section 4.3).

The batch size grows by a fixed amount as long as the latency objective holds. Once it is exceeded, the batch
size backs off by 10 %: far less than AIMD in congestion control does, because the best batch size of a
model hardly moves.

| symbol | here | meaning |
|---|---|---|
| b | `_size` | the batch size aimed at, a real number; in force is the largest of the grid not above it |
| +a | `increase` | while the objective holds: b ← b + a |
| ×(1 - d) | `back_off` | when it is exceeded: b ← b (1 - d) |

Two things the paper leaves open. Clipper adapts once a batch, here once an interval. And it needs a latency
objective: here the task's p95 limit. Without one, the objective is taken to be exceeded in an interval that
costs clearly more than the intervals before it did (their exponential moving average).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rrl.agent import Agent, Task, Transition, number_in_force
from rrl.measurement import Measurement
from rrl.objective import slo_violated

KNOB = "max_batch_size"


@dataclass(frozen=True)
class AIMDSettings:
    increase: float = 1.0  # requests an interval; Clipper: "a fixed amount"
    back_off: float = 0.1  # share of the batch size; Clipper: 10 %
    tolerance: float = 0.1  # without a limit: so much above the average is worse; as large as the noise
    memory: float = 0.8  # of the moving average, a share an interval: about 5 intervals; ours

    def __post_init__(self) -> None:
        if not 0 < self.increase < math.inf:
            raise ValueError(f"increase must be a positive number of requests, got {self.increase:g}")
        if not 0 < self.back_off < 1 or not 0 <= self.memory < 1:
            raise ValueError(
                f"back_off must lie in (0, 1) and memory in [0, 1), got {self.back_off:g} and {self.memory:g}"
            )
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance must not be negative, got {self.tolerance:g}")


class AIMD(Agent):
    """Adapts max_batch_size alone; every other knob stays as the first observation found it.

    After an interval under a configuration that it did not propose (the guard's), it goes on from the batch
    size that was in force.
    """

    def __init__(self, task: Task, settings: AIMDSettings | None = None) -> None:
        if KNOB not in task.space.names:
            raise ValueError(
                f"AIMD adapts the knob {KNOB}, which is not among {', '.join(task.space.names)}; "
                f"add it ({KNOB}=1,2,4,8) or choose another agent"
            )
        self.space = task.space
        self.settings = settings or AIMDSettings()
        self._limit_ms = task.objective.slo_p95_ms
        self._axis = task.space.names.index(KNOB)
        self._values = np.asarray(task.space.knobs[self._axis].values, dtype=float)
        self._found: np.ndarray | None = None  # (knobs,) the configuration found, as an action
        self._size = math.nan  # b
        self._average_cost = math.nan

    def act(self, observation: np.ndarray) -> np.ndarray:
        if self._found is None:
            return self.space.action(number_in_force(observation, self.space))
        action = self._found.copy()
        action[self._axis] = self._index()
        return action

    def update(self, transition: Transition) -> None:
        if self._found is None:
            self._found = self.space.action(number_in_force(transition.observation, self.space))
            self._size = self._value(self._found)
        if not np.array_equal(transition.action, self.act(transition.observation)):
            self._size = self._value(transition.action)
        if not transition.has_cost:
            return
        exceeded = self._exceeded(transition.cost, transition.measurement)
        size = self._size * (1 - self.settings.back_off) if exceeded else self._size + self.settings.increase
        self._size = float(np.clip(size, self._values[0], self._values[-1]))
        self._remember(transition.cost)

    def _exceeded(self, cost: float, measurement: Measurement) -> bool:
        if self._limit_ms is not None:
            return slo_violated(measurement, self._limit_ms)
        return cost > (1 + self.settings.tolerance) * self._average_cost  # False while there is none (NaN)

    def _remember(self, cost: float) -> None:
        memory = self.settings.memory
        known = math.isfinite(self._average_cost)
        self._average_cost = memory * self._average_cost + (1 - memory) * cost if known else cost

    def _index(self) -> int:
        """Of the grid's largest batch size that is not above b."""
        return max(0, int(np.searchsorted(self._values, self._size + 1e-9, side="right")) - 1)

    def _value(self, action: np.ndarray) -> float:
        return float(self._values[action[self._axis]])
