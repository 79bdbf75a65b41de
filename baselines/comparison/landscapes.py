"""The expected cost of every configuration, by long simulation: once for each machine and load.

A landscape is computed by one job, kept in a file, and read by every run that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from baselines.comparison.settings import ComparisonSettings
from baselines.comparison.workers import FiledJob
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.scenario import Scenario
from rrl.agent import Hindsight
from rrl.queueing.machine import UNREADABLE
from rrl.space import ConfigurationSpace
from serving_adapter.whole_files import written_whole

FOLDER = "expected"


@dataclass(frozen=True)
class Landscape:
    """What one machine's configurations cost at one load; each array is (size,), by number."""

    costs: np.ndarray  # expected cost of an interval, in the objective's unit
    p95_ms: np.ndarray  # 95th percentile of the latency

    @cached_property
    def best_cost(self) -> float:
        return float(np.nanmin(self.costs))

    @cached_property
    def best_p95_ms(self) -> float:
        return float(np.nanmin(self.p95_ms))


@dataclass(frozen=True, eq=False)
class LandscapeJob(FiledJob):
    """Computes one landscape, unless its file exists, and answers its lowest cost and p95."""

    path: Path
    scenario: Scenario
    rate_per_s: float
    space: ConfigurationSpace
    settings: ComparisonSettings

    def brought(self) -> Landscape | None:
        return read_landscape(self.path, len(self.space))

    def work(self, brought: Landscape | None) -> Landscape:
        return self._computed() if brought is None else brought

    def keep(self, result: Landscape) -> tuple[float, float]:
        with written_whole(self.path) as file:
            np.savez(file, costs=result.costs, p95_ms=result.p95_ms)
        return result.best_cost, result.best_p95_ms

    def __str__(self) -> str:
        return f"expected costs on {self.scenario.name} at {self.rate_per_s:.4g}/s"

    def _computed(self) -> Landscape:
        objective = self.settings.make_objective()
        expected = ExpectedCosts(self.scenario, self.space, objective, self.settings.requests_per_interval)
        return Landscape(expected.costs(self.rate_per_s), expected.p95_ms(self.rate_per_s))


def read_landscape(path: Path, size: int) -> Landscape | None:
    """The landscape of a file; None where no landscape of this size is kept."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            landscape = Landscape(file["costs"], file["p95_ms"])
    except UNREADABLE:
        return None
    return landscape if landscape.costs.shape == landscape.p95_ms.shape == (size,) else None


@dataclass(frozen=True)
class Load:
    """The loads of one machine and seed, which all agents meet, and where their landscapes are."""

    folder: Path
    machine: int  # its place among the comparison's machines
    scenario: Scenario
    rates_per_s: np.ndarray  # (decisions + 1,) true rates; the first is the one before decision 0

    @classmethod
    def of(
        cls, folder: Path, machine: int, scenario: Scenario, seed: int, settings: ComparisonSettings
    ) -> Load:
        rng = np.random.default_rng(seed_sequence(scenario, seed))
        rates_per_s = settings.make_workload().rates_per_s(settings.decisions + 1, rng)
        return cls(folder, machine, scenario, rates_per_s)

    @property
    def decisions(self) -> int:
        return len(self.rates_per_s) - 1

    @property
    def slowed_from(self) -> int:
        """The first decision on the slowed machine; `decisions` where it never slows down."""
        slowdown = self.scenario.slowdown
        return self.decisions if slowdown is None else min(slowdown[0], self.decisions)

    def path(self, decision: int) -> Path:
        """The file of the landscape in which this decision is taken."""
        rate_per_s = self.rates_per_s[decision + 1]
        slowed = "-slowed" if decision >= self.slowed_from else ""
        return self.folder / FOLDER / f"machine-{self.machine:03}-rate-{rate_per_s:.9g}{slowed}.npz"

    def paths(self) -> set[Path]:
        """The files of all landscapes of the run."""
        return {self.path(decision) for decision in range(self.decisions)}

    def jobs(self, space: ConfigurationSpace, settings: ComparisonSettings) -> dict[Path, LandscapeJob]:
        """The jobs of the landscapes that the run needs, by their files."""
        jobs = {}
        for decision in range(self.decisions):
            path = self.path(decision)
            if path not in jobs:
                scenario = self.scenario.slowed() if decision >= self.slowed_from else self.scenario
                rate_per_s = float(self.rates_per_s[decision + 1])
                jobs[path] = LandscapeJob(path, scenario, rate_per_s, space, settings)
        return jobs

    def landscapes(self, size: int) -> list[Landscape]:
        """(decisions,) the landscape of each decision."""
        read: dict[Path, Landscape] = {}
        for decision in range(self.decisions):
            path = self.path(decision)
            if path not in read:
                landscape = read_landscape(path, size)
                if landscape is None:
                    raise ValueError(f"{path} is gone or damaged: run the comparison again to make it")
                read[path] = landscape
        return [read[self.path(decision)] for decision in range(self.decisions)]

    def hindsight(self, landscapes: Sequence[Landscape]) -> Hindsight:
        """Rates and costs to come.

        Costs are looked up by rate. So after a slow-down a rate differs in its last bit from the same rate
        before.
        """
        rates_per_s = self.rates_per_s[1:].copy()
        rates_per_s[self.slowed_from :] = np.nextafter(rates_per_s[self.slowed_from :], np.inf)
        costs = {float(rate): each.costs for rate, each in zip(rates_per_s, landscapes, strict=True)}
        return Hindsight(rates_per_s, costs.__getitem__)


def seed_sequence(scenario: Scenario, seed: int) -> list[int]:
    """Seeds what happens on a machine in a run, by its name, so that other machines do not matter."""
    return [seed, *scenario.name.encode()]
