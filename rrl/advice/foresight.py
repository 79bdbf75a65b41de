"""What configurations would cost that are not in force, by what there is to go by.

| source | a world is |
|---|---|
| `by_observation`: intervals of the configuration in force | a table of service times, a load, arrivals |
| `by_machine`: a machine file | a factor on all its service times, an error of each configuration's cost |
| `by_table`: a reference table | an error of the two costs that were measured, more for the earlier one |

By observation: what the default agent learns from the intervals (`rrl.guided.agent`) holds, besides the
likeliest service times of every configuration, how uncertain they are. A simulated queue tells what every
configuration costs in each of the worlds drawn from that. Worlds that explain the latency observed are drawn
in preference: service times that the target did not tell, such as those with more instances busy, show in the
queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from rrl.advice.prediction import Prediction, likely
from rrl.agent import Task, Transition
from rrl.guided.agent import GuidedRRL
from rrl.guided.latency_prior import Circumstances, LatencyPrior
from rrl.guided.telemetry import tells_batch_sizes
from rrl.measured_costs import NOISE
from rrl.space import Configuration

WORLDS = 60  # in which everything is simulated ...
DRAWN = 400  # ... chosen from so many
MOST_CONFIGURATIONS = 400  # that are simulated in each: the most promising ...
NEAR = 2.0  # ... and those within this distance of the one in force
THREADS_SD = 0.4  # of the exponent of threads, beside the process's own: some models gain nothing from them
OBSERVED_SD = 0.15  # of ln of what was observed around what a world predicts

FACTORS = np.exp(0.15 * ndtri((np.arange(9) + 0.5) / 9))  # by which a machine may be slower than its file
ANOTHER_RUN = 0.15  # sd of ln of a cost that an earlier run measured around what it is now
MODEL_SD = 0.1  # of ln of a cost simulated from a machine file: `scripts/bench serf-model` finds 9 %

Simulate = Callable[[float, float], np.ndarray]
"""simulate(rate, how many times slower) -> (size,) costs by a machine file, infinite where overloaded."""


class Foresight(NamedTuple):
    prediction: Prediction
    numbers: np.ndarray  # (K,) of its configurations


def by_observation(task: Task, observed: Sequence[Transition], seed: int = 0) -> Foresight | None:
    """From intervals of the configuration in force; None if they tell no service times by batch size."""
    task = replace(task, cores=_cores_left(task, observed))
    agent = GuidedRRL(task, seed=seed)
    for transition in observed:
        agent.update(transition)
    if not agent.service_times.known or not all(tells_batch_sizes(t.measurement) for t in observed):
        return None
    rng = np.random.default_rng(seed)
    present = _present(task, observed)
    numbers = _allowed(_promising(agent, task, present), task, present)
    worlds = _worlds(agent, task, present, rng)
    if _grows(task, observed):  # a queue that grows has no latency to compare
        chosen = np.arange(WORLDS)
    else:
        latency_ms = np.array([_mean_ms(world, present) for world in worlds])
        seen_ms = float(np.mean([t.measurement.latency.mean_ms for t in observed]))
        chosen = likely(latency_ms, seen_ms, OBSERVED_SD, WORLDS, rng)
    costs = np.stack([_costs(worlds[k], numbers, task) for k in chosen], axis=1)
    return _foresight(costs, numbers, task, observed)


def by_machine(task: Task, observed: Sequence[Transition], simulate: Simulate, seed: int = 0) -> Foresight:
    """From the simulation of a machine file, at the load observed."""
    rng = np.random.default_rng(seed)
    present = _present(task, observed)
    numbers = _allowed(np.arange(len(task.space)), task, present)
    rate_per_s = float(np.mean([t.measurement.arrival_rate_per_s for t in observed]))
    simulated = np.stack([simulate(rate_per_s, factor)[numbers] for factor in FACTORS.tolist()], axis=1)
    drawn = rng.integers(len(FACTORS), size=DRAWN)
    costs = simulated[:, drawn] * np.exp(MODEL_SD * rng.standard_normal((len(numbers), DRAWN)))
    if not _grows(task, observed):
        in_force = costs[np.flatnonzero(numbers == present)[0]]
        costs = costs[:, likely(in_force, _mean_cost(observed), OBSERVED_SD, DRAWN, rng)]
    return _foresight(costs, numbers, task, observed)


def by_table(
    task: Task,
    observed: Sequence[Transition],
    number: int,
    cost: float,
    intervals: int,
    apart: float = 0.0,
    seed: int = 0,
) -> Foresight:
    """From what a configuration cost over some intervals of an earlier run.

    Beside the noise of its intervals it may be wrong because that run was another (`ANOTHER_RUN`), and
    because its load differed: `apart`, the logarithm of the factor, is taken for an error of the cost.
    """
    rng = np.random.default_rng(seed)
    present = _present(task, observed)
    elsewhere = math.hypot(NOISE / math.sqrt(intervals), ANOTHER_RUN, apart)
    known = {present: (_mean_cost(observed), NOISE / math.sqrt(len(observed))), number: (cost, elsewhere)}
    costs = [
        mean * np.exp(error * rng.permutation(ndtri((np.arange(DRAWN) + 0.5) / DRAWN)))
        for mean, error in known.values()
    ]
    numbers = np.array(list(known))
    return _foresight(np.stack(costs), numbers, task, observed)


def _foresight(
    costs: np.ndarray, numbers: np.ndarray, task: Task, observed: Sequence[Transition]
) -> Foresight:
    distances = task.space.distances(_present(task, observed))[numbers]
    return Foresight(Prediction(costs, distances, _mean_cost(observed)), numbers)


def _allowed(numbers: np.ndarray, task: Task, present: int) -> np.ndarray:
    """Those that may be proposed, and the one in force."""
    return numbers[~np.isin(numbers, list(task.excluded - {present}))]


def _present(task: Task, observed: Sequence[Transition]) -> int:
    return task.space.number_of_action(observed[-1].action)


def _mean_cost(observed: Sequence[Transition]) -> float:
    return float(np.mean([transition.cost for transition in observed]))


class _World(NamedTuple):
    prior: LatencyPrior  # with its service times and arrivals
    given: Circumstances


def _cores_left(task: Task, observed: Sequence[Transition]) -> int | None:
    """The cores that other programs leave to the model, as far as that is told.

    What is busy beyond the threads of the batches in service is theirs; a server that tells only its own use
    shows none.
    """
    present = _present(task, observed)
    threads = task.space.threads[present] / task.space.configuration(present).get("instances", 1)
    busy = float(np.mean([t.measurement.cpu_utilisation for t in observed]))
    if task.cores is None or math.isnan(busy):
        return task.cores
    service_s = sum(row.total_s for t in observed for row in t.measurement.telemetry)
    own = threads * service_s / sum(t.measurement.duration_s for t in observed)
    return max(1, round(task.cores - max(0.0, busy * task.cores - own)))


def _promising(agent: GuidedRRL, task: Task, present: int) -> np.ndarray:
    """(K,) the lowest costs by the likeliest service times, and what is near the configuration in force."""
    space = task.space
    if len(space) <= MOST_CONFIGURATIONS:
        return np.arange(len(space))
    latencies = agent.prior.screened(np.arange(len(space)), np.ones(len(space)), agent.forecast.rate_per_s)
    costs = task.objective.costs(latencies.mean_ms, latencies.p95_ms, space.threads[:, None]).mean(axis=1)
    return np.union1d(np.argsort(costs, kind="stable")[:MOST_CONFIGURATIONS], space.region(present, NEAR))


def _worlds(agent: GuidedRRL, task: Task, present: int, rng: np.random.Generator) -> list[_World]:
    forecast, model = agent.forecast, agent.service_times
    rates_per_s = forecast.rate_per_s * np.exp(forecast.log_sd * rng.standard_normal(DRAWN))
    threads = _speed_ups(agent, task.space.configuration(present), rng)
    worlds = []
    for times_s, factor, rate_per_s in zip(
        model.draws(DRAWN, rng), threads, rates_per_s.tolist(), strict=True
    ):
        prior = LatencyPrior(agent.space, model, rng)
        prior.refresh(times_s * factor)
        worlds.append(_World(prior, Circumstances(rate_per_s, variation=agent.variation)))
    return worlds


def _speed_ups(agent: GuidedRRL, present: Configuration, rng: np.random.Generator) -> np.ndarray:
    """(DRAWN, tables, 1, 1) what other numbers of threads change beyond what the process admits."""
    model = agent.service_times
    inter = np.log(model.inter / present.get("inter_op_threads", 1))
    intra = np.log(model.intra / present.get("intra_op_threads", 1))
    exponents = THREADS_SD * rng.standard_normal((DRAWN, 2, 1, 1))
    logs = exponents[:, 0] * inter[:, None] + exponents[:, 1] * intra  # (DRAWN, inter, intra)
    per_table = np.repeat(logs[..., None], len(model.instances), axis=-1)
    result: np.ndarray = np.exp(per_table).reshape(DRAWN, -1, 1, 1)
    return result


def _mean_ms(world: _World, number: int) -> float:
    latencies = world.prior.simulated(np.array([number]), np.ones(1), world.given)
    return float(latencies.mean_ms.mean())


def _costs(world: _World, numbers: np.ndarray, task: Task) -> np.ndarray:
    """(K,)"""
    latencies = world.prior.simulated(numbers, np.ones(len(numbers)), world.given)
    threads = task.space.threads[numbers][:, None]
    costs = task.objective.costs(latencies.mean_ms, latencies.p95_ms, threads).mean(axis=1)
    return np.where(world.prior.capacity_per_s[numbers] > world.given.rate_per_s, costs, np.inf)


def _grows(task: Task, observed: Sequence[Transition]) -> bool:
    """True if more requests piled up than all instances hold at once."""
    present = task.space.configuration(_present(task, observed))
    holds = present.get("instances", 1) * present.get("max_batch_size", 1)
    return sum(transition.measurement.backlog_growth for transition in observed) > holds
