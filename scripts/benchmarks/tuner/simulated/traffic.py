"""`traffic-simulated`: what runs of `rrl-tune` leave under bursts and beside a neighbour, in simulation.

`bursts` and `neighbour` ask the same of a real server, in hours. Here a run takes a second. The servers are
random machines of 2 cores that tell all that `rrl-serve` tells. Each is tuned in the loop of `rrl-tune`, with
guard and validation, from the start that `rrl-serve` has: one instance, a thread a core, no batches.

- Arrivals are as `scripts/bench bursts` takes them. Their rate is a share of what the rule of thumb bears.
- The neighbour is that of `scripts.serving.neighbour`. It takes 30 to 100 % of a core for 5 to 60 s, and
  pauses for as long.
- n instances of a threads want n·a cores. Where that and the neighbour's share exceed the cores, batches that
  begin take longer in proportion.
- To judge what was left, every configuration lives through the moments of the run, beside the same neighbour.

| column | over runs | meaning |
|---|---|---|
| left | count, median, worst | latency of what is left, over the best's: how many are within 1.10 |
| changes | median, most | of the configuration |
| cost | count | runs whose summed latency is below the start's, had it been left alone |
| guard | count | its rollbacks and aborts that made it worse (`GuardActions`), of all of them |
| whole run | geometric mean | latency of all requests of the run, over the best's |

    scripts/bench traffic-simulated [--seeds 0-19] [--agents guided rule] [--settings NAME=VALUE]

Seeds from 1000 on are for judging, once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import numpy as np

from baselines import AGENTS, NEED_MACHINE, unknown_agent
from baselines.comparison.workers import Workers
from envs.scenarios.families import listed_seeds
from envs.scenarios.small_machines import CORES, random_machine
from envs.simulated import SimulatedServing
from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.guided.first_choice import RULE_OF_THUMB
from rrl.interval import Watch
from rrl.measurement import Measurement
from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.queueing.simulator import Simulation
from rrl.records import Header
from rrl.space import Configuration, ConfigurationSpace
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.real_traffic.burst_arrivals import arrivals_named, moments_of
from scripts.benchmarks.tuner.real_traffic.report import (
    MOST_CHANGES,
    MOST_WORSENED,
    REACH_RATIO,
    REACH_SHARE,
    GuardActions,
)
from scripts.benchmarks.tuner.simulated.given_settings import guided_settings
from scripts.benchmarks.tuner.simulated.tuned_run import tuned
from scripts.serving.neighbour import schedule
from scripts.serving.served_agents import DEFAULT, RULE
from serving_adapter.flags.parsing import parse

SPACE = ConfigurationSpace.parse("instances=1:4,intra_op_threads=1:2,max_batch_size=1,2,4,8")
START = {"instances": 1, "intra_op_threads": CORES, "max_batch_size": 1}
OF_THUMB = {"instances": CORES} | RULE_OF_THUMB
INTERVAL_S = 5.0
SPARE = 3.0  # times the planned intervals, which validation prolongs
SHARE_STEP = 0.05  # to which the neighbour's shares are rounded
CELLS = (
    ("poisson", False, 0.5),
    ("on-off", False, 0.4),
    ("gaps:5", False, 0.4),
    ("gaps:15", False, 0.4),
    ("batches:5", False, 0.4),
    ("poisson", True, 0.3),
    ("poisson", True, 0.5),
)
HEAD = (
    f"{'arrivals':10} {'neighbour':9} load agent      left: within 1.10  median   worst  changes  cost    "
    "guard    whole run"
)


class SimulatedTraffic(NamedTuple):
    """What the runs of a row of the table meet."""

    arrivals: str
    neighbour: bool
    load: float  # of what the rule of thumb bears

    def __str__(self) -> str:
        return f"{self.arrivals:10} {'beside' if self.neighbour else '-':9} {self.load:4.2f}"


@dataclass(frozen=True)
class Options:
    """What runs of rrl-tune leave under bursts and beside a neighbour, on simulated servers."""

    seeds: str = "0-19"
    """Of machines, arrivals and neighbours."""
    agents: tuple[str, ...] = (DEFAULT, RULE)
    """Which agents."""
    arrivals: tuple[str, ...] = ()
    """Only the rows with these arrivals."""
    intervals: int = 16
    """Of a run, validation apart."""
    settings: tuple[str, ...] = ()
    """Of the default agent, NAME=VALUE each."""
    processes: int = 1
    """How many runs at once."""

    def __post_init__(self) -> None:
        if self.intervals < 1:
            raise ValueError("--intervals must be at least 1")
        listed_seeds(f"--seeds {self.seeds}", self.seeds)
        if not self.cells:
            raise ValueError(f"--arrivals: known are {', '.join(dict.fromkeys(each[0] for each in CELLS))}")
        for name in self.agents:
            if name not in AGENTS or name in NEED_MACHINE:
                raise ValueError(unknown_agent(name, (n for n in AGENTS if n not in NEED_MACHINE)))
        guided_settings(self.settings)

    @property
    def servers(self) -> list[int]:
        return listed_seeds(self.seeds, self.seeds)

    @property
    def cells(self) -> list[SimulatedTraffic]:
        return [SimulatedTraffic(*each) for each in CELLS if not self.arrivals or each[0] in self.arrivals]


class NeighbourSpell(NamedTuple):
    """A stretch in which the neighbour takes a share of one core; 0 is a pause."""

    end_s: float
    share: float


class TrafficOutcome(NamedTuple):
    """What came of one run; see the columns."""

    left: float
    changes: int
    latency_s: float  # of all requests
    untouched_s: float  # of the same moments under the start
    best_s: float  # and under the best
    guard: GuardActions

    @property
    def whole_run(self) -> float:
        return self.latency_s / self.best_s


class BesideNeighbour(Simulation):
    """A server whose batches take longer while a neighbour takes a share of its cores."""

    def __init__(self, machine: Machine, spells: Sequence[NeighbourSpell], factors: np.ndarray) -> None:
        super().__init__(machine, service_factors=factors)
        self._spells = spells
        self._machines = {share: beside(machine, share) for share in {spell.share for spell in spells}}

    def run(
        self,
        arrival_times_s: np.ndarray,
        sizes: np.ndarray | None,
        configuration: Configuration,
        until_s: float,
    ) -> Outcome:
        """As `Simulation`, spell by spell; after the last one it goes on for ever."""
        found = []
        while True:
            spell = next((each for each in self._spells if each.end_s > self.now_s), self._spells[-1])
            end_s = until_s if spell is self._spells[-1] else min(spell.end_s, until_s)
            now = slice(*np.searchsorted(arrival_times_s, [self.now_s, end_s]))
            self.machine = self._machines[spell.share]
            own_sizes = None if sizes is None else sizes[now]
            found.append(super().run(arrival_times_s[now], own_sizes, configuration, end_s))
            if end_s == until_s:
                return Outcome.joined(found)


class TrafficServing(SimulatedServing):
    """A simulated server beside a neighbour."""

    spells: Sequence[NeighbourSpell] = (NeighbourSpell(math.inf, 0.0),)
    latency_s = 0.0  # of all answers so far

    @property
    def now_s(self) -> float:
        return float(self._simulation.now_s)

    def drained_s(self, number: int) -> float:
        """Latency of what waits now, served to its end under this configuration."""
        found = self._simulation.drain(self.space.configuration(number))
        return float((found.finish_s - found.arrival_s).sum())

    def _empty_server(self, service_factors: np.ndarray) -> Simulation:
        return BesideNeighbour(self.machine, self.spells, service_factors)

    def _measurement(self, number: int, watch: Watch) -> Measurement:
        measurement = super()._measurement(number, watch)
        if measurement.completions:
            self.latency_s += 1e-3 * measurement.completions * measurement.latency.mean_ms
        return measurement


@dataclass(frozen=True)
class GivenMoments:
    """Arrivals at these moments."""

    moments_s: np.ndarray

    @property
    def mean_rate_per_s(self) -> float:
        return len(self.moments_s) / float(self.moments_s[-1])

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        yield self.moments_s


def beside(machine: Machine, share: float) -> Machine:
    """The machine while a neighbour wants this share of a core, and the scheduler is fair."""
    i, a, n, _ = np.meshgrid(
        machine.inter_op_threads,
        machine.intra_op_threads,
        machine.busy_instances,
        machine.batch_size,
        indexing="ij",
    )
    wanted = i * a * n
    longer = np.maximum(1.0, (wanted + share) / CORES) / np.maximum(1.0, wanted / CORES)
    return replace(machine, service_time_s=machine.service_time_s * longer)


def spells_of(seed: int, length_s: float) -> list[NeighbourSpell]:
    """The neighbour's schedule, as far as a run may need it."""
    found: list[NeighbourSpell] = []
    end_s = 0.0
    for spell in schedule(seed):
        end_s += spell.length_s
        found.append(NeighbourSpell(end_s, SHARE_STEP * round(spell.share / SHARE_STEP)))
        if end_s > length_s:
            return found
    raise AssertionError("a schedule has no end")


def episode(
    cell: SimulatedTraffic, agent_name: str, intervals: int, settings: Sequence[str], seed: int
) -> TrafficOutcome:
    """One run on one server, in `rrl-tune`'s loop, and every configuration under its moments."""
    machine, _ = random_machine(seed)
    rate_per_s = cell.load * machine.capacity_per_s(OF_THUMB)
    length_s = SPARE * INTERVAL_S * intervals
    moments_s = moments_of(arrivals_named(cell.arrivals, rate_per_s), seed, length_s)
    env = TrafficServing(
        machine, SPACE, arrivals=GivenMoments(moments_s), interval_s=INTERVAL_S, start=START, cores=CORES
    )
    if cell.neighbour:
        env.spells = spells_of(seed, length_s)
    env.np_random = np.random.default_rng(seed)
    task = Task(SPACE, env.objective, CORES, settles=True)
    own = guided_settings(settings) if agent_name == DEFAULT else None
    agent = AGENTS[agent_name](task, seed, False, own)
    guard = Guard(env.start, expectation=Belief(SPACE, env.objective, CORES))
    about = (SPACE, "latency", None, agent_name, seed, "simulated", str(cell), START, START, INTERVAL_S, "")
    kept, records = tuned(env, agent, guard, Header(*about), intervals)
    numbers = [env.start, *(SPACE.number(each.configuration) for each in records), kept.number]
    lived = moments_s[moments_s < env.now_s]
    sums_s = np.array([_summed_s(env, lived, number) for number in range(len(SPACE))])
    return TrafficOutcome(
        left=float(sums_s[kept.number] / sums_s.min()),
        changes=sum(a != b for a, b in pairwise(numbers)),
        latency_s=env.latency_s + env.drained_s(kept.number),
        untouched_s=float(sums_s[env.start]),
        best_s=float(sums_s.min()),
        guard=GuardActions.of(records),
    )


def _summed_s(env: TrafficServing, moments_s: np.ndarray, number: int) -> float:
    """Latency of all these requests under one configuration, from an empty server to the last answer."""
    server = BesideNeighbour(env.machine, env.spells, np.ones(1))
    found = server.run(moments_s, None, SPACE.configuration(number), math.inf)
    return float((found.finish_s - found.arrival_s).sum())


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    about = f"seeds {options.seeds}, {options.intervals} intervals {' '.join(options.settings)}"
    print(f"commit {commit_in_force()}, {about}\n{HEAD}")
    of_default: list[TrafficOutcome] = []
    with Workers(options.processes) as workers:
        for cell in options.cells:
            for agent in options.agents:
                jobs = [
                    partial(episode, cell, agent, options.intervals, options.settings, seed)
                    for seed in options.servers
                ]
                runs = workers.answers(jobs)
                of_default += runs if agent == DEFAULT else []
                print(line_of(cell, agent, runs), flush=True)
    return result(of_default)


def result(runs: Sequence[TrafficOutcome]) -> dict[str, Any]:
    """The last line of the benchmark, of the default agent's runs."""
    within = [each.left <= REACH_RATIO for each in runs]
    share = sum(within) / len(within) if within else math.nan
    worsened = sum(each.guard.worsened for each in runs)
    return {
        "value": round(share, 3),
        "unit": f"share of the default agent's runs that leave at most {REACH_RATIO:g} times the best",
        "reach": f"{REACH_SHARE:g}, at most {MOST_CHANGES} changes, summed latency below the start's, "
        f"{MOST_WORSENED:g} actions of the guard a run that made it worse",
        "runs": len(runs),
        "worsened": worsened,
        "holds": share >= REACH_SHARE
        and worsened <= MOST_WORSENED * len(runs)
        and all(each.changes <= MOST_CHANGES and each.latency_s < each.untouched_s for each in runs),
    }


def line_of(cell: SimulatedTraffic, agent: str, runs: Sequence[TrafficOutcome]) -> str:
    """A row of the table."""
    left = [each.left for each in runs]
    within = sum(each <= REACH_RATIO for each in left)
    changes = [each.changes for each in runs]
    cheaper = sum(each.latency_s < each.untouched_s for each in runs)
    worsened = sum(each.guard.worsened for each in runs)
    acted = sum(each.guard.rollbacks + each.guard.aborted for each in runs)
    return (
        f"{cell} {agent:10} {within:>11}/{len(runs):<4} {median(left):8.3f}"
        f" {max(left):7.2f} {median(changes):5.0f}/{max(changes):<3} {cheaper:>3}/{len(runs):<4}"
        f" {worsened:>3}/{acted:<3}"
        f" {geometric_mean(each.whole_run for each in runs):9.3f}"
    )
