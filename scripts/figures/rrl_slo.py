"""Runs under a p95 limit that is equally tight on every machine (RRL, Figs. 14 and 15).

The paper does not say what the best p95 was, so its limits cannot be taken over.

| limit | paper, in ms of its servers | here |
|---|---|---|
| strict | 550 on CPU, 520 on GPU | `STRICT` times the lowest p95 of any configuration at the mean load |
| loose | 1,850 to 3,200 | 1850/520 times the strict one, as for the paper's Inception on a GPU |

The pictures show latency divided by the limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from baselines.comparison import ComparisonSettings
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import scenarios
from envs.scenarios.scenario import Scenario
from envs.simulated import PAPER_SPACE
from rrl.objective import MeanLatency
from rrl.queueing.simulator import Simulation
from rrl.space import ConfigurationSpace
from scripts.figures import rrl_fig13
from scripts.figures.rrl_agents import AGENTS, announce, compared, curves, family_machines, runs_of

STRICT = 1.5
LOOSE = STRICT * 1850 / 520


@dataclass(frozen=True)
class LimitedRuns:
    """All runs on one machine under its limit."""

    scenario: Scenario
    space: ConfigurationSpace
    requests_per_interval: int
    limit_ms: float
    decisions: np.ndarray  # as `run_comparison` gives them

    def decisions_of(self, agent: str, field: str) -> np.ndarray:
        """(runs, decisions) one field of an agent's runs."""
        return curves(self.decisions, agent, field)


@dataclass(frozen=True)
class LimitsSetting:
    agents: tuple[str, ...] = AGENTS
    decisions: int = 100
    knobs: str = PAPER_SPACE
    gpu_knobs: str = rrl_fig13.KNOBS


class Bench(NamedTuple):
    """A comparison and the machines it is made on, each with a limit of its own."""

    settings: ComparisonSettings
    machines: Sequence[str]


@contextmanager
def benches(
    seeds: int, setting: LimitsSetting, workload: str, objective: str
) -> Iterator[tuple[Bench, Bench]]:
    """The family's machines with the knobs of a CPU, and the stand-ins of a GPU with theirs."""
    machines, per_machine = runs_of(seeds)
    cpu = ComparisonSettings(
        agents=setting.agents,
        workload=workload,
        seeds=per_machine,
        decisions=setting.decisions,
        objective=objective,
        slo_p95_ms=1.0,  # replaced by each machine's own limit
        knobs=setting.knobs,
    )
    gpu = rrl_fig13.on_stand_ins(cpu, setting.gpu_knobs)
    with tempfile.TemporaryDirectory(prefix="rrl-figure-") as folder:
        stand_ins = rrl_fig13.write_stand_ins(Path(folder), machines)
        yield Bench(cpu, family_machines(machines)), Bench(gpu, stand_ins)


def limited_runs(bench: Bench, tightness: float) -> list[LimitedRuns]:
    """The comparison on each machine in turn, with a limit of `tightness` times its lowest p95."""
    announce(bench.settings, len(bench.machines))
    return [_on_machine(replace(bench.settings, machine=machine), tightness) for machine in bench.machines]


def _on_machine(settings: ComparisonSettings, tightness: float) -> LimitedRuns:
    (scenario,) = scenarios(settings.machine, settings.truth)
    space = ConfigurationSpace.parse(settings.knobs)
    expected = ExpectedCosts(scenario, space, MeanLatency(), settings.requests_per_interval)
    limit_ms = tightness * float(np.nanmin(expected.p95_ms(settings.rate_per_s)))
    decisions = compared(replace(settings, slo_p95_ms=limit_ms))
    return LimitedRuns(scenario, space, settings.requests_per_interval, limit_ms, decisions)


def by_limit(runs: Sequence[LimitedRuns], agent: str, field: str) -> np.ndarray:
    """(runs, decisions): a latency of an agent's intervals, divided by the limit of the machine."""
    return np.concatenate([r.decisions_of(agent, field) / r.limit_ms for r in runs])


def of_all(runs: Sequence[LimitedRuns], agent: str, field: str) -> np.ndarray:
    """(runs, decisions): a field of an agent's decisions."""
    return np.concatenate([r.decisions_of(agent, field) for r in runs])


def request_latencies_by_limit(runs: LimitedRuns, agent: str) -> list[np.ndarray]:
    """For each run the (requests,) latencies of all its requests, divided by the limit.

    A comparison keeps only summaries of intervals. So every interval is simulated once more, with arrivals at
    its rate, under the configuration that the agent chose for it.
    """
    rows = runs.decisions[runs.decisions["agent"] == agent]
    latencies = []
    for seed in np.unique(rows["seed"]):
        rng = np.random.default_rng([int(seed), 14])
        chosen = rows[rows["seed"] == seed]
        latencies.append(
            np.concatenate([_interval_latencies_ms(runs, row, rng) for row in chosen]) / runs.limit_ms
        )
    return latencies


def _interval_latencies_ms(runs: LimitedRuns, row: np.void, rng: np.random.Generator) -> np.ndarray:
    """(requests,) latencies of one interval that starts with an empty server and serves every request."""
    gaps_s = rng.exponential(1 / row["arrival_rate_per_s"], runs.requests_per_interval)
    configuration = {name: int(row[name]) for name in runs.space.names}
    outcome = Simulation(runs.scenario.machine).run(np.cumsum(gaps_s), None, configuration, np.inf)
    result: np.ndarray = 1e3 * (outcome.finish_s - outcome.arrival_s)
    return result
