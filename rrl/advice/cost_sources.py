"""What configurations that are not in force would cost, by three sources of evidence.

| source | a world is |
|---|---|
| `by_observation`: intervals of the configuration in force | a table of service times, a load, arrivals |
| `by_machine`: a machine file | a factor on all its service times, an error of each configuration's cost |
| `by_table`: a reference table | an error of the two costs that were measured, more for the earlier one |

By observation: the default agent's belief (`rrl.belief`) learns the likeliest service times of every
configuration from the intervals, and how uncertain they are. Worlds are drawn from that, and a simulated
queue tells what every configuration costs in each. Worlds that explain the latency observed are drawn in
preference. So service times that the target did not tell, such as those with more instances busy, show in
the queue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from rrl.advice.possible_costs import PossibleCosts, likely_worlds
from rrl.agent import Task, Transition
from rrl.belief.belief import Belief
from rrl.belief.replay import Latencies, Replay
from rrl.belief.telemetry import service_times, tells_batch_sizes
from rrl.guided.candidates import cheapest_first
from rrl.measured_costs import NOISE
from rrl.objective import PredictedIntervals
from rrl.queueing.windows import Windows
from rrl.space import Configuration, with_fixed

WORLDS_DRAWN = 400
WORLDS_SIMULATED = 60  # These are chosen from the worlds drawn.
MAX_CONFIGURATIONS = 400  # The most promising ones are simulated in each world.
NEAR_DISTANCE = 2.0  # Configurations this near to the one in force are simulated besides.

# Standard deviations of natural logarithms:
THREADS_SD = 0.4  # The exponent of threads, beside the process's own: some models gain nothing from threads.
OBSERVED_SD = 0.15  # What was observed, around what a world predicts.
EARLIER_RUN_SD = 0.15  # A cost that an earlier run measured, around what it is now.
MODEL_SD = 0.1  # What the queueing model gets wrong of each configuration.

SLOWER_FACTORS = np.exp(0.15 * ndtri((np.arange(9) + 0.5) / 9))  # How much slower a machine is than its file.

Simulate = Callable[[float, float], np.ndarray]
"""simulate(rate, how many times slower) -> (size,) costs by a machine file, infinite where overloaded."""


def by_observation(task: Task, observed: Sequence[Transition], seed: int = 0) -> PossibleCosts | None:
    """From intervals of the configuration in force. None if they tell no service times by batch size."""
    task, observed = _with_all_knobs(task, observed)
    task = replace(task, cores=_cores_left(task, observed))
    belief = Belief(
        task.space, task.objective, task.cores, task.excluded, seed, found=task.found, nodes=task.nodes
    )
    for transition in observed:
        if transition.has_cost:
            belief.learn(_present(task, observed), transition.measurement)
    if not belief.known or not all(tells_batch_sizes(t.measurement) for t in observed):
        return None
    rng = np.random.default_rng(seed)
    present = _present(task, observed)
    numbers = _allowed(_promising(belief, task, present), task, present)
    worlds = _worlds(belief, task, present, rng)
    if _grows(task, observed):  # A queue that grows has no latency to compare.
        chosen = np.arange(WORLDS_SIMULATED)
    else:
        latency_ms = np.array([_mean_ms(world, present) for world in worlds])
        seen_ms = float(np.mean([t.measurement.latency.mean_ms for t in observed]))
        chosen = likely_worlds(latency_ms, seen_ms, OBSERVED_SD, WORLDS_SIMULATED, rng)
    ratios = np.exp(MODEL_SD * rng.standard_normal((len(chosen), len(numbers), 1)))
    costs = np.stack(
        [_costs(worlds[k], numbers, task, ratio) for k, ratio in zip(chosen, ratios, strict=True)], axis=1
    )
    return _possible_costs(costs, numbers, task, observed, chosen)


def by_machine(
    task: Task, observed: Sequence[Transition], simulate: Simulate, seed: int = 0
) -> PossibleCosts:
    """From the simulation of a machine file, at the load observed."""
    rng = np.random.default_rng(seed)
    present = _present(task, observed)
    numbers = _allowed(np.arange(len(task.space)), task, present)
    rate_per_s = float(np.mean([t.measurement.arrival_rate_per_s for t in observed]))
    simulated = np.stack(
        [simulate(rate_per_s, factor)[numbers] for factor in SLOWER_FACTORS.tolist()], axis=1
    )
    drawn = rng.integers(len(SLOWER_FACTORS), size=WORLDS_DRAWN)
    costs = simulated[:, drawn] * np.exp(MODEL_SD * rng.standard_normal((len(numbers), WORLDS_DRAWN)))
    if not _grows(task, observed):
        in_force = costs[np.flatnonzero(numbers == present)[0]]
        likely = likely_worlds(in_force, _mean_cost(observed), OBSERVED_SD, WORLDS_DRAWN, rng)
        return _possible_costs(costs[:, likely], numbers, task, observed, likely)
    return _possible_costs(costs, numbers, task, observed)


def by_table(
    task: Task,
    observed: Sequence[Transition],
    number: int,
    cost: float,
    intervals: int,
    apart: float = 0.0,
    seed: int = 0,
) -> PossibleCosts:
    """From what a configuration cost over some intervals of an earlier run.

    That cost may be wrong by the noise of its intervals, and because that run was another (`EARLIER_RUN_SD`).
    The load may have differed, too: `apart`, the logarithm of the factor, is taken for an error of the cost.
    """
    rng = np.random.default_rng(seed)
    present = _present(task, observed)
    elsewhere = math.hypot(NOISE / math.sqrt(intervals), EARLIER_RUN_SD, apart)
    known = {present: (_mean_cost(observed), NOISE / math.sqrt(len(observed))), number: (cost, elsewhere)}
    costs = [
        mean * np.exp(error * rng.permutation(ndtri((np.arange(WORLDS_DRAWN) + 0.5) / WORLDS_DRAWN)))
        for mean, error in known.values()
    ]
    numbers = np.array(list(known))
    return _possible_costs(np.stack(costs), numbers, task, observed)


def _possible_costs(
    costs: np.ndarray,
    numbers: np.ndarray,
    task: Task,
    observed: Sequence[Transition],
    worlds: np.ndarray | None = None,
) -> PossibleCosts:
    distances = task.space.distances(_present(task, observed))[numbers]
    worlds = np.arange(costs.shape[1]) if worlds is None else worlds
    return PossibleCosts(costs, distances, _mean_cost(observed), numbers, worlds)


def _with_all_knobs(task: Task, observed: Sequence[Transition]) -> tuple[Task, list[Transition]]:
    """The same with a space that knows the knobs that are not tuned, too, with their values in force."""
    whole = with_fixed(task.space, task.found)
    fixed = np.zeros(len(whole.knobs) - len(task.space.knobs), dtype=int)
    transitions = [replace(each, action=np.append(each.action, fixed)) for each in observed]
    return replace(task, space=whole), transitions


def _allowed(numbers: np.ndarray, task: Task, present: int) -> np.ndarray:
    """The configurations that may be proposed, and the one in force."""
    return numbers[~np.isin(numbers, list(task.excluded - {present}))]


def _present(task: Task, observed: Sequence[Transition]) -> int:
    return task.space.number_of_action(observed[-1].action)


def _mean_cost(observed: Sequence[Transition]) -> float:
    return float(np.mean([transition.cost for transition in observed]))


class _World(NamedTuple):
    replay: Replay  # It holds service times.
    windows: Windows
    rate_per_s: float  # of items
    items_per_request: float
    sharing: bool  # of processors, by batches in service

    def latencies(self, numbers: np.ndarray) -> Latencies:
        return self.replay.replayed(numbers, np.ones(len(numbers)), self.windows, self.sharing)


def _cores_left(task: Task, observed: Sequence[Transition]) -> int | None:
    """The cores that other programs leave to the model, as far as that is told.

    What is busy beyond the threads of the batches in service is theirs. A server that tells only its own use
    shows none.
    """
    present = _present(task, observed)
    threads = task.space.threads[present] / task.space.configuration(present).get("instances", 1)
    busy = float(np.mean([t.measurement.cpu_utilisation for t in observed]))
    if task.cores is None or math.isnan(busy):
        return task.cores
    service_s = sum(row.total_s for t in observed for row in service_times(t.measurement))
    own = threads * service_s / sum(t.measurement.duration_s for t in observed)
    return max(1, round(task.cores - max(0.0, busy * task.cores - own)))


def _promising(belief: Belief, task: Task, present: int) -> np.ndarray:
    """(K,) the configurations that cost least by the likeliest service times, or are near to it."""
    space = task.space
    if len(space) <= MAX_CONFIGURATIONS:
        return np.arange(len(space))
    screened = belief.screened(np.arange(len(space)), np.ones(len(space)))
    order = cheapest_first(task.objective, screened, space.threads)
    return np.union1d(order[:MAX_CONFIGURATIONS], space.region(present, NEAR_DISTANCE))


def _worlds(belief: Belief, task: Task, present: int, rng: np.random.Generator) -> list[_World]:
    forecast, model = belief.forecast, belief.service_times
    factors = np.exp(forecast.log_sd * rng.standard_normal(WORLDS_DRAWN))
    threads = _speed_ups(belief, task.space.configuration(present), rng)
    worlds = []
    for times_s, speed_up, factor in zip(
        model.draws(WORLDS_DRAWN, rng), threads, factors.tolist(), strict=True
    ):
        replay = Replay(task.space, model.table, rng, task.excluded, task.nodes)
        replay.variation = belief.replay.variation
        replay.refresh(times_s * speed_up)
        windows = belief.windows.faster(factor)
        rate_per_s = factor * forecast.rate_per_s
        worlds.append(_World(replay, windows, rate_per_s, forecast.items_per_request, belief.sharing))
    return worlds


def _speed_ups(belief: Belief, present: Configuration, rng: np.random.Generator) -> np.ndarray:
    """(WORLDS_DRAWN, tables, 1, 1) what other numbers of threads change beyond what the process admits."""
    now = [present.get(name, 1) for name in ("inter_op_threads", "intra_op_threads")]
    exponents = THREADS_SD * rng.standard_normal((WORLDS_DRAWN, 2))
    logs = exponents @ np.log(belief.service_times.table.table_threads / now).T
    result: np.ndarray = np.exp(logs)[..., None, None]
    return result


def _mean_ms(world: _World, number: int) -> float:
    return float(world.latencies(np.array([number])).mean_ms.mean())


def _costs(world: _World, numbers: np.ndarray, task: Task, ratio: np.ndarray) -> np.ndarray:
    """(K,) the costs of these configurations in a world, infinite where overloaded.

    `ratio` (K, 1) is what latencies are there, over those that the queueing model foresees.
    """
    latencies = world.latencies(numbers)
    threads = task.space.threads[numbers][:, None]
    mean_ms, p95_ms = ratio * latencies.mean_ms, ratio * latencies.p95_ms
    answered_per_s = latencies.answered_per_s / world.items_per_request
    costs = task.objective.costs(
        PredictedIntervals(mean_ms, p95_ms, threads, answered_per_s=answered_per_s)
    ).mean(axis=1)
    return np.where(world.replay.capacity_per_s[numbers] > world.rate_per_s, costs, np.inf)


def _grows(task: Task, observed: Sequence[Transition]) -> bool:
    """True if more requests piled up than all instances hold at once."""
    present = task.space.configuration(_present(task, observed))
    holds = present.get("instances", 1) * present.get("max_batch_size", 1)
    return sum(transition.measurement.backlog_growth for transition in observed) > holds
