"""`parity-tail`: the tail under slow workers, ParM beside modes of equal cost (ParM's Figs. 10 to 14).

12 workers of the deployed model and 12/k redundant ones, each a process of its own, under Poisson load. The
model only waits (50 ms for one item, 17 ms for each further one), as if each worker's accelerator were
elsewhere, so that two cores bear 18 workers. It answers its input, a linear function, so it is its own
parity model; what a real one's accuracy is, `parity-accuracy` tells.

The paper's background is four data transfers at a time between two random instances each, of 128 to 256 MB
(section 6.1). Here four episodes at a time, each of 1 to 2 s, slow two random workers each. Every batch of
theirs is delayed by a log-normal time with a sigma of 1. Its median is chosen so that Equal-Resources has
about the paper's ratio of p99.9 to median (here 2.4, there 2.6 to 3.0). A table of its own shows how ParM's
gain depends on the kind of delay.

Every row is the median (least - greatest) of its runs; all rows of a table are run in turns.

    scripts/bench parity-tail [--tables rate k batch imbalance delay mode] [--loads 0.4 0.5] [--paper]
                              [--requests N] [--runs N] [--out FOLDER] [--quick]
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from scripts.benchmarks.parity.tail_report import Measured, Series, as_markdown, save_tables
from scripts.serving.processes import serving_with_metrics, started
from serving_adapter.options import parse

WORKERS = 12
BATCH_MS, ITEM_MS = 33.0, 17.0
CAPACITY_PER_S = 1e3 * WORKERS / (BATCH_MS + ITEM_MS)  # in batches of one
LOADS = (0.4, 0.5, 0.6, 0.7, 0.8)
BACKUP_SPEED_UP = 1.4  # of MobileNet-V2 on the paper's CPU cluster (section 6.2.6)
LOG_NORMAL = {"median": 5.5, "sigma": 1.0}
MODES = ("equal-resources", "parity")
PAPER = ("--late-percentile", 0, "--overflow", 0)  # ParM as the paper has it
REACH, MEDIAN_REACH_MS = 2.6, 0.5


@dataclass(frozen=True)
class Options:
    """Latencies of the resilience modes while workers are slowed down."""

    tables: tuple[str, ...] = ("rate", "k", "batch", "imbalance", "delay", "mode")
    """Tables to make."""
    loads: tuple[float, ...] = LOADS
    """Rows of the table `rate`, by their share of the deployed workers' capacity."""
    paper: bool = False
    """Adds to the table `rate` what ParM is without this server's additions."""
    requests: int = 100_000
    """Requests of a run of the table `rate`; the others have a fifth."""
    runs: int = 3
    """Runs of each row."""
    out: Path | None = None
    """Folder for every run as CSV, and the picture."""
    quick: bool = False
    """One run of 2,000 requests of the table `rate`."""

    def __post_init__(self) -> None:
        unknown = set(self.tables) - set(TABLES)
        if unknown:
            raise ValueError(f"--tables must be of {', '.join(TABLES)}, got {', '.join(sorted(unknown))}")
        if not set(self.loads) <= set(LOADS):
            raise ValueError(f"--loads must be of {LOADS}, got {self.loads}")


@dataclass(frozen=True)
class ServerAndLoad:
    """One server and its load."""

    label: str
    mode: str
    k: int = 2
    load: float = 0.7  # of the capacity of the deployed workers
    max_batch_size: int = 1
    flags: tuple[object, ...] = ()
    faults: tuple[dict[str, Any], ...] = field(default_factory=lambda: (shuffles(4),))

    @property
    def rate_per_s(self) -> float:
        speed_up = self.max_batch_size * (BATCH_MS + ITEM_MS) / (BATCH_MS + self.max_batch_size * ITEM_MS)
        return self.load * CAPACITY_PER_S * speed_up


def shuffles(count: int, delay: dict[str, float] | list[float] = LOG_NORMAL) -> dict[str, Any]:
    return {"kind": "slow", "always": count, "workers": 2, "for_s": [1.0, 2.0], "delay_ms": delay}


def stalls() -> dict[str, Any]:
    return {"kind": "stall", "mean_gap_s": 1.0, "for_s": [0.1, 0.3]}


def tenants() -> dict[str, Any]:
    """Light inference beside one ninth of the instances (Fig. 13)."""
    return {
        "kind": "slow", "at_s": [0], "workers": 2, "for_s": 86_000, "delay_ms": [0, BATCH_MS + ITEM_MS]
    }  # fmt: skip


def _rates() -> list[ServerAndLoad]:
    return [
        row
        for load in LOADS
        for row in (
            *(ServerAndLoad(f"{load:.0%}", mode, load=load) for mode in MODES),
            ServerAndLoad(f"{load:.0%}, paper's", "parity", load=load, flags=PAPER),
        )
    ]


def _ks() -> list[ServerAndLoad]:
    return [
        ServerAndLoad("k = 2", "equal-resources"),
        *(ServerAndLoad(f"k = {k}", "parity", k=k) for k in (2, 3, 4)),
    ]


def _batches() -> list[ServerAndLoad]:
    return [
        ServerAndLoad(
            f"batch {size}", mode, max_batch_size=size, flags=("--max-queue-delay-us", 2000 * (size > 1))
        )
        for size in (1, 2, 4)
        for mode in MODES
    ]


def _imbalances() -> list[ServerAndLoad]:
    rows = [
        ServerAndLoad(f"{count} shuffles", mode, faults=(shuffles(count),))
        for count in (2, 3, 4, 5)
        for mode in MODES
    ]
    return rows + [ServerAndLoad("light tenants", mode, faults=(tenants(),)) for mode in MODES]


def _delays() -> list[ServerAndLoad]:
    kinds: dict[str, dict[str, Any]] = {
        "uniform 0-75": shuffles(4, [0, 75]),
        "exponential 10": shuffles(4, {"mean": 10.0}),
        "log-normal 0.5": shuffles(4, {"median": 12.0, "sigma": 0.5}),
        "log-normal 1.5": shuffles(4, {"median": 1.0, "sigma": 1.5}),
        "stalls": stalls(),
        "none": {"kind": "slow", "at_s": [86_000], "for_s": 1, "delay_ms": 0},
    }
    return [ServerAndLoad(label, mode, faults=(fault,)) for label, fault in kinds.items() for mode in MODES]


def _modes() -> list[ServerAndLoad]:
    """Modes of the same cost, except for the first and the last."""
    return [
        ServerAndLoad("no redundancy", "none", load=0.6),
        ServerAndLoad("Equal-Resources", "equal-resources", load=0.6),
        ServerAndLoad("ParM, paper's", "parity", load=0.6, flags=PAPER),
        ServerAndLoad("ParM, eager", "parity", load=0.6, flags=("--late-percentile", 0)),
        ServerAndLoad("ParM, late: p50", "parity", load=0.6, flags=("--late-percentile", 50)),
        ServerAndLoad("ParM, late: p95", "parity", load=0.6),
        ServerAndLoad("hedging, p95", "hedging", load=0.6),
        ServerAndLoad("hedging, p80", "hedging", load=0.6, flags=("--late-percentile", 80)),
        ServerAndLoad("hedging, p50", "hedging", load=0.6, flags=("--late-percentile", 50)),
        ServerAndLoad("backup 1.4x faster", "approximate-backup", load=0.6),
        ServerAndLoad("replication", "replication", load=0.6),
        ServerAndLoad("replication, 24", "replication", load=0.6, flags=("--redundant-instances", WORKERS)),
    ]


TABLES = {
    "rate": (_rates, "Load, k = 2 (Fig. 10)"),
    "k": (_ks, "k at 70% load (Fig. 11)"),
    "batch": (_batches, "Batches at 70% load (section 6.2.3)"),
    "imbalance": (_imbalances, "Imbalance at 70% load (Figs. 12 and 13)"),
    "delay": (_delays, "Kinds of slow-down at 70% load (not in the paper)"),
    "mode": (_modes, "Modes at 60% load (Fig. 14, and hedging)"),
}


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    if options.quick:
        options = replace(options, tables=("rate",), requests=2000, runs=1)
    tables: dict[str, tuple[str, list[Series]]] = {}
    for name in options.tables:
        make_rows, title = TABLES[name]
        rows = [row for row in make_rows() if name != "rate" or _is_wanted(row, options)]
        requests = options.requests if name == "rate" else options.requests // 5
        title = f"{title}; {requests:,} requests, {options.runs} runs"
        tables[name] = title, _series(rows, requests, options.runs)
        print(f"\n{as_markdown(title, tables[name][1])}", flush=True)
        if options.out is not None:
            save_tables(options.out, tables)
    return _result({name: series for name, (_, series) in tables.items()})


def _is_wanted(row: ServerAndLoad, options: Options) -> bool:
    return row.load in options.loads and (options.paper or row.flags != PAPER)


def _series(rows: Sequence[ServerAndLoad], requests: int, runs: int) -> list[Series]:
    """All rows in turns, `runs` times."""
    series = [Series(row.label, row.mode, row.rate_per_s, []) for row in rows]
    for seed in range(runs):
        for row, results in zip(rows, series, strict=True):
            results.runs.append(_measured(row, requests, seed))
    return series


def _measured(row: ServerAndLoad, requests: int, seed: int) -> Measured:
    with tempfile.TemporaryDirectory() as folder:
        faults = Path(folder) / "faults.yaml"
        faults.write_text(yaml.safe_dump({"seed": seed, "faults": list(row.faults)}))
        with serving_with_metrics("sleep", *_command(row, faults), quiet=True) as (address, metrics_url):
            load = (
                "--target", address, "--rate", row.rate_per_s, "--duration-s", requests / row.rate_per_s,
                "--seed", seed, "--out", folder,
            )  # fmt: skip
            with started("serving_adapter.load.command_line", *load) as generator:
                generator.communicate()
            report = json.loads((Path(folder) / "load.json").read_text())
            reconstructed = _metric(metrics_url, "rrl_reconstructed_count")
    latency_ms = report["latency_ms"]
    return Measured(
        latency_ms["p50"],
        latency_ms["p99"],
        latency_ms["p99_9"],
        sum(report["failed"].values()),
        reconstructed / report["sent"],
        report["send_lag_p99_ms"],
    )


def _command(row: ServerAndLoad, faults: Path) -> tuple[object, ...]:
    """`rrl-serve`'s arguments behind the model."""
    times_ms = {
        "sleep.ms": BATCH_MS, "sleep.per_item_ms": ITEM_MS,
        "backup.ms": BATCH_MS / BACKUP_SPEED_UP, "backup.per_item_ms": ITEM_MS / BACKUP_SPEED_UP,
    }  # fmt: skip
    times = [part for key, value in times_ms.items() for part in ("--model-option", f"{key}={value}")]
    knobs = ("--instances", WORKERS, "--intra-op-threads", 1, "--max-batch-size", row.max_batch_size)
    models = ("--parity-model", "sleep", "--backup-model", "sleep")
    return *models, *times, *knobs, "--resilience", row.mode, "--k", row.k, *row.flags, "--faults", faults


def _metric(url: str, name: str) -> float:
    page = urllib.request.urlopen(url, timeout=10).read().decode()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name + "{"))


def _result(tables: dict[str, list[Series]]) -> dict[str, Any]:
    """The least ratio of the gaps over the loads of the table `rate`."""
    result: dict[str, Any] = {
        "value": None, "unit": "gap of p99.9 to median, Equal-Resources / ParM", "peer": 1.0, "ratio": None,
        "reach": REACH, "holds": None,
    }  # fmt: skip
    if "rate" not in tables:
        return result
    by_row = {(row.label, row.mode): row for row in tables["rate"]}
    ratios, shifts_ms = {}, {}
    for (label, mode), row in by_row.items():
        if mode == "parity":
            baseline = by_row[label.partition(",")[0], "equal-resources"]
            ratios[label] = baseline.median("gap_ms") / row.median("gap_ms")
            shifts_ms[label] = row.median("p50_ms") - baseline.median("p50_ms")
    for label, ratio in ratios.items():
        print(f"{label:15} gap of Equal-Resources / ParM's {ratio:5.2f}, median {shifts_ms[label]:+5.2f} ms")
    own = [label for label in ratios if "," not in label]
    value, shift_ms = min(ratios[label] for label in own), max(shifts_ms[label] for label in own)
    failed = sum(run.failed for row in tables["rate"] for run in row.runs)
    return result | {
        "value": round(value, 2),
        "ratio": round(value, 2),
        "holds": value >= REACH and shift_ms <= MEDIAN_REACH_MS and not failed,
        "ratios": {label: round(ratio, 2) for label, ratio in ratios.items()},
        "median_shift_ms": round(shift_ms, 2),
    }
