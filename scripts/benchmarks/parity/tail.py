"""`parity-tail`: the tail under slow workers, ParM beside modes of equal cost (ParM's Figs. 10 to 14).

Workers of the deployed model and 1/k as many redundant ones, each a process of its own, under Poisson load.
The model only waits (50 ms for one item, 17 ms for each further one), as if each worker's accelerator were
elsewhere. So two cores bear 36 workers. It answers its input, a linear function, so it is its own parity
model. What a real one's accuracy is, `parity-accuracy` tells.

Clusters, loads, faults and the law of slow-downs are in `tail_rows`, with where they come from. Latencies are
those of the clients. The paper's are the front's, so ours have the way there and back in them, too.

Every row is the median (least - greatest) of its runs; all rows of a table are run in turns. A run is written
to `--out` when it is done. The same command goes on from there.

    scripts/bench parity-tail [--tables headline rate k batch imbalance length tenants backup mode delay
                                        calibration] [--clusters gpu cpu] [--loads 0.4 0.5]
                              [--requests N] [--runs N] [--out FILE.jsonl] [--quick]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scripts.benchmarks.parity.tail_measurement import KeptRuns, Run, measure
from scripts.benchmarks.parity.tail_report import (
    Series,
    as_markdown,
    beats_hedging,
    draw,
    gain,
    gains,
    nearest_to_the_paper,
    variations,
)
from scripts.benchmarks.parity.tail_rows import (
    CALIBRATION_SEED,
    CLUSTERS,
    LOADS,
    PAPER_TAILS,
    PARITY,
    TABLES,
    ServerAndLoad,
)
from serving_adapter.flags.parsing import parse

REACH = {"gpu": 2.6, "cpu": 3.0}
"""The least ratio of the gaps in the paper (section 6.2.1)."""
MEDIAN_REACH_MS = 0.5


@dataclass(frozen=True)
class Options:
    """Latencies of the resilience modes while workers are slowed down."""

    tables: tuple[str, ...] = ("headline",)
    """Tables to make: headline, rate, k, batch, imbalance, tenants, backup, mode, delay, calibration."""
    clusters: tuple[str, ...] = tuple(CLUSTERS)
    """Rows by their cluster: gpu (12 + 12/k workers), cpu (24 + 24/k)."""
    loads: tuple[float, ...] = LOADS
    """Rows of the tables rate, tenants and backup, by their share of the deployed workers' capacity."""
    requests: int | None = None
    """Requests of every run (default: 100,000 for the rows of `headline`, 30,000 for others)."""
    runs: int = 3
    """Runs of each row."""
    out: Path | None = None
    """JSON Lines file of the runs; those in it are not made again. Fig. 10 is drawn beside it."""
    quick: bool = False
    """One run of 1,000 requests of the table headline on the smaller cluster."""

    def __post_init__(self) -> None:
        for flag, given, known in (
            ("--tables", self.tables, tuple(TABLES)),
            ("--clusters", self.clusters, tuple(CLUSTERS)),
            ("--loads", self.loads, LOADS),
        ):
            unknown = [one for one in given if one not in known]
            if unknown or not given:
                names = ", ".join(map(str, known))
                raise ValueError(
                    f"{flag} must be among {names}, got {', '.join(map(str, unknown)) or 'none'}"
                )
        if self.runs < 1 or (self.requests is not None and self.requests < 100):
            raise ValueError(
                f"--runs must be at least 1 and --requests at least 100, got {self.runs} and {self.requests}"
            )


def run() -> dict[str, Any]:
    return result(measured_tables(parse(Options, sys.argv[2:]), measure))


def measured_tables(options: Options, run: Run) -> dict[str, list[Series]]:
    """The tables that the options ask for, printed as they come."""
    if options.quick:
        options = replace(options, tables=("headline",), clusters=("gpu",), requests=1000, runs=1)
    kept = KeptRuns(options.out, run)
    tables = {}
    for name in options.tables:
        make_rows, title = TABLES[name]
        rows = [row for row in make_rows() if _is_wanted(name, row, options)]
        if not rows:
            continue
        first_seed = CALIBRATION_SEED if name == "calibration" else 0
        tables[name] = _series(rows, options, kept, first_seed)
        print(f"\n{as_markdown(title, tables[name])}", flush=True)
        if name == "backup":
            for mode, share in variations(tables[name]).items():
                print(f"{mode}: p99.9 varies by {share:.0%} over the loads (backups in the paper: over 36%)")
        elif name == "calibration":
            for cluster, label in nearest_to_the_paper(tables[name]).items():
                print(f"{cluster}: the paper has {PAPER_TAILS[cluster]} medians; nearest is {label}")
    if options.out is not None and "rate" in tables:
        for cluster in options.clusters:
            of_cluster = [series for series in tables["rate"] if series.row.cluster == cluster]
            draw(options.out.with_name(f"{options.out.stem}-{cluster}.png"), of_cluster)
    return tables


def _is_wanted(table: str, row: ServerAndLoad, options: Options) -> bool:
    by_load = table in ("rate", "tenants", "backup")
    return row.cluster in options.clusters and (not by_load or row.load in options.loads)


def _series(rows: Sequence[ServerAndLoad], options: Options, kept: KeptRuns, first_seed: int) -> list[Series]:
    """All rows in turns, as often as is asked for."""
    turns = [
        [kept.measured(row, options.requests or row.requests, seed) for row in rows]
        for seed in range(first_seed, first_seed + options.runs)
    ]
    return [Series(row, runs) for row, *runs in zip(rows, *turns, strict=True)]


def result(tables: dict[str, list[Series]]) -> dict[str, Any]:
    """Holds if ParM reaches the paper's ratio on each cluster and gains more than hedging in every row."""
    found: dict[str, Any] = {
        "value": None, "unit": "gap of p99.9 to median, Equal-Resources / ParM, 12 + 6 workers", "peer": 1.0,
        "ratio": None, "reach": REACH["gpu"], "holds": None,
    }  # fmt: skip
    found["gains"] = {
        f"{name}: {one.label}, {one.mode}": round(one.ratio, 2)
        for name, table in tables.items()
        for one in gains(table)
    }
    headline = tables.get("headline", [])
    of_cluster = {
        series.row.cluster: gain(series, headline) for series in headline if series.row.mode == PARITY
    }
    ratios = {cluster: one.ratio for cluster, one in of_cluster.items() if one is not None}
    if "gpu" not in ratios:
        return found
    shift_ms = max(one.median_shift_ms for one in of_cluster.values() if one is not None)
    failed = sum(run.failed for table in tables.values() for series in table for run in series.runs)
    holds = all(ratio >= REACH[cluster] for cluster, ratio in ratios.items())
    holds = holds and all(beats_hedging(table) for table in tables.values())
    return found | {
        "value": round(ratios["gpu"], 2),
        "ratio": round(ratios["gpu"], 2),
        "holds": holds and shift_ms <= MEDIAN_REACH_MS and not failed,
        "ratios": {cluster: round(ratio, 2) for cluster, ratio in ratios.items()},
        "median_shift_ms": round(shift_ms, 2),
    }
