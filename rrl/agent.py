"""The agent contract, `act(observation) -> action` and `update(transition)`, and what an agent observes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from rrl.measurement import Measurement
from rrl.objective import MeanLatency, Objective
from rrl.queueing.machine import Machine
from rrl.space import Configuration, ConfigurationSpace

OBSERVATION_FIELDS = (
    "arrival_rate_per_s",
    "latency_mean_ms",
    "latency_p95_ms",
    "queue_mean_ms",
    "service_mean_ms",
    "mean_batch_size",
    "backlog",
    "cpu_utilisation",
    "gpu_utilisation",
)
"""The first entries of every observation. The knobs' indices, scaled to [0, 1], follow."""

OBSERVATION_LIMIT = 1e7
"""No entry of an observation is larger."""


@dataclass(frozen=True)
class Hindsight:
    """What only a simulation knows beforehand."""

    rates_per_s: np.ndarray  # (decisions,) the true arrival rate of every interval to come
    expected_costs: Callable[[float], np.ndarray]  # a rate -> (size,) the true expected cost of each number


@dataclass(frozen=True)
class Task:
    """What an agent is told before it starts."""

    space: ConfigurationSpace
    objective: Objective = field(default_factory=MeanLatency)
    cores: int | None = None  # of the target's machine; None where it is not known
    machine: Machine | None = None  # service times profiled beforehand; None where there are none
    hindsight: Hindsight | None = None
    excluded: frozenset[int] = frozenset()
    """Configurations that must not be proposed, by number: they use more cores than the model may.

    An agent that never changes how many threads there are need not know them. One that does not know them
    wastes intervals: where it proposes one, the best known runs instead.
    """
    settles: bool = (
        False  # after a change it takes a while until latencies are those of what was put in force
    )
    found: Configuration = field(default_factory=dict)  # the target's; may hold knobs that are not tuned
    concurrency: int | None = None  # of a closed loop that is the load; None: requests come by themselves
    observes_gpus: bool = False  # the target tells how busy its GPUs are; else that entry is always 0
    nodes: int | None = None
    """Nodes of a cluster whose serving units have a queue each (`rrl.queueing.serving_units`).

    All that is measured is then told by node: a unit gets the rate of its nodes. None: one queue serves all.
    """

    @property
    def allowed(self) -> np.ndarray:
        """(K,) the numbers of the configurations that may be proposed."""
        return np.setdiff1d(np.arange(len(self.space)), list(self.excluded))


class Proposable:
    """The configurations that an agent may propose: none that is excluded, or that the target refused twice.

    A refusal may be chance once. The last configuration is never left out.
    """

    def __init__(self, task: Task) -> None:
        self.mask = np.ones(len(task.space), dtype=bool)  # (size,) by number
        self.mask[list(task.excluded)] = False
        self.kept_off: frozenset[int] = frozenset()  # what the guard refuses, for an agent that heeds it
        self._refusals: Counter[int] = Counter()

    @property
    def admitted(self) -> np.ndarray:
        """(size,) bool: the mask without what the guard refuses."""
        admitted = self.mask.copy()
        admitted[list(self.kept_off)] = False
        return admitted

    def refused(self, number: int) -> bool:
        """Hears that the target refused this configuration. True if it did so before, so not by chance."""
        self._refusals[number] += 1
        if self._refusals[number] < 2:
            return False
        others = self.mask.copy()
        others[number] = False
        if others.any():
            self.mask = others
        return True


@dataclass(frozen=True)
class Transition:
    """One decision and its consequences. `action` was in force, whether agent or guard chose it."""

    observation: np.ndarray  # (fields + knobs,) float32: seen before the decision
    action: np.ndarray  # (knobs,) int: index of each knob's value
    cost: float
    next_observation: np.ndarray  # (fields + knobs,) float32: seen after the interval
    measurement: Measurement

    @property
    def has_cost(self) -> bool:
        """False for an interval with a gap, and for one in which nothing was completed."""
        return not self.measurement.gap and math.isfinite(self.cost)


class Agent(ABC):
    """Anything that tunes. Task, hyper-parameters and seed are given at construction.

    `act` and `update` are required. A subclass overrides what else it can do. `rrl.testing` checks the
    contract.
    """

    @abstractmethod
    def act(self, observation: np.ndarray) -> np.ndarray:
        """The next action, (knobs,) int64. It does not wait for training. Asked again, it is the same."""

    @abstractmethod
    def update(self, transition: Transition) -> None:
        """Learns from one finished interval. To resume, it is called with every transition of a journal."""

    def recommended(self) -> int | None:
        """The configuration to keep, by its number; None if the agent has no opinion."""
        return None

    def explain(self) -> str:
        """Why it proposed its last action, in a few words; empty if it does not say."""
        return ""

    def refused(self, number: int) -> None:
        """Hears that the target refused this configuration."""

    def keep_off(self, numbers: frozenset[int]) -> None:
        """Hears which configurations the guard refuses, before each update: failed or aborted lately.

        Whatever else it proposes is tried. Where it proposes one of these, the best known runs instead.
        """

    def finish_training(self) -> None:
        """Waits until training in the background knows every transition so far."""

    def close(self) -> None:
        """Ends what the agent started. Nothing is asked of it afterwards."""


class SteppedEnvironment(Protocol):
    """A Gymnasium environment as far as `live` needs it; `info` holds cost and measurement."""

    def reset(self, *, seed: int | None = ...) -> tuple[np.ndarray, dict[str, Any]]: ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]: ...


def live(
    agent: Agent, env: SteppedEnvironment, decisions: int, seed: int | None = None
) -> Iterator[Transition]:
    """The bare loop: the agent acts and learns, without guard or journal.

    It yields one transition for each decision, after the agent has learned from it.
    """
    observation, _ = env.reset(seed=seed)
    for _ in range(decisions):
        action = agent.act(observation)
        after, _, _, _, info = env.step(action)
        transition = Transition(observation, action, info["cost"], after, info["measurement"])
        agent.update(transition)
        yield transition
        observation = after


def observe(measurement: Measurement, space: ConfigurationSpace, number: int) -> np.ndarray:
    """(fields + knobs,) float32: the observation after an interval under configuration `number`.

    A field that was not observed (NaN) is 0. Every entry is clipped to [0, OBSERVATION_LIMIT].
    """
    fields = (
        measurement.arrival_rate_per_s,
        measurement.latency.mean_ms,
        measurement.latency.p95_ms,
        measurement.queue.mean_ms,
        measurement.service.mean_ms,
        measurement.mean_batch_size,
        measurement.backlog,
        measurement.cpu_utilisation,
        measurement.gpu_utilisation,
    )
    knobs = space.features_of(number)
    observation = np.empty(len(fields) + len(knobs), np.float32)
    # NaN compares false with everything, so that it becomes 0 here.
    observation[: len(fields)] = [min(v, OBSERVATION_LIMIT) if v > 0.0 else 0.0 for v in fields]
    observation[len(fields) :] = knobs
    return observation


def with_gpus(observation: np.ndarray, space: ConfigurationSpace) -> np.ndarray:
    """The observation with an entry for the GPUs' use, which those of a journal may lack: 0 there."""
    fields = len(OBSERVATION_FIELDS)
    if len(observation) != fields - 1 + len(space.knobs):
        return observation
    return np.insert(observation, fields - 1, 0.0)


def arrival_rate_per_s(observation: np.ndarray) -> float:
    """The load in the interval of an observation."""
    return float(observation[0])


def number_in_force(observation: np.ndarray, space: ConfigurationSpace) -> int:
    """The configuration that was in force when this was observed."""
    longest = np.asarray(space.shape) - 1
    return space.number_of_action(np.rint(observation[len(OBSERVATION_FIELDS) :] * longest))
