"""`advice`: how often what `rrl-tune --advise` recommends is no worse than what was in force, in simulation.

It promises that with 90 %. On each machine some configurations that bear the load are drawn. Each is observed
as `--advise` observes it, by its telemetry alone, without a machine file or an earlier run. What is then
recommended is held against what was in force, by long simulation.

| column | meaning |
|---|---|
| observed | configurations in force |
| advised | how many of them had something recommended |
| said | the probability of being no worse that was told with it, on average |
| no worse | the share of what was recommended that is no worse |
| gain | of what was recommended, cost in force over its own: geometric mean, and the least |

    scripts/bench advice [--seeds 0-9] [--rows family/model/stationary usl roofline] [--starts 10]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, NamedTuple

import numpy as np

from baselines.comparison.landscapes import seed_sequence
from baselines.comparison.workers import Workers
from envs.scenarios.workloads import PerIntervalPoisson
from rrl.advice.advice import source
from rrl.advice.observation import DEFAULT_INTERVALS, measure_in_force
from rrl.advice.possible_costs import CREDIBILITY
from rrl.agent import Task
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.simulated.rows import SimulatedRun, find_expected_costs, rows_named, runs_of
from serving_adapter.flags.parsing import parse

HEAD = "| row | observed | advised | said | no worse | gain | least |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class Options:
    """How often what rrl-tune --advise recommends is no worse than what was in force."""

    seeds: str = "0-9"
    """Of the machines of every source."""
    rows: tuple[str, ...] = ("family/model/stationary", "usl", "roofline")
    """Beginnings of rows' names."""
    starts: int = 10
    """Configurations in force that are observed on each machine."""
    folder: Path = Path("runs/reach-costs")
    """Where the machines' expected costs are kept from one call to the next."""
    processes: int = 1
    """How many machines at once."""

    def __post_init__(self) -> None:
        if self.starts < 1:
            raise ValueError("--starts must be at least 1")
        for row in rows_named(self.rows):
            row.settings(self.seeds, DEFAULT_INTERVALS).make_scenarios()


class Advised(NamedTuple):
    """What was recommended once."""

    said: float  # P(no worse)
    gain: float  # what was in force costs so many times as much

    @property
    def no_worse(self) -> bool:
        return self.gain >= 1


@dataclass(frozen=True, eq=False)
class AdviceJob:
    """Advice on one machine, for some configurations in force: None where nothing is recommended."""

    run: SimulatedRun
    starts: int

    def __call__(self) -> list[Advised | None]:
        run = self.run
        rng = np.random.default_rng(seed_sequence(run.scenario, 0))
        *_, landscape = run.load.landscapes(len(run.space))
        rate_per_s = float(run.load.rates_per_s[-1])
        configurations = map(run.space.configuration, range(len(run.space)))
        bears = [run.scenario.machine.capacity_per_s(each) > rate_per_s for each in configurations]
        in_force = rng.permutation(np.flatnonzero(bears))[: self.starts]
        return [self._advised(number, landscape.costs, rng) for number in in_force.tolist()]

    def _advised(self, number: int, costs: np.ndarray, rng: np.random.Generator) -> Advised | None:
        """`costs` (size,) are the true ones."""
        run, objective = self.run, self.run.settings.make_objective()
        arrivals = PerIntervalPoisson(run.load.rates_per_s)
        env = run.scenario.environment(run.space, objective, arrivals)
        env.np_random = rng.spawn(1)[0]
        observed = measure_in_force(env, number, DEFAULT_INTERVALS, lambda text: None)
        in_force = run.space.configuration(number)
        by = source(Task(run.space, objective), run.settings.objective, observed, in_force, None, None)
        best = None if by is None else by.possible.recommended()
        if by is None or best is None:
            return None
        advised = int(by.possible.numbers[best])
        return Advised(float(by.possible.no_worse[best]), float(costs[number] / costs[advised]))

    def __str__(self) -> str:
        return f"{self.run.scenario.name}, {self.run.row}"


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    print(f"commit {commit_in_force()}, seeds {options.seeds}, {options.starts} starts a machine\n\n{HEAD}")
    total: list[Advised | None] = []
    with Workers(options.processes) as workers:
        for row in rows_named(options.rows):
            runs = runs_of(row, options.seeds, DEFAULT_INTERVALS, options.folder)
            find_expected_costs(runs, workers)
            answers = workers.answers([AdviceJob(each, options.starts) for each in runs])
            found = [each for answer in answers for each in answer]
            total += found
            print(line_of(str(row), found), flush=True)
    print(line_of("all", total))
    return result(total)


def result(found: Sequence[Advised | None]) -> dict[str, Any]:
    """The last line of the benchmark."""
    advised = [each for each in found if each is not None]
    share = fmean(each.no_worse for each in advised) if advised else math.nan
    return {
        "value": round(share, 3),
        "unit": "share of what --advise recommends that is no worse than what was in force",
        "peer": None,
        "ratio": round(share / CREDIBILITY, 3),
        "reach": CREDIBILITY,
        "holds": share >= CREDIBILITY,
    }


def line_of(label: str, found: Sequence[Advised | None]) -> str:
    """A row of the table."""
    advised = [each for each in found if each is not None]
    cells = [label, len(found), len(advised)]
    if not advised:
        return "| " + " | ".join(map(str, [*cells, *["-"] * 4])) + " |"
    gains = [each.gain for each in advised]
    shares = [
        f"{fmean(each.said for each in advised):.0%}",
        f"{fmean(each.no_worse for each in advised):.0%}",
    ]
    cells += [*shares, f"{geometric_mean(gains):.2f}", f"{min(gains):.2f}"]
    return "| " + " | ".join(map(str, cells)) + " |"
