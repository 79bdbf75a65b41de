"""`ablation`: what each setting of the default agent brings, on simulated machines at home and out of family.

    scripts/bench ablation [--seeds 0-9] [--rows family/model usl] [--changes horizon=1 change_share=0]
                           [--tell-cores]

The agent as it is and the agent with one setting changed meet the same requests on the same machines. So what
they differ by is told by machine.

| column | over machines | meaning |
|---|---|---|
| a row of machines | geometric mean | expected latency of all decisions, over that of the agent as it is |
| soon | count, all rows | within 10 % of the oracle by decision 10, and staying (running median of 5) |
| changes | mean, all rows | of the configuration in a run |

Of the agent as it is, the columns of rows have the latency over the oracle's. Behind ± are two standard
errors over machines. A star marks what lies beyond them. Seeds from 1000 on are for judging, once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

import numpy as np

from baselines import AGENTS
from baselines.comparison.run import RunJob
from baselines.comparison.summary import WARM_UP, are_soon, figures, ratio_of_sums
from baselines.comparison.workers import Workers
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.simulated.given_settings import guided_settings
from scripts.benchmarks.tuner.simulated.paired import geometric_mean_of
from scripts.benchmarks.tuner.simulated.rows import (
    SimulatedRow,
    SimulatedRun,
    changes_of,
    find_expected_costs,
    lived,
    rows_named,
    runs_of,
)
from scripts.serving.served_agents import DEFAULT
from serving_adapter.flags.parsing import parse

AS_IT_IS = "as it is"
ROWS = ("family/model/stationary", "family/processor", "family/variation", "usl", "roofline", "profiled")


@dataclass(frozen=True)
class Options:
    """What each setting of the default agent brings, on simulated machines."""

    seeds: str = "0-9"
    """Of the machines of every source."""
    rows: tuple[str, ...] = ROWS
    """Beginnings of rows' names, e.g. family/model usl."""
    changes: tuple[str, ...] = ("horizon=1", "horizon=30", "contenders=4", "change_share=0")
    """Of the agent's settings, NAME=VALUE each, one at a time."""
    decisions: int = 100
    """Of a run."""
    tell_cores: bool = False
    """Tell the agent the machine's cores, as `rrl-tune` knows those of its own machine."""
    folder: Path = Path("runs/reach-costs")
    """Where the machines' expected costs are kept from one call to the next."""
    processes: int = 1
    """How many runs at once."""

    def __post_init__(self) -> None:
        if self.decisions <= WARM_UP:
            raise ValueError(f"--decisions must be above {WARM_UP}, got {self.decisions}")
        for change in self.changes:
            guided_settings([change])
        for row in rows_named(self.rows):
            row.settings(self.seeds, self.decisions).make_scenarios()


class Ablated(NamedTuple):
    """The runs of one agent on the machines of a row, in the order of the machines."""

    whole_run: tuple[float, ...]  # over the oracle's
    soon: int
    changes: float

    @classmethod
    def of(cls, runs: Sequence[np.ndarray], knobs: Sequence[str]) -> Ablated:
        until = figures()["decisions_until_10_percent"]
        return cls(
            whole_run=tuple(map(ratio_of_sums, runs)),
            soon=int(are_soon(np.array([until.of_run(each) for each in runs])).sum()),
            changes=mean(changes_of(each, knobs) for each in runs),
        )

    def over(self, usual: Ablated) -> tuple[float, float]:
        """Whole runs over those of the agent as it is: geometric mean, and two standard errors of its ln."""
        pairs = zip(self.whole_run, usual.whole_run, strict=True)
        return geometric_mean_of([math.log(ours / its) for ours, its in pairs])


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    rows = rows_named(options.rows)
    cores = "cores told" if options.tell_cores else "cores not told"
    print(f"commit {commit_in_force()}, seeds {options.seeds}, {options.decisions} decisions, {cores}")
    found: dict[str, list[Ablated]] = {change: [] for change in (AS_IT_IS, *options.changes)}
    with Workers(options.processes) as workers:
        for row in rows:
            runs = runs_of(row, options.seeds, options.decisions, options.folder)
            find_expected_costs(runs, workers)
            for change in found:
                lives = lived([_job(run, change, options) for run in runs], workers)
                found[change].append(Ablated.of(lives, runs[0].space.names))
    for line in table(rows, found):
        print(line)
    usual = found[AS_IT_IS]
    cheaper = [
        f"{change} ({row})"
        for change in options.changes
        for row, ours, its in zip(rows, found[change], usual, strict=True)
        if is_beyond(*ours.over(its)) and ours.over(its)[0] < 1
    ]
    return {
        "value": round(geometric_mean(ratio for each in usual for ratio in each.whole_run), 4),
        "unit": "expected latency of the agent as it is over the oracle's, geometric mean of all runs",
        "reach": "no change is cheaper beyond two standard errors in any row",
        "holds": not cheaper,
        "cheaper": cheaper,
    }


def table(rows: Sequence[SimulatedRow], found: dict[str, list[Ablated]]) -> list[str]:
    """One line for each change, in Markdown."""
    usual = found[AS_IT_IS]
    lines = [
        f"| changed to | {' | '.join(map(str, rows))} | soon | changes |",
        "|---" * (len(rows) + 3) + "|",
    ]
    for change, each in found.items():
        if each is usual:
            cells = [f"{geometric_mean(row.whole_run):.3f}" for row in each]
        else:
            cells = [told(*ours.over(its)) for ours, its in zip(each, usual, strict=True)]
        machines = sum(len(row.whole_run) for row in each)
        soon, changes = sum(row.soon for row in each), mean(row.changes for row in each)
        name = change if change == AS_IT_IS else f"`{change}`"
        lines.append(f"| {name} | {' | '.join(cells)} | {soon}/{machines} | {changes:.1f} |")
    return lines


def told(ratio: float, error: float) -> str:
    return f"{ratio:.3f} ± {error:.3f}{'*' if is_beyond(ratio, error) else ''}"


def is_beyond(ratio: float, error: float) -> bool:
    """Whether the ratio differs from 1 by more than its two standard errors."""
    return abs(math.log(ratio)) > error


def _job(run: SimulatedRun, change: str, options: Options) -> RunJob:
    changed = guided_settings([] if change == AS_IT_IS else [change])
    factory = partial(AGENTS[DEFAULT], settings=changed)
    return run.job(DEFAULT, factory, options.tell_cores, label=change)
