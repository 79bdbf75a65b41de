"""`live-comparison`: agents of `rrl-tune` side by side on the embedded server, and an exhaustive sweep.

For each seed the server and a load that its start only just bears (measured once) stay the same for all.
Every agent tunes them in turn, from the same start, with `rrl-tune` and its guard. The sweep visits every
configuration of the same grid once, and the guard's watch aborts what runs away. Last, because single
intervals are noisy, what each agent leaves in force and the sweep's best few are measured in turns.

A configuration is *near* if its latency is within 5 % of the sweep's best: by those last measurements, or,
where it was not among them, by all its intervals of this seed together. An agent has *settled* with the first
interval from which on nine in ten ran near configurations; the sweep with its last.

    scripts/bench live-comparison [--seeds 0 1 2] [--quick] [--out FOLDER]

The folder holds the journals, `intervals.csv`, `summary.json` and `latency.png`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from baselines.exhaustive_sweep import ExhaustiveSweep
from envs.target_space import cores_of, default_space
from rrl.agent import Task
from rrl.command_line.embedded.embedded import Embedded
from rrl.command_line.embedded.embedded_settings import EmbeddedSettings
from rrl.command_line.embedded.embedded_target import EmbeddedTarget
from rrl.measured_costs import costs_by_configuration
from rrl.space import ConfigurationSpace
from rrl.tuning.settings import TuningSettings
from scripts.benchmarks.tuner.live.comparison_report import (
    Comparison,
    draw,
    print_results,
    results,
    write_intervals,
    write_summary,
)
from scripts.serving.in_turns import latencies_in_turns_ms
from scripts.serving.served_agents import (
    DEFAULT,
    REACH,
    SWEEP,
    Served,
    TunedRun,
    WatchOnly,
    tuned_by_command,
    tuned_in_the_loop,
)
from serving_adapter.flags.parsing import parse

TUNERS = (DEFAULT, "rrl-paper", "capes", "optuna-tpe")


@dataclass(frozen=True)
class Options:
    """Compares agents on the embedded server with an exhaustive sweep."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One server, load and run of every agent for each."""
    agents: tuple[str, ...] = TUNERS
    """Agents beside the sweep."""
    quick: bool = False
    """Few and short intervals of a small grid: only to see that it works."""
    out: Path | None = None
    """Folder for journals, table and picture (default runs/live-comparison-TIME)."""

    def __post_init__(self) -> None:
        if not self.seeds or DEFAULT not in self.agents:
            raise ValueError(f"give at least one seed, and {DEFAULT} among the agents")


@dataclass(frozen=True)
class ComparisonLength:
    """How long everything takes."""

    intervals: int = 30  # an agent decides
    interval_s: float = 1.5
    settle_s: float = 0.35
    rounds: int = 5  # of the last measurements
    final_interval_s: float = 4.5
    finalists: int = 3  # of the sweep
    # Half of the target's usual grid: the sweep visits all of it for every seed.
    knobs: str = "instances=1:4,intra_op_threads=1,2,max_batch_size=1,2,4,8,16,max_queue_delay_us=0,2000"


QUICK = ComparisonLength(
    intervals=5, interval_s=1.2, rounds=2, final_interval_s=1.5, knobs="instances=1:2,max_batch_size=1,8"
)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    plan = QUICK if options.quick else ComparisonLength()
    folder = options.out or Path("runs") / f"live-comparison-{datetime.now():%Y%m%d-%H%M%S}"
    compared = {
        seed: _compared(seed, options.agents, plan, folder / f"seed-{seed}") for seed in options.seeds
    }
    write_intervals(folder / "intervals.csv", compared)
    write_summary(folder / "summary.json", compared)
    draw(folder / "latency.png", compared)
    print(f"intervals, summary, picture and journals in {folder}")
    return _result(compared)


def _compared(seed: int, agents: Sequence[str], plan: ComparisonLength, folder: Path) -> Comparison:
    embedded = Embedded(folder, EmbeddedSettings(seed=seed))
    try:
        embedded.start_server()
        embedded.start_load()
        target = EmbeddedTarget(embedded)
        target.connect()
        found = target.configuration()
        space = (
            ConfigurationSpace.parse(plan.knobs)
            if plan.knobs
            else default_space(target.knobs(), cores_of(target), target.room())
        )
        served = Served(target, space, found, seed, plan.interval_s, plan.settle_s, folder)
        print(f"seed {seed}: {embedded.rate_per_s:g}/s, {len(space)} configurations", flush=True)
        runs = {}
        for name in _turned((*agents, SWEEP), seed):  # the machine may get slower or faster meanwhile
            target.apply(found)
            sweeps = name == SWEEP
            runs[name] = _swept(served) if sweeps else tuned_by_command(served, name, plan.intervals)
            embedded.check()
        sweeps_best = _sweeps_best(runs[SWEEP], plan.finalists)
        start = space.number(runs[SWEEP].header.start)
        finalists = sorted({start, *sweeps_best, *(r.left for r in runs.values())})
        interval_s = plan.final_interval_s + plan.settle_s
        final_ms = latencies_in_turns_ms(target, space, finalists, plan.rounds, interval_s, plan.settle_s)
        target.close()
        failures = embedded.end_load()
    finally:
        embedded.close()
    best_ms = min(final_ms[number] for number in sweeps_best)
    comparison = Comparison(embedded.rate_per_s, space, runs, final_ms, best_ms)
    print_results(comparison, final_ms[start], failures)
    return comparison


def _turned(names: Sequence[str], seed: int) -> Sequence[str]:
    first = seed % len(names)
    return (*names[first:], *names[:first])


def _swept(served: Served) -> TunedRun:
    """Every configuration once; nothing is rolled back, as nobody waits for these requests."""
    agent = ExhaustiveSweep(Task(served.space), served.seed)
    limit = TuningSettings(intervals=3 * len(served.space), baseline=1, validation=0)
    return tuned_in_the_loop(served, SWEEP, agent, WatchOnly, limit, stop=lambda: agent.done)


def _sweeps_best(sweep: TunedRun, count: int) -> list[int]:
    costs = costs_by_configuration((r.number, r.cost) for r in sweep.tuning if r.learned)
    return sorted(costs, key=lambda number: median(costs[number]))[:count]


def _result(compared: Mapping[int, Comparison]) -> dict[str, Any]:
    """The default's settling beside the fastest rival's; the ratio is its worst over the seeds."""
    by_seed = [results(comparison) for comparison in compared.values()]
    settled = {name: median(_or_never(r[name].settled) for r in by_seed) for name in by_seed[0]}
    worst = {name: max(r[name].ratio for r in by_seed) for name in by_seed[0]}
    for name, intervals in settled.items():
        after = f"after {intervals:g} intervals (median)" if math.isfinite(intervals) else "not (median)"
        print(f"{name:12} settled {after}; left {worst[name]:.3f} of the sweep's best at worst")
    value, peer = settled[DEFAULT], min(n for name, n in settled.items() if name != DEFAULT)
    return {
        "value": value if math.isfinite(value) else None,
        "unit": "intervals until settled within 5 % of the sweep's best",
        "peer": peer if math.isfinite(peer) else None,
        "ratio": round(worst[DEFAULT], 3),
        "reach": REACH,
        "holds": worst[DEFAULT] <= REACH and value < peer,
    }


def _or_never(intervals: int | None) -> float:
    return math.inf if intervals is None else intervals
