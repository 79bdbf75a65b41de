"""`service-time-prior`: what the learned prior of service times is worth on machines that it never met.

A machine tells the service times of 1, 3 and 10 configurations drawn at random, with 1 .. c busy instances.
All other entries of the table are predicted. The figure is their predictive log-likelihood, in nats an entry:
ln of the Gaussian density of ln S by predicted mean and standard deviation. Higher is better.

| column | hypotheses |
|---|---|
| generic | those without the prior |
| alone | those of the prior only |
| averaged | both, by their likelihood, as the default agent has them |
| ... elsewhere | without the kind that was learned from the machine's own generator |

The last three columns are of *averaged elsewhere*. Coverage is the share of entries within the central 50 and
90 % of their prediction. PIT counts, in ten equal bins, at which quantile of its prediction each entry lies:
even ones are calibrated.
Machines and their seeds are none that the prior was learned from, and all seeds are below 1000.

    scripts/bench service-time-prior [--machines 10]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from baselines import prior_learning
from baselines.comparison.workers import Workers
from envs.scenarios import small_machines
from envs.scenarios.families import SOURCES
from rrl.belief.learned_prior import Kind
from rrl.belief.service_time_process import Hypothesis
from rrl.belief.service_times import ServiceTimeModel
from rrl.measurement import ServiceTimes
from rrl.queueing.machine import Machine
from rrl.space import Configuration, ConfigurationSpace
from scripts.benchmarks.tuner.simulated.coverage import cells
from serving_adapter.flags.parsing import parse

LARGE = "inter_op_threads=1,2,3,4,6,8,10,intra_op_threads=1,2,3,4,6,8,10,instances=1,2,3,4,6,8,10"
SMALL = "instances=1:4,intra_op_threads=1,2,max_batch_size=1,4,8"
SEEN = (1, 3, 10)  # configurations
BATCHES = 50  # that each row of telemetry is the mean of
FIRST_INVENTED = 300  # `prior_learning` learns from the seeds below


@dataclass(frozen=True)
class Options:
    """What the learned prior of service times is worth on machines that it never met."""

    machines: int = 10
    """Of each generator."""

    def __post_init__(self) -> None:
        if not 1 <= self.machines <= 100:
            raise ValueError(f"--machines must be 1 to 100, got {self.machines}")


class Generator(NamedTuple):
    """Machines by seed, and the space that they are tuned in."""

    machine: Callable[[int], Machine]
    space: str


def _of_source(name: str) -> Callable[[int], Machine]:
    return lambda seed: SOURCES[name](seed)[0]


GENERATORS = {
    **{name: Generator(_of_source(name), SMALL if name == "profiled" else LARGE) for name in SOURCES},
    "invented": Generator(lambda seed: Machine.invent(FIRST_INVENTED + seed, batch_size=(1, 2, 4)), LARGE),
    "small": Generator(lambda seed: small_machines.random_machine(seed)[0], SMALL),
}
"""By the name of the kind that is learned from it, if any."""

COLUMNS = ("generic", "alone elsewhere", "averaged elsewhere", "alone", "averaged")


class Hit(NamedTuple):
    """How well entries were predicted."""

    nats: float  # an entry
    quantiles: np.ndarray  # (entries,) of its prediction, at which each lies


class LearnedAlone(ServiceTimeModel):
    """Predicts by the learned prior only: what must not be done, as a measure of it."""

    def _tried(self) -> list[Hypothesis]:
        return [each for each in super()._tried() if each.kind]


def model_of(column: str, space: ConfigurationSpace, own: str) -> ServiceTimeModel:
    """The model of a column, on a machine of the generator `own`."""
    kinds = [kind for kind in learned_kinds() if not (column.endswith("elsewhere") and kind.name == own)]
    if column == "generic":
        return ServiceTimeModel(space)
    model = LearnedAlone if column.startswith("alone") else ServiceTimeModel
    return model(space, kinds=kinds)


@cache
def learned_kinds() -> list[Kind]:
    """As in the package, learned anew in each process."""
    return prior_learning.kinds_of(prior_learning.generated())


def hits(name: str, seed: int) -> dict[tuple[str, int], Hit]:
    """Of one machine, by column and number of configurations seen."""
    generator = GENERATORS[name]
    machine, space = generator.machine(seed), ConfigurationSpace.parse(generator.space)
    seen = np.random.default_rng(seed).choice(len(space), max(SEEN), replace=False)
    found = {}
    for column in COLUMNS:
        model = model_of(column, space, name)
        log_times = true_log_times(machine, model.table.points)
        told = model.table.one_by_one.copy()  # which these machines do not know
        for count, number in enumerate(seen, start=1):
            configuration = space.configuration(int(number))
            model.add(configuration, telemetry(machine, configuration))
            model.fit()
            told |= is_of(configuration, model.table.points)
            if count in SEEN:
                found[column, count] = hit(model, log_times, np.flatnonzero(~told))
    return found


def hit(model: ServiceTimeModel, log_times: np.ndarray, numbers: np.ndarray) -> Hit:
    """How well the model predicts these entries, whose true ln S are among `log_times`."""
    predicted = norm(model.log_times[numbers], model.standard_deviations(numbers))
    return Hit(float(predicted.logpdf(log_times[numbers]).mean()), predicted.cdf(log_times[numbers]))


def true_log_times(machine: Machine, points: np.ndarray) -> np.ndarray:
    """(P,) ln S of points (P, 5): i, a, c, n, b."""
    times_s = []
    for i, a, _, n, b in points.astype(int).tolist():
        configuration = {"inter_op_threads": i, "intra_op_threads": a, "instances": n, "max_batch_size": b}
        times_s.append(machine.table(configuration)[n - 1, b - 1])
    return np.log(np.array(times_s))


def telemetry(machine: Machine, configuration: Configuration) -> list[ServiceTimes]:
    """What a configuration tells: the service times of the largest batch with 1 .. c busy instances."""
    table_s = machine.table(configuration)
    batch = table_s.shape[1]
    return [
        ServiceTimes(busy_instances=n, batch_size=batch, count=BATCHES, total_s=BATCHES * float(row[-1]))
        for n, row in enumerate(table_s, start=1)
    ]


def is_of(configuration: Configuration, points: np.ndarray) -> np.ndarray:
    """(P,) bool: the entry is one of this configuration, of any batch."""
    names = ("inter_op_threads", "intra_op_threads", "instances")
    return np.all(points[:, :3] == [configuration.get(name, 1) for name in names], axis=1)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    by_column: dict[str, list[float]] = {column: [] for column in COLUMNS}
    print("| machines | seen | " + " | ".join(COLUMNS) + " | within 50 % | within 90 % | PIT, % |")
    print("|---" * (len(COLUMNS) + 5) + "|")
    with Workers(os.cpu_count() or 1) as workers:
        for name in GENERATORS:
            found = _found(workers, name, options.machines)
            for count in SEEN:
                nats = {c: float(np.mean([each[c, count].nats for each in found])) for c in COLUMNS}
                quantiles = np.concatenate([each["averaged elsewhere", count].quantiles for each in found])
                print(row(f"{name} ({options.machines})", count, nats, quantiles), flush=True)
                for column in COLUMNS:
                    by_column[column].append(nats[column])
    means = {column: float(np.mean(values)) for column, values in by_column.items()}
    ours, generic = means["averaged elsewhere"], means["generic"]
    return {
        "value": round(ours, 3),
        "unit": "nats an unseen entry, prior learned on other generators, averaged with the generic one",
        "peer": round(generic, 3),
        "all": {column: round(value, 3) for column, value in means.items()},
        "holds": ours >= generic,
    }


def _found(workers: Workers, name: str, machines: int) -> list[dict[tuple[str, int], Hit]]:
    found: list[dict[tuple[str, int], Hit]] = []
    workers.run(
        [partial(hits, name, seed) for seed in range(machines)], lambda _, answer: found.append(answer)
    )
    return found


def row(label: str, count: int, nats: dict[str, float], quantiles: np.ndarray) -> str:
    by_column = [f"{nats[column]:.2f}" for column in COLUMNS]
    return "| " + " | ".join([label, str(count), *by_column, *cells(quantiles)]) + " |"
