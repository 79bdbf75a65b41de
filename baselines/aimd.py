"""AIMD batching: Clipper's adaptive batch size (Crankshaw et al., NSDI 2017, section 4.3).

The batch size grows by a fixed amount as long as the latency objective holds. Once it is exceeded, the batch
size backs off by 10 %. That is far less than AIMD does in congestion control, because the best batch size of
a model hardly moves.

| symbol | here | meaning |
|---|---|---|
| b | `_size` | the batch size aimed at, a real number. The grid's largest value up to it is in force |
| +a | `increase` | while the objective holds: b ← b + a |
| ×(1 - d) | `back_off` | when it is exceeded: b ← b (1 - d) |

Two things differ from Clipper. It adapts once a batch, this agent once an interval. Its latency objective is
here the task's p95 limit. Without a limit, an interval exceeds the objective if it costs clearly more than
the exponential moving average of the intervals before it.
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
    increase: float = 1.0  # requests for each interval (Clipper: "a fixed amount")
    back_off: float = 0.1  # share of the batch size (Clipper: 10 %)
    tolerance: float = 0.1  # share above the average that is clearly more, without a limit; as large as noise
    memory: float = 0.8  # share of the average that an interval keeps, so that it spans about 5; ours

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
    """Adapts max_batch_size alone. Every other knob stays as the first observation found it.

    After an interval whose configuration the guard chose, it goes on from the batch size that was in force.
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
        return cost > (1 + self.settings.tolerance) * self._average_cost  # False for the first interval: NaN

    def _remember(self, cost: float) -> None:
        memory = self.settings.memory
        known = math.isfinite(self._average_cost)
        self._average_cost = memory * self._average_cost + (1 - memory) * cost if known else cost

    def _index(self) -> int:
        """The index of the grid's largest batch size that is not above b."""
        return max(0, int(np.searchsorted(self._values, self._size + 1e-9, side="right")) - 1)

    def _value(self, action: np.ndarray) -> float:
        return float(self._values[action[self._axis]])
