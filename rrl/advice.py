"""`--advise`: observe the target as it is and recommend a configuration, changing nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from rrl.agent import Transition
from rrl.journal import Record, has_traffic
from rrl.reference_table import FILE_NAME, ReferenceTable
from rrl.report import Standing, in_words
from rrl.tuning import Environment

INTERVALS = 3
RUNS = Path("runs")

Simulate = Callable[[float], Mapping[int, float]]
"""Arrival rate -> cost of every configuration of the space, from a machine file."""


def observe(env: Environment, start: int, intervals: int, say: Callable[[str], None]) -> Standing:
    """Measures the configuration in force, waiting for requests where there are none."""
    action = env.space.action(start)
    observation, info = env.reset()
    records: list[Record] = []
    waiting = False
    while True:
        measurement = info["measurement"]
        if has_traffic(measurement) and not measurement.gap:
            transition = Transition(observation, action, info["cost"], observation, measurement)
            records.append(
                Record(
                    kind="baseline",
                    number=start,
                    configuration=env.space.configuration(start),
                    transition=transition,
                    decision="schedule",
                    reason="",
                    verdict="",
                    rollback=False,
                    learned=math.isfinite(info["cost"]),
                    wall_time_s=0.0,
                )
            )
        elif not waiting:
            waiting = True
            say(f"{measurement.gap or 'no requests arrive'}: waiting")
        if len(records) >= intervals:
            return Standing.of(records, env.space.configuration(start))
        observation, _, _, _, info = env.step(action)


def earlier_table(given: Path | None, model: str) -> tuple[ReferenceTable, Path] | None:
    """The reference table given, or that of the newest run of this model under `runs/`."""
    if given is not None:
        path = given / FILE_NAME if given.is_dir() else given
        return ReferenceTable.read(path), path
    for path in sorted(RUNS.glob(f"*/{FILE_NAME}"), key=lambda p: p.stat().st_mtime, reverse=True):
        table = ReferenceTable.read(path)
        if table.model == model:
            return table, path
    return None


def recommend(
    console: Console,
    env: Environment,
    now: Standing,
    objective: str,
    table: tuple[ReferenceTable, Path] | None,
    simulate: Simulate | None,
) -> dict[str, int] | None:
    """Says what is observed and what would be better, and by what evidence; returns the recommendation."""
    latency = f"mean {now.mean_ms:.1f} ms, p95 {now.p95_ms:.1f} ms"
    in_force = in_words(now.configuration)
    console.print(f"observed: {now.arrival_rate_per_s:.1f} requests/s, {latency} in {in_force}")
    if simulate is not None:
        costs = simulate(now.arrival_rate_per_s)
        best = min(costs, key=lambda number: costs[number])
        configuration = env.space.configuration(best)
        present = costs[env.space.nearest(now.configuration)]
        console.print(
            f"recommended: {in_words(configuration)}; in simulation of the machine file its cost is "
            f"{costs[best]:.1f} against {present:.1f} of the configuration in force"
        )
        return configuration
    entry = table[0].recommend(now.arrival_rate_per_s) if table else None
    if table is not None and entry is not None and table[0].objective == objective:
        console.print(
            f"recommended: {in_words(entry.configuration)}; at {entry.rate_per_s[0]:.0f} to "
            f"{entry.rate_per_s[1]:.0f} requests/s it cost {entry.cost:.1f} {table[0].unit} over "
            f"{entry.measurements} intervals ({table[1]})"
        )
        return entry.configuration
    why = (
        f"no reference table for {objective} at this load" if table else "no earlier run and no machine file"
    )
    console.print(
        f"no recommendation: there is {why}; tune it once (the same command without --advise), "
        "or measure the machine with rrl-profile and give --machine FILE.npz"
    )
    return None
