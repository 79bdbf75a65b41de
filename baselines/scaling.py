"""Scales observations and costs to numbers that a network can learn from, whatever the server.

Latencies and rates span decades, and a cost may be milliseconds or threads. So the first observation and the
first cost are the units. An observation in which nothing was answered has no latency, and is none:

| symbol | here | meaning |
|---|---|---|
| x | `Scaling.inputs` | ln((1 + field) / (1 + its first value)), clipped. Knob features stay as they are |
| | `Scaling.size` | how many inputs that are: the GPUs' use is none where the target does not tell it |
| r_t / r_1 | `Scaling.relative_cost` | the cost of an interval divided by the first cost, clipped |
"""

from __future__ import annotations

import math

import numpy as np

from rrl.agent import OBSERVATION_FIELDS, Task, Transition

INPUT_LIMIT = 5.0
RELATIVE_COST_LIMITS = (1e-4, 1e4)
LOWEST_COST = 1e-9  # every cost can be a divisor and has a logarithm
LOWEST_RATE_PER_S = 0.01  # every rate has a logarithm

_FIELDS = len(OBSERVATION_FIELDS)
_LATENCY = OBSERVATION_FIELDS.index("latency_mean_ms")
_GPUS = OBSERVATION_FIELDS.index("gpu_utilisation")


class Scaling:
    """Scales by the units of the first transition that it is shown."""

    def __init__(self, task: Task) -> None:
        self._left_out = () if task.observes_gpus else (_GPUS,)
        self.size = _FIELDS - len(self._left_out) + len(task.space.knobs)
        self._first_fields: np.ndarray | None = None
        self._first_cost = math.nan

    def see(self, transition: Transition) -> None:
        """Takes the units from a transition with a cost, unless it has them already."""
        if self._first_fields is None:
            was_answered = transition.observation[_LATENCY] > 0
            first = transition.observation if was_answered else transition.next_observation
            self._first_fields = first[:_FIELDS]
            self._first_cost = max(transition.cost, LOWEST_COST)

    def inputs(self, observation: np.ndarray) -> np.ndarray:
        """(size,) float32: x, the input of a network."""
        fields = observation[:_FIELDS]
        first = fields if self._first_fields is None else self._first_fields
        scaled = np.clip(np.log1p(fields) - np.log1p(first), -INPUT_LIMIT, INPUT_LIMIT)
        inputs = np.concatenate([scaled, observation[_FIELDS:]]).astype(np.float32)
        return np.delete(inputs, self._left_out) if self._left_out else inputs

    def relative_cost(self, cost: float) -> float:
        return float(np.clip(cost / self._first_cost, *RELATIVE_COST_LIMITS))
