"""`calibration`: whether what the default agent believes holds as often as it says, on simulated machines.

    scripts/bench calibration [--seeds 0-9] [--rows family/model usl] [--settings horizon=16]

| predicted | before each interval | told by |
|---|---|---|
| service time | ln S of each entry that telemetry then tells of | the mean of 5 batches or more |
| expected cost | ln of what the load to come costs on average (`Belief.log_costs_ahead`) | long simulation |
| interval, any arrivals | ln of this interval's cost, by the spread of arrivals that may come | its cost |
| interval, its arrivals | the same, by the arrivals that did come | its cost |
| P(better) | that a configuration costs less than the one in force | long simulation |

*New* is an entry that no interval of the run has told of, or a configuration's first time in force. Coverage
is the share within the central 50 and 90 % of the prediction. PIT is the share, in percent, at each tenth of
it: even ones are calibrated, and more at the ends tell of too much certainty. Service times of one interval
err together, and count for fewer than they are. P(better) is told of what was tried, and of all that was
compared with what was in force.

The agent decides as without this benchmark: looking at its belief changes nothing.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from baselines.comparison.landscapes import seed_sequence
from baselines.comparison.workers import Workers
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.agent import Task, Transition
from rrl.belief.belief import Belief
from rrl.guided.agent import Guided
from rrl.measurement import Measurement
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.simulated.coverage import cells, coverages, pit
from scripts.benchmarks.tuner.simulated.given_settings import guided_settings
from scripts.benchmarks.tuner.simulated.rows import (
    SimulatedRow,
    SimulatedRun,
    find_expected_costs,
    rows_named,
    runs_of,
)
from serving_adapter.flags.parsing import parse

NEW_ENTRY, KNOWN_ENTRY, NEW, AGAIN, ANY_ARRIVALS, ITS_ARRIVALS = PREDICTED = (
    "service time, new",
    "service time, known",
    "expected cost, new",
    "expected cost, again",
    "interval, any arrivals",
    "interval, its arrivals",
)
FEW_BATCHES = 5  # rows of telemetry of fewer are too noisy to tell anything
TRIED, COMPARED = ("tried", "compared")
BINS = 5  # of P(better)
REACH = (0.85, 0.95)  # of the 90 % interval's coverage


@dataclass(frozen=True)
class Options:
    """Whether what the default agent believes holds as often as it says."""

    seeds: str = "0-9"
    """Of the machines of every source."""
    rows: tuple[str, ...] = ()
    """Beginnings of rows' names, e.g. family/model usl (default: all)."""
    decisions: int = 100
    """Of a run."""
    settings: tuple[str, ...] = ()
    """Of the default agent, NAME=VALUE each."""
    out: Path | None = None
    """A file to which each row is appended as a line of JSON."""
    folder: Path = Path("runs/reach-costs")
    """Where the machines' expected costs are kept from one call to the next."""
    processes: int = 1
    """How many runs at once."""

    def __post_init__(self) -> None:
        guided_settings(self.settings)
        for row in rows_named(self.rows):
            row.settings(self.seeds, self.decisions).make_scenarios()


class Held(NamedTuple):
    """What came of predictions."""

    quantiles: dict[
        str, list[float]
    ]  # of its prediction at which each observation lies, by what is predicted
    better: dict[
        str, list[tuple[float, bool]]
    ]  # P(better), and whether it was, of what was tried or compared

    @classmethod
    def none(cls) -> Held:
        return cls({name: [] for name in PREDICTED}, {TRIED: [], COMPARED: []})

    def add(self, other: Held) -> None:
        for name, quantiles in other.quantiles.items():
            self.quantiles[name] += quantiles
        for name, pairs in other.better.items():
            self.better[name] += pairs


@dataclass(frozen=True, eq=False)
class CalibrationJob:
    """The default agent on one machine, watched."""

    run: SimulatedRun
    settings: tuple[str, ...]

    def __call__(self) -> Held:
        run, objective = self.run, self.run.settings.make_objective()
        seeds = np.random.SeedSequence(seed_sequence(run.scenario, 0)).generate_state(2)
        agent = Guided(Task(run.space, objective), guided_settings(self.settings), int(seeds[0]))
        arrivals = PerIntervalPoisson(run.load.rates_per_s)
        env = run.scenario.environment(run.space, objective, arrivals)
        before, _ = env.reset(seed=int(seeds[1]))
        watch = Watched(agent)
        in_force = -1
        for landscape in run.load.landscapes(len(run.space)):
            action = agent.act(before)
            number = run.space.number_of_action(action)
            watch.compare(in_force, number, landscape.costs)
            after, _, _, _, info = env.step(action)
            transition = Transition(before, action, info["cost"], after, info["measurement"])
            watch.observe(number, transition)
            agent.update(transition)
            in_force, before = number, after
        return watch.held

    def __str__(self) -> str:
        return f"{self.run.scenario.name}, {self.run.row}"


class Watched:
    """Notes what an agent believes before each interval, and what came."""

    def __init__(self, agent: Guided) -> None:
        self._agent = agent
        self._entries: set[int] = set()  # of the table of service times: those told of
        self._tried: set[int] = set()  # configurations
        self.held = Held.none()

    def compare(self, in_force: int, number: int, costs: np.ndarray) -> None:
        """`costs` (size,) are the true ones of the interval to come, for which `number` was chosen."""
        belief, compared = self._agent.belief, self._agent._compared
        if belief.known:
            (mean,), (sd,) = belief.log_costs_ahead(np.array([number]))
            self._add(AGAIN if number in self._tried else NEW, (math.log(costs[number]) - mean) / sd)
        if compared is not None:
            for other, better in zip(compared.numbers.tolist(), compared.better.tolist(), strict=True):
                told = better, bool(costs[other] < costs[in_force])
                for name in (COMPARED, TRIED) if other == number else (COMPARED,):
                    if other != in_force:
                        self.held.better[name].append(told)
        self._tried.add(number)

    def observe(self, number: int, transition: Transition) -> None:
        """Compares an interval with what was believed before it. Call it before the agent learns of it."""
        belief, measurement = self._agent.belief, transition.measurement
        self._observe_service_times(belief, number, measurement)
        if not belief.known or not transition.has_cost:
            return
        one, log_cost = np.array([number]), math.log(transition.cost)
        _, (sd,) = belief.log_costs_ahead(one)
        replayed_ms = belief.replay.replayed(one, np.ones(1), belief.windows).mean_ms[0]
        # The cost is the mean latency.
        by_arrivals = np.log(replayed_ms) + belief.model_error.log_ratio[number]
        self._add(ANY_ARRIVALS, (log_cost - by_arrivals) / sd)
        (mean,), (sd,) = belief.log_costs(one, measurement)
        self._add(ITS_ARRIVALS, (log_cost - mean) / sd)

    def _observe_service_times(self, belief: Belief, number: int, measurement: Measurement) -> None:
        """Nothing of the first interval, which tells their scale."""
        model = belief.service_times
        configuration = self._agent.space.configuration(number)
        for row in measurement.telemetry:
            entry = model.table.entry(configuration, row.busy_instances, row.batch_size)
            if row.count < FEW_BATCHES or model.table.points[entry, 4] != row.batch_size:
                continue
            if model.known:
                noise = model.noise_sd**2 + belief.replay.variation**2 / row.count + model.slowness.sd**2
                sd = math.sqrt(model.standard_deviations(np.array([entry]))[0] ** 2 + noise)
                expected = model.log_times[entry] + model.log_slowness_ahead
                z = (math.log(row.total_s / row.count) - expected) / sd
                self._add(KNOWN_ENTRY if entry in self._entries else NEW_ENTRY, z)
            self._entries.add(entry)

    def _add(self, name: str, z: float | np.ndarray) -> None:
        """Of errors in standard deviations; of several, one of which holds, it is the mean quantile."""
        self.held.quantiles[name].append(float(np.mean(ndtr(z))))


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    commit = commit_in_force()
    print(
        f"commit {commit}, seeds {options.seeds}, {options.decisions} decisions {' '.join(options.settings)}"
    )
    print("\n| row | predicted | cases | within 50 % | within 90 % | PIT, % |\n|---|---|---|---|---|---|")
    total = Held.none()
    with Workers(options.processes) as workers:
        for row in rows_named(options.rows):
            runs = runs_of(row, options.seeds, options.decisions, options.folder)
            find_expected_costs(runs, workers)
            held = _held(runs, options.settings, workers)
            total.add(held)
            print("\n".join(coverage_lines(str(row), held)), flush=True)
            if options.out is not None:
                _append(options.out, commit, options, row, held)
    print("\n".join(["", *coverage_lines("all", total), "", *reliability_lines(total)]))
    value = coverages(np.array(total.quantiles[NEW_ENTRY]))[1]
    return {
        "value": round(value, 3),
        "unit": "share of unseen service times within the 90 % of their prediction",
        "peer": None,
        "ratio": round(value / 0.9, 3),
        "reach": REACH,
        "holds": REACH[0] <= value <= REACH[1],
    }


def _held(runs: Sequence[SimulatedRun], settings: tuple[str, ...], workers: Workers) -> Held:
    held = Held.none()
    workers.run([CalibrationJob(run, settings) for run in runs], lambda job, answer: held.add(answer))
    return held


def coverage_lines(label: str, held: Held) -> list[str]:
    """A line of the table for all that was predicted at least once."""
    return [
        f"| {label} | {name} | {len(values)} | " + " | ".join(cells(np.array(values))) + " |"
        for name, values in held.quantiles.items()
        if values
    ]


def reliability_lines(held: Held) -> list[str]:
    """A table of P(better): how often it was, by what was said."""
    lines = [
        "| P(better) | " + " | ".join(f"{n}: cases, said, was" for n in held.better) + " |",
        "|---|---|---|",
    ]
    binned = [reliability(pairs) for pairs in held.better.values()]
    for k, both in enumerate(zip(*binned, strict=True)):
        told = " | ".join(f"{each.cases}, {each.said:.2f}, {each.was:.2f}" for each in both)
        lines.append(f"| {k / BINS:.1f} .. {(k + 1) / BINS:.1f} | {told} |")
    return lines


class Reliability(NamedTuple):
    """Predictions of one bin: their mean, and how often they came true; NaN where there are none."""

    cases: int
    said: float
    was: float


def reliability(pairs: Sequence[tuple[float, bool]]) -> list[Reliability]:
    """By fifths of the probability."""
    said, was = np.reshape(np.array(pairs, dtype=float), (-1, 2)).T
    bins = np.minimum((BINS * said).astype(int), BINS - 1)
    found = []
    for k in range(BINS):
        own = bins == k
        means = (float(said[own].mean()), float(was[own].mean())) if own.any() else (math.nan, math.nan)
        found.append(Reliability(int(own.sum()), *means))
    return found


def _append(path: Path, commit: str, options: Options, row: SimulatedRow, held: Held) -> None:
    told = {"commit": commit, "seeds": options.seeds, "decisions": options.decisions}
    line: dict[str, Any] = told | row._asdict() | {"settings": options.settings}
    for name, values in held.quantiles.items():
        if values:
            quantiles = np.array(values)
            line[name] = {
                "cases": len(values),
                "within": coverages(quantiles),
                "pit": [round(share, 4) for share in pit(quantiles).tolist()],
            }
    for name, pairs in held.better.items():
        line[f"better, {name}"] = [each._asdict() for each in reliability(pairs) if each.cases]
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
