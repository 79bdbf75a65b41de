"""`reach`: how soon and how near to the best agents come on simulated machines, at home and out of family.

    scripts/bench reach [--seeds 0-9] [--agents guided gp-bandit rule] [--rows family usl/model]
                        [--settings horizon=16] [--out reach.jsonl]

| column | over machines | meaning |
|---|---|---|
| soon | count | within 10 % of the oracle by decision 10, and staying (running median of 5) |
| first ten | geometric mean | expected latency of the first ten decisions, over the oracle's |
| p95 far | mean | intervals whose p95 is over twice the best configuration's expected one; the oracle's own |
| after 30 | median, worst | expected latency from decision 30 on, over the oracle's |
| whole run | geometric mean | expected latency of all decisions, over the oracle's |
| ms | median, p99 | CPU time of a decision |

Below stand, of each row, the five runs that end farthest from the oracle, and of how many machines.

A star marks what misses its limit. Only `rule` is told the machine's cores, as an engineer who sets a rule of
thumb knows them. With `--tell-cores` all agents are, as `rrl-tune` knows those of its own machine.

Seeds from 1000 on are for judging, once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from baselines import AGENTS, NEED_MACHINE, AgentFactory, unknown_agent
from baselines.comparison.run import RunJob
from baselines.comparison.summary import SOON, WARM_UP, are_soon, figures, ratio_of_sums
from baselines.comparison.workers import Workers
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.simulated.given_settings import guided_settings
from scripts.benchmarks.tuner.simulated.rows import (
    SimulatedRow,
    SimulatedRun,
    changes_of,
    find_expected_costs,
    lived,
    rows_named,
    runs_of,
)
from scripts.serving.served_agents import DEFAULT, RULE
from serving_adapter.flags.parsing import parse

ORACLE, PEER = "oracle", "gp-bandit"
LARGEST_FIRST_TEN = 1.25
LARGEST_FAR = 2.0  # times the oracle's share
SHOWN_OF_WORST = 5  # runs of a row


class ReachLimits(NamedTuple):
    """What a row is to reach."""

    soon: float | None  # share of the machines
    median: float | None  # after decision 30
    worst: float


def limits_of(row: SimulatedRow) -> ReachLimits:
    if row.source != "family":
        return ReachLimits(None, 1.02, 1.08)
    if row.truth != "model":
        return ReachLimits(None, None, 1.08)
    return ReachLimits({"stationary": 0.95, "wiki": 0.8, "dynamic": 0.85}[row.workload], 1.006, 1.04)


@dataclass(frozen=True)
class Options:
    """How soon and how near to the best agents come on simulated machines."""

    seeds: str = "0-9"
    """Of the machines of every source."""
    agents: tuple[str, ...] = (DEFAULT, PEER, RULE)
    """Which agents."""
    rows: tuple[str, ...] = ()
    """Beginnings of rows' names, e.g. family/model usl (default: all)."""
    decisions: int = 100
    """Of a run."""
    settings: tuple[str, ...] = ()
    """Of the default agent, NAME=VALUE each."""
    tell_cores: bool = False
    """Tell every agent the machine's cores, not only the rule of thumb."""
    out: Path | None = None
    """A file to which each row is appended as a line of JSON."""
    folder: Path = Path("runs/reach-costs")
    """Where the machines' expected costs are kept from one call to the next."""
    processes: int = 1
    """How many runs at once."""

    def __post_init__(self) -> None:
        for name in self.agents:
            if name not in AGENTS or name in NEED_MACHINE:
                raise ValueError(unknown_agent(name, (n for n in AGENTS if n not in NEED_MACHINE)))
        if self.decisions <= WARM_UP:
            raise ValueError(f"--decisions must be above {WARM_UP}, got {self.decisions}")
        guided_settings(self.settings)
        for row in rows_named(self.rows):
            row.settings(self.seeds, self.decisions).make_scenarios()


class ReachLine(NamedTuple):
    """One line of the table: an agent on the machines of a row."""

    soon: int
    first_ten: float
    far: float
    oracle_far: float
    after_30: dict[str, float]  # by machine, the farthest from the oracle first
    whole_run: float
    changes: float  # of the configuration in a run, on average
    decide_median_ms: float
    decide_p99_ms: float

    @property
    def machines(self) -> int:
        return len(self.after_30)

    @property
    def worst_machine(self) -> str:
        return next(iter(self.after_30))

    @property
    def after_30_median(self) -> float:
        return float(np.median(list(self.after_30.values())))

    @property
    def after_30_worst(self) -> float:
        return self.after_30[self.worst_machine]

    @classmethod
    def of(
        cls, runs: dict[str, np.ndarray], oracles: dict[str, np.ndarray], knobs: Sequence[str]
    ) -> ReachLine:
        """Of the decisions of one agent, and of the oracle, by machine."""
        named, rows = figures(), list(runs.values())
        after = {name: ratio_of_sums(each[WARM_UP:]) for name, each in runs.items()}
        times_ms = np.concatenate([each["decide_ms"] for each in rows])
        until, far = named["decisions_until_10_percent"], named["share_p95_over_twice_best"]
        return cls(
            soon=int(are_soon(np.array([until.of_run(each) for each in rows])).sum()),
            first_ten=geometric_mean(ratio_of_sums(each[:SOON]) for each in rows),
            far=float(np.mean([far.of_run(each) for each in rows])),
            oracle_far=float(np.mean([far.of_run(each) for each in oracles.values()])),
            after_30=dict(sorted(after.items(), key=lambda each: each[1], reverse=True)),
            whole_run=geometric_mean(map(ratio_of_sums, rows)),
            changes=float(np.mean([changes_of(each, knobs) for each in rows])),
            decide_median_ms=float(np.median(times_ms)),
            decide_p99_ms=float(np.quantile(times_ms, 0.99)),
        )

    def misses(self, limits: ReachLimits) -> set[str]:
        """The columns whose limit is not held."""
        held = {
            "soon": limits.soon is None or self.soon >= limits.soon * self.machines,
            "first ten": self.first_ten <= LARGEST_FIRST_TEN,
            "p95 far": self.far <= LARGEST_FAR * self.oracle_far,
            "median": limits.median is None or self.after_30_median <= limits.median,
            "worst": self.after_30_worst <= limits.worst,
        }
        return {name for name, holds in held.items() if not holds}


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    commit = commit_in_force()
    cores, settings = "cores told" if options.tell_cores else "cores not told", " ".join(options.settings)
    print(f"commit {commit}, seeds {options.seeds}, {options.decisions} decisions, {cores} {settings}")
    print(HEAD)
    reached: dict[tuple[SimulatedRow, str], ReachLine] = {}
    with Workers(options.processes) as workers:
        for row in rows_named(options.rows):
            runs = runs_of(row, options.seeds, options.decisions, options.folder)
            find_expected_costs(runs, workers)
            for agent, found in _reached(runs, options, workers).items():
                reached[row, agent] = found
                print(line_of(row, agent, found), flush=True)
                if options.out is not None:
                    _append(options.out, commit, options, row, agent, found)
    print(HEAD_OF_WORST)
    for (row, agent), found in reached.items():
        print(worst_of(row, agent, found))
    ours, peers = ([f.whole_run for (_, agent), f in reached.items() if agent == a] for a in (DEFAULT, PEER))
    value, peer = (geometric_mean(each) if each else None for each in (ours, peers))
    missed = [found.misses(limits_of(row)) for (row, agent), found in reached.items() if agent == DEFAULT]
    return {
        "value": value and round(value, 4),
        "unit": "expected latency of the default agent's runs over the oracle's, geometric mean of all rows",
        "peer": peer and round(peer, 4),
        "ratio": value and peer and round(value / peer, 4),
        "reach": "no star in a row of the default agent",
        "holds": bool(missed) and not any(missed),
    }


HEAD = (
    f"{'row':36} {'agent':12} soon   first ten   p95 far (oracle)   after 30    worst            "
    "   whole run  changes  ms"
)


HEAD_OF_WORST = f"\n{'row':36} {'agent':12} the worst after 30, of all machines"


def worst_of(row: SimulatedRow, agent: str, found: ReachLine) -> str:
    """A row of the table of worst runs."""
    worst = islice(found.after_30.items(), SHOWN_OF_WORST)
    told = "  ".join(f"{name} {ratio:.3f}" for name, ratio in worst)
    return f"{row!s:36} {agent:12} {told}  of {found.machines}"


def line_of(row: SimulatedRow, agent: str, found: ReachLine) -> str:
    """A row of the table."""
    missed = found.misses(limits_of(row))

    def starred(text: str, name: str) -> str:
        return text + ("*" if name in missed else " ")

    return (
        f"{row!s:36} {agent:12} {starred(f'{found.soon}/{found.machines}', 'soon'):6}"
        f" {starred(f'{found.first_ten:.3f}', 'first ten'):>9}"
        f" {starred(f'{found.far:.2%}', 'p95 far'):>9} ({found.oracle_far:.2%})"
        f" {starred(f'{found.after_30_median:.4f}', 'median'):>15}"
        f" {starred(f'{found.after_30_worst:.4f}', 'worst'):>9} {found.worst_machine:12}"
        f" {found.whole_run:.4f}     {found.changes:7.1f}"
        f"  {found.decide_median_ms:.1f} / {found.decide_p99_ms:.1f}"
    )


def _reached(runs: Sequence[SimulatedRun], options: Options, workers: Workers) -> dict[str, ReachLine]:
    """Lives the runs of every agent anew."""
    by_agent: dict[str, dict[str, np.ndarray]] = {}
    names = [*(name for name in options.agents if name != ORACLE), ORACLE]
    jobs = [_job(run, name, options) for name in names for run in runs]
    for job, rows in zip(jobs, lived(jobs, workers), strict=True):
        by_agent.setdefault(job.agent, {})[job.load.scenario.name] = rows
    knobs = runs[0].space.names
    return {name: ReachLine.of(by_agent[name], by_agent[ORACLE], knobs) for name in options.agents}


def _job(run: SimulatedRun, agent: str, options: Options) -> RunJob:
    factory: AgentFactory = AGENTS[agent]
    if agent == DEFAULT:
        factory = partial(AGENTS[agent], settings=guided_settings(options.settings))
    told = options.tell_cores or agent == RULE
    return run.job(agent, factory, told, label=agent)


def _append(
    path: Path, commit: str, options: Options, row: SimulatedRow, agent: str, found: ReachLine
) -> None:
    changed = {"settings": options.settings} if agent == DEFAULT else {}
    names = ("seeds", "decisions", "tell_cores")
    told = {"commit": commit} | {name: getattr(options, name) for name in names}
    line = told | row._asdict() | {"agent": agent} | changed | found._asdict()
    line["misses"] = sorted(found.misses(limits_of(row)))
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
