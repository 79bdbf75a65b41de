"""`calibration`: whether the default agent knows how sure it may be, on machines under a steady load.

Before a configuration is put in force, the agent's belief predicts two things of it. The interval, or long
simulation, then tells them:

| what | predicted | told by |
|---|---|---|
| service time | ln S of each row of telemetry | the row's mean, of 5 batches or more |
| latency | ln of the expected latency of the load to come | long simulation, at the true rate |

*New* is a configuration's first time in force, *again* any other. Where predictions are calibrated, 50 and
90 % of the outcomes lie within the central intervals of that name. PIT counts, in ten equal bins, at which
quantile of its prediction each outcome lies. Even bins are calibrated, more at the ends tell of too much
certainty.

    scripts/bench calibration [--sources family usl roofline] [--seeds 5] [--decisions 40] [--truth model]
                              [--settings horizon=16]

The machines' seeds are 0, 1, ...: none of them judges.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from baselines.comparison.workers import Workers
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import FIRST_FOR_JUDGING, RATE_PER_S, SOURCES, TRUTHS, scenarios, space_of
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.agent import Task, Transition, live
from rrl.guided.agent import Guided
from rrl.guided.settings import GUIDED, GuidedSettings
from rrl.objective import MeanLatency
from scripts.benchmarks.tuner.given_settings import guided_settings
from scripts.benchmarks.tuner.service_time_prior import COVERAGES, PIT_BINS
from serving_adapter.options import parse

FEW_BATCHES = 5  # rows of fewer are too noisy to tell anything
SERVICE_TIME, LATENCY = "service time", "latency"


@dataclass(frozen=True)
class Options:
    """Whether the default agent knows how sure it may be."""

    sources: tuple[str, ...] = tuple(SOURCES)
    """Of machines: family, usl, roofline."""
    truth: str = "model"
    """How they depart from the queueing model, as of rrl-compare."""
    seeds: int = 5
    """Machines of each source."""
    decisions: int = 40
    """Of each run."""
    settings: tuple[str, ...] = ()
    """Of the default agent, NAME=VALUE each."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.sources if name not in SOURCES]
        if unknown or not self.sources:
            raise ValueError(f"--sources must be among {', '.join(SOURCES)}, got {', '.join(unknown)}")
        if self.truth not in TRUTHS:
            raise ValueError(f"unknown truth {self.truth!r}; known: {', '.join(TRUTHS)}")
        if not 1 <= self.seeds <= FIRST_FOR_JUDGING or self.decisions < 2:
            raise ValueError("--seeds must be 1 to 1000, and --decisions at least 2")
        guided_settings(self.settings)


class Foretold(NamedTuple):
    """Where an outcome lay in its prediction."""

    what: str
    new: bool  # the configuration was in force for the first time
    quantile: float


class Foretelling(Guided):
    """The default agent, which notes what it expects before it learns."""

    def __init__(self, task: Task, log_costs: np.ndarray, settings: GuidedSettings, seed: int) -> None:
        super().__init__(task, settings, seed)
        self.outcomes: list[Foretold] = []
        self._true_log_costs = log_costs  # (size,)
        self._met: set[int] = set()

    def update(self, transition: Transition) -> None:
        number = self.space.number_of_action(transition.action)
        if self.belief.known:
            self._note_latency(number)
            self._note_service_times(number, transition)
        self._met.add(number)
        super().update(transition)

    def _note_latency(self, number: int) -> None:
        mean, sd = self.belief.log_costs_ahead(np.array([number]))
        self._note(LATENCY, number, (self._true_log_costs[number] - mean[0]) / sd[0])

    def _note_service_times(self, number: int, transition: Transition) -> None:
        model, configuration = self.belief.service_times, self.space.configuration(number)
        for row in transition.measurement.telemetry:
            if row.count >= FEW_BATCHES:
                entry = model.table.entry(configuration, row.busy_instances, row.batch_size)
                expected = model.log_times[entry] + model.log_slowness_ahead
                sd = float(model.standard_deviations(np.array([entry]))[0])
                self._note(SERVICE_TIME, number, (np.log(row.total_s / row.count) - expected) / sd)

    def _note(self, what: str, number: int, z: float) -> None:
        self.outcomes.append(Foretold(what, number not in self._met, float(norm.cdf(z))))


def outcomes_of(
    source: str, seed: int, truth: str, decisions: int, settings: GuidedSettings = GUIDED
) -> list[Foretold]:
    """Those of one run."""
    (scenario,) = scenarios(f"{source}:{seed}", truth)
    space, objective = space_of(truth, scenario.machine), MeanLatency()
    log_costs = np.log(ExpectedCosts(scenario, space, objective).costs(RATE_PER_S))
    agent = Foretelling(Task(space, objective), log_costs, settings, seed)
    arrivals = PerIntervalPoisson(np.full(decisions + 1, RATE_PER_S))
    for _ in live(agent, scenario.environment(space, objective, arrivals), decisions, seed):
        pass
    agent.close()
    return agent.outcomes


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    print("| machines | what | in force | outcomes | within 50 % | within 90 % | PIT, % |")
    print("|---" * 7 + "|")
    within: dict[str, float] = {}
    with Workers(os.cpu_count() or 1) as workers:
        for source in options.sources:
            found = _found(workers, source, options)
            for line in table_of(f"{source} ({options.seeds})", found):
                print(line, flush=True)
            for what in (SERVICE_TIME, LATENCY):
                of_it = np.array([each.quantile for each in found if each.what == what])
                within[f"{source}, {what}"] = round(coverage(of_it, COVERAGES[-1]), 3)
    return {
        "value": min(within.values()),
        "unit": f"share of outcomes within their {COVERAGES[-1]:.0%} interval, the lowest of all",
        "peer": COVERAGES[-1],
        "all": within,
    }


def _found(workers: Workers, source: str, options: Options) -> list[Foretold]:
    found: list[Foretold] = []
    settings = guided_settings(options.settings)
    jobs = [
        partial(outcomes_of, source, seed, options.truth, options.decisions, settings)
        for seed in range(options.seeds)
    ]
    workers.run(jobs, lambda _, answer: found.extend(answer))
    return found


def table_of(label: str, found: list[Foretold]) -> list[str]:
    """A row of Markdown for each quantity, new and again, of which there are outcomes."""
    lines = []
    for what in (SERVICE_TIME, LATENCY):
        for new in (True, False):
            of_it = np.array([each.quantile for each in found if each.what == what and each.new == new])
            if len(of_it):
                cells = [label, what, "new" if new else "again", str(len(of_it)), *summary(of_it)]
                lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(quantiles: np.ndarray) -> list[str]:
    """Coverage of each interval, and the PIT histogram, as cells."""
    bins = np.histogram(quantiles, PIT_BINS, (0.0, 1.0))[0] / len(quantiles)
    pit = " ".join(f"{100 * share:.0f}" for share in bins)
    return [*(f"{coverage(quantiles, share):.0%}" for share in COVERAGES), pit]


def coverage(quantiles: np.ndarray, share: float) -> float:
    """The share of outcomes within the central interval that should hold `share` of them."""
    return float(np.mean(np.abs(quantiles - 0.5) <= share / 2))
