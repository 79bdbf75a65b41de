"""The agent contract: `act(observation) -> action`, `update(transition)`; and what an agent observes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from rrl.measurement import Measurement
from rrl.objective import MeanLatency, Objective
from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace

OBSERVATION_FIELDS = (
    "arrival_rate_per_s",
    "latency_mean_ms",
    "latency_p95_ms",
    "queue_mean_ms",
    "service_mean_ms",
    "mean_batch_size",
    "backlog",
    "cpu_utilisation",
)
"""The first entries of every observation; the knobs' indices, scaled to [0, 1], follow."""

OBSERVATION_LIMIT = 1e7


@dataclass(frozen=True)
class Hindsight:
    """What only a simulation can know beforehand."""

    rates_per_s: np.ndarray  # (decisions,) the true arrival rate of every interval to come
    expected_costs: Callable[[float], np.ndarray]  # a rate -> (size,) the true expected cost of each number


@dataclass(frozen=True)
class Task:
    """What an agent is told before it starts."""

    space: ConfigurationSpace
    objective: Objective = field(default_factory=MeanLatency)
    cores: int | None = None  # of the target's machine, where known
    machine: Machine | None = None  # service times profiled beforehand, where there are any
    hindsight: Hindsight | None = None


@dataclass(frozen=True)
class Transition:
    """One decision and what came of it. `action` is the one in force, which the guard may have chosen."""

    observation: np.ndarray  # (fields + knobs,) float32: seen before the decision
    action: np.ndarray  # (knobs,) int: index of each knob's value
    cost: float
    next_observation: np.ndarray  # (fields + knobs,) float32: seen after the interval
    measurement: Measurement


class Agent(Protocol):
    """Anything that tunes. The task, hyper-parameters and seed are given at construction."""

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The next action, (knobs,) int64. Must not wait for training."""
        ...

    def update(self, transition: Transition) -> None:
        """Learns from one finished interval; called with every transition of a journal to resume."""
        ...


def observe(measurement: Measurement, space: ConfigurationSpace, number: int) -> np.ndarray:
    """(fields + knobs,) float32: the observation after an interval under configuration `number`.

    What was not observed (NaN) is 0; everything is clipped to [0, OBSERVATION_LIMIT].
    """
    fields = [
        measurement.arrival_rate_per_s,
        measurement.latency.mean_ms,
        measurement.latency.p95_ms,
        measurement.queue.mean_ms,
        measurement.service.mean_ms,
        measurement.mean_batch_size,
        measurement.backlog,
        measurement.cpu_utilisation,
    ]
    vector = np.concatenate([np.asarray(fields, dtype=float), space.features[number]])
    return np.clip(np.nan_to_num(vector), 0.0, OBSERVATION_LIMIT).astype(np.float32)


def arrival_rate_per_s(observation: np.ndarray) -> float:
    """The load an observation speaks of."""
    return float(observation[0])
