"""Default agents for the tests: living on a simulated server, told single intervals, or knowing by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import family_machine
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.agent import Task, Transition, observe
from rrl.guided.agent import GUIDED, GuidedRRL
from rrl.guided.latency_prior import Circumstances, Latencies
from rrl.measurement import LatencySummary, Measurement, ServiceTimes
from rrl.objective import LeastResources, MeanLatency, StrictSLO
from rrl.region.estimator import EstimatorSettings
from rrl.space import ConfigurationSpace

SPACE = ConfigurationSpace.of(
    instances=range(1, 6), inter_op_threads=range(1, 6), intra_op_threads=range(1, 6)
)
LINE = ConfigurationSpace.of(instances=[1, 2, 3])
RATE_PER_S = 10.0
QUICK = EstimatorSettings(hidden=(4,), max_steps=1)
Change = Callable[[Measurement], Measurement]
Objective = MeanLatency | StrictSLO | LeastResources


def same(measurement: Measurement) -> Measurement:
    return measurement


def lived(
    agent: GuidedRRL,
    scenario: Scenario,
    rates_per_s: np.ndarray,
    objective: Objective | None = None,
    change: Change = same,
    seed: int = 0,
) -> Iterator[int]:
    """The numbers of the configurations proposed, one decision after the other."""
    rates_per_s = np.concatenate([rates_per_s[:1], rates_per_s])  # `reset` takes an interval
    env = scenario.environment(agent.space, objective or MeanLatency(), PerIntervalPoisson(rates_per_s))
    observation, _ = env.reset(seed=seed)
    for _ in rates_per_s[1:]:
        action = agent.act(observation)
        following, _, _, _, info = env.step(action)
        agent.update(Transition(observation, action, info["cost"], following, change(info["measurement"])))
        observation = following
        yield agent.space.number_of_action(action)


@cache
def costs(
    scenario: Scenario, space: ConfigurationSpace, objective: Objective, rate_per_s: float
) -> np.ndarray:
    return ExpectedCosts(scenario, space, objective).costs(rate_per_s)


@cache
def family_scenario(seed: int) -> Scenario:
    return Scenario(family_machine(seed), f"family-{seed}")


def transition(
    number: int,
    latency_ms: float,
    rows: list[ServiceTimes],
    space: ConfigurationSpace = LINE,
    rate_per_s: float = RATE_PER_S,
    **fields: object,
) -> Transition:
    arrivals = round(10 * rate_per_s)
    latency = LatencySummary(latency_ms, latency_ms, latency_ms, latency_ms)
    measurement = Measurement(10.0, arrivals, arrivals, 0, latency, telemetry=tuple(rows))
    measurement = replace(measurement, **fields)  # type: ignore[arg-type]
    observation = observe(measurement, space, number)
    return Transition(observation, space.action(number), latency_ms, observation, measurement)


def row(busy: int, count: int, mean_s: float) -> ServiceTimes:
    return ServiceTimes(busy, 1, count, count * mean_s)


def told(*transitions: Transition) -> GuidedRRL:
    agent = GuidedRRL(Task(LINE), replace(GUIDED, estimator=QUICK))
    for each in transitions:
        agent.update(each)
    return agent


FIRST = transition(2, 60.0, [row(1, 60, 0.05), row(2, 40, 0.06)])
OWN = row(1, 60, 0.05)


class KnownPrior:
    """A prior that predicts what the test wants, in intervals that are 10 % shorter and 10 % longer."""

    def __init__(self, agent: GuidedRRL, mean_ms: list[float]) -> None:
        self.mean_ms = np.array(mean_ms)
        agent.prior.simulated = self.simulated  # type: ignore[method-assign]

    def simulated(self, numbers: np.ndarray, scale: np.ndarray, given: Circumstances) -> Latencies:
        mean_ms = self.mean_ms[numbers][:, None] * np.array([0.9, 1.1])
        return Latencies(mean_ms, 2 * mean_ms)


def by_hand(radius: float = 2.0, in_place: frozenset[str] | None = None, **settings: object) -> GuidedRRL:
    """An agent of `KnownPrior`, whose network is never trained."""
    given = {"radius": radius, "residual_sd": 0.1, "estimator": QUICK, "training_every": 1000} | settings
    agent = GuidedRRL(Task(LINE, in_place=in_place), replace(GUIDED, **given))  # type: ignore[arg-type]
    KnownPrior(agent, [50.0, 40.0, 80.0])
    return agent
