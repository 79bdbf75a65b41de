"""SERF: light profiling, the M/D_interf/c model and a reference table load level -> best configuration.

Yan, Ruwase, He, Smirni: "SERF: Efficient Scheduling for Fast Deep Neural Network Serving via Judicious
Parallelism", SC 2016, section IV.

| step | here | paper |
|---|---|---|
| profiler | `profile`: the service time of each parallelism tuple (n in service, inter, intra) | IV-B |
| model | `rrl.queueing.interference`: latency of a configuration at a rate | IV-C |
| cluster | `rrl.queueing.serving_units`: that rate, λ = λ_all/(N/C_inter) with N = `Task.nodes` | IV-C |
| reference table | `SERF.best`, `SERF.reference_table`; `serf_table` writes it | IV-A, Fig. 8 |
| scheduler | `SERF.act`: looks the present load up | IV-D |

SERF learns nothing while it serves: the profile of the machine is all it ever knows. It has no batching, so
it serves batches of 1 where a space has such knobs. Objectives that look at the 95th percentile get the
model's approximate one. Where every configuration is unstable, SERF takes the one of the largest capacity.

Where the machine has times after a rest, too (`rrl-profile --rested`), the paper's model gets them as a
start-up (`rrl.queueing.start_up`). The 95th percentile then moves by as much as the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

import numpy as np

from rrl.agent import Agent, Proposable, Task, Transition, arrival_rate_per_s
from rrl.load_levels import LoadLevels
from rrl.objective import PredictedIntervals
from rrl.queueing.interference import Prediction, Queue, capacity_per_s, predict
from rrl.queueing.machine import NODES, Machine
from rrl.queueing.serving_units import unit_loads, units_fit
from rrl.queueing.start_up import predict_with_start_up
from rrl.space import Configuration, ConfigurationSpace
from rrl.views.reference_table import ReferenceEntry, ReferenceTable

PROFILE_REQUESTS = 10  # for each parallelism tuple (section V-D)
IDLE_RATE_PER_S = 1e-9  # stands for no load at all


@dataclass(frozen=True)
class SERFSettings:
    levels: LoadLevels = field(default_factory=lambda: LoadLevels(1.1))
    """The table's levels. They are finer than a learner's, as an entry costs no measurement."""
    queue: Queue = Queue.MD_INTERF_C
    """The paper's model. A simpler one, such as `Queue.MD_C`, shows what interference is worth."""


class SERF(Agent):
    """The dynamic scheduler over a reference table, which is computed level by level as loads are met."""

    def __init__(self, task: Task, settings: SERFSettings | None = None) -> None:
        """ValueError if the task has no machine, or its space no configuration that SERF can choose."""
        if task.machine is None:
            raise ValueError(
                "serf needs service times profiled beforehand: give a machine file (rrl-profile measures one)"
            )
        self.space = task.space
        self.objective = task.objective
        self.settings = settings or SERFSettings()
        # (K,) the configurations to choose from
        self.numbers = candidates(task.space, task.machine, task.cores, task.nodes, task.excluded)
        self.instances = instances(task.space)[self.numbers]
        self.unit_loads = unit_loads(task.space, task.nodes)[self.numbers]
        self.service_time_s = profile(task.machine, task.space, self.numbers)
        self.rested_time_s = profile_rested(task.machine, task.space, self.numbers)
        self._proposable = Proposable(task)
        self._best: dict[int, int] = {}  # level -> index into `numbers`
        self._last_rate_per_s = 0.0

    def act(self, observation: np.ndarray) -> np.ndarray:
        rate_per_s = arrival_rate_per_s(observation) or self._last_rate_per_s
        return self.space.action(self.best(rate_per_s))

    def update(self, transition: Transition) -> None:
        """Remembers the load, for the case that the next interval has none. Nothing else is learned."""
        self._last_rate_per_s = arrival_rate_per_s(transition.next_observation) or self._last_rate_per_s

    def refused(self, number: int) -> None:
        self._proposable.refused(number)
        self._best.clear()

    def best(self, arrival_rate_per_s: float) -> int:
        """The number of the configuration predicted best at this rate's load level."""
        level = self.settings.levels.level(arrival_rate_per_s)
        if level not in self._best:
            rate_per_s = self.settings.levels.rate_per_s(level)
            self._best[level] = self._best_index(self.predicted(rate_per_s), rate_per_s)
        return int(self.numbers[self._best[level]])

    @property
    def capacities_per_s(self) -> np.ndarray:
        """(K,) the arrival rate, as it is observed, from which each of `numbers` is unstable."""
        return capacity_per_s(self.service_time_s, self.instances) / self.unit_loads

    def predicted(self, arrival_rate_per_s: float) -> Prediction:
        """What the model predicts for each of `numbers` at a rate as it is observed: on a cluster by node."""
        rates_per_s = arrival_rate_per_s * self.unit_loads
        found = predict(self.service_time_s, self.instances, rates_per_s, self.settings.queue)
        if self.rested_time_s is None or self.settings.queue is not Queue.MD_INTERF_C:
            return found
        return _with_start_up(found, self.service_time_s, self.rested_time_s, self.instances, rates_per_s)

    def reference_table(self, rates_per_s: Iterable[float], objective: str, model: str) -> ReferenceTable:
        """The entries of these rates' levels. Their costs are predictions, so they were measured 0 times."""
        grid = self.settings.levels
        entries = {}
        for level in sorted({grid.level(rate_per_s) for rate_per_s in rates_per_s}):
            centre_per_s, half = grid.rate_per_s(level), math.sqrt(grid.ratio)
            number = self.best(centre_per_s)
            entries[level] = ReferenceEntry(
                rate_per_s=(centre_per_s / half, centre_per_s * half),
                configuration=self.space.configuration(number),
                cost=float(self._costs(self.predicted(centre_per_s), centre_per_s)[self._best[level]]),
                measurements=0,
                configurations=len(self.numbers),
            )
        of = self.objective
        return ReferenceTable(objective, of.unit, model, entries, slo_p95_ms=of.slo_p95_ms)

    def _best_index(self, prediction: Prediction, rate_per_s: float) -> int:
        may_be = self._proposable.mask[self.numbers]
        overloaded = np.all(prediction.utilisation[may_be] >= 1)
        costs = prediction.utilisation if overloaded else self._costs(prediction, rate_per_s)
        return int(np.argmin(np.where(may_be, costs, np.inf)))

    def _costs(self, prediction: Prediction, rate_per_s: float) -> np.ndarray:
        """(K,) the objective's costs of the predicted latencies; infinity where unstable."""
        mean_ms, p95_ms = 1e3 * prediction.mean_latency_s, 1e3 * prediction.p95_latency_s
        threads, answered_per_s = self.space.threads[self.numbers], np.array(rate_per_s)
        costs = self.objective.costs(
            PredictedIntervals(mean_ms, p95_ms, threads, answered_per_s=answered_per_s)
        )
        return np.where(prediction.utilisation < 1, costs, np.inf)


def candidates(
    space: ConfigurationSpace,
    machine: Machine,
    cores: int | None = None,
    nodes: int | None = None,
    excluded: Collection[int] = (),
) -> np.ndarray:
    """(K,) numbers of the configurations without batching whose service times were profiled.

    Where the cores F are known, intra-op threads are at most F/c (section IV-C), if any configuration
    keeps to that. A unit has no more nodes than the cluster, where that is known. What is excluded is left
    out. ValueError with one sentence if there is none.
    """
    allowed = np.ones(len(space), dtype=bool)
    for k, knob in enumerate(space.knobs):
        values = space.values[:, k]
        if knob.name == "max_queue_delay_us":  # A batch of 1 never waits, so that one value will do.
            allowed &= values == knob.values[0]
        elif knob.name == "max_batch_size":
            if 1 not in knob.values:
                raise ValueError(
                    "serf has no batching and needs 1 among the values of max_batch_size, "
                    f"got {', '.join(map(str, knob.values))}"
                )
            allowed &= values == 1
        elif (largest := machine.largest(knob.name)) is not None:
            if knob.values[0] > largest:
                raise ValueError(
                    f"every {knob.name} of the space lies beyond the machine's table, which ends at "
                    f"{largest}: widen the space, or measure a larger table"
                )
            allowed &= values <= largest
    allowed &= units_fit(space, nodes)
    allowed[list(excluded)] = False
    if not allowed.any():
        raise ValueError(
            "serf serves batches of 1, and no configuration of the space with such batches may be proposed: "
            "widen the space, or allow more cores"
        )
    fits = allowed & _fits(space, cores)
    return np.flatnonzero(fits if fits.any() else allowed)


def _fits(space: ConfigurationSpace, cores: int | None) -> np.ndarray:
    """(size,) whether instances times intra-op threads are no more than the cores, where these are known."""
    if cores is None or "intra_op_threads" not in space.names:
        return np.ones(len(space), dtype=bool)
    threads = space.values[:, space.names.index("intra_op_threads")]
    return np.asarray(instances(space) * threads <= cores)


def instances(space: ConfigurationSpace) -> np.ndarray:
    """(size,) int: the maximum service parallelism c of every configuration."""
    if "instances" not in space.names:
        return np.ones(len(space), dtype=int)
    return np.asarray(space.values[:, space.names.index("instances")])


def profile(machine: Machine, space: ConfigurationSpace, numbers: np.ndarray) -> np.ndarray:
    """(len(numbers), c_max) seconds a request takes with 1 .. c_max in service under each configuration.

    In simulation all requests are alike. So a few of them under each parallelism tuple show the machine's own
    service times.
    """
    return _of_tuples(space, numbers, lambda configuration: machine.table(configuration)[:, 0])


def profile_rested(machine: Machine, space: ConfigurationSpace, numbers: np.ndarray) -> np.ndarray | None:
    """The same of requests that find their instance at rest; None where that was not measured."""
    if machine.rested_time_s is None:
        return None
    return _of_tuples(space, numbers, machine.rested_table)


def _of_tuples(
    space: ConfigurationSpace, numbers: np.ndarray, times_of: Callable[[Configuration], np.ndarray | None]
) -> np.ndarray:
    """(len(numbers), c_max) the times of each configuration's threads and nodes, 1 .. c_max in service."""
    c_max = int(instances(space)[numbers].max())
    parallelism = ("inter_op_threads", "intra_op_threads", NODES)
    columns = [space.names.index(name) for name in parallelism if name in space.names]
    names = [space.names[column] for column in columns]
    tuples, row_of = np.unique(space.values[numbers][:, columns], axis=0, return_inverse=True)
    tuples_s = [
        times_of(dict(zip(names, map(int, row), strict=True)) | {"instances": c_max}) for row in tuples
    ]
    return np.array(tuples_s)[row_of.reshape(-1)]


def _with_start_up(
    found: Prediction,
    warm_s: np.ndarray,
    rested_s: np.ndarray,
    instances: np.ndarray,
    rates_per_s: np.ndarray,
) -> Prediction:
    """The prediction for instances that start from rest where a request need not wait; all are (K, ...)."""
    each = [
        predict_with_start_up(warm_s[k, :c], rested_s[k, :c], max(rate_per_s, IDLE_RATE_PER_S))
        for k, (c, rate_per_s) in enumerate(zip(instances.tolist(), rates_per_s.tolist(), strict=True))
    ]
    wait, mean_wait_s, service_s, latency_s = np.array([row[1:] for row in each]).T
    stable = found.utilisation < 1
    later_s = np.subtract(latency_s, found.mean_latency_s, out=np.zeros_like(latency_s), where=stable)
    return Prediction(
        found.utilisation, wait, mean_wait_s, service_s, latency_s, found.p95_latency_s + later_s
    )
