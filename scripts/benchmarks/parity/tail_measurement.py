"""One run of `parity-tail`, and the file that keeps runs so that a benchmark goes on where it was stopped."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import yaml

from scripts.benchmarks.parity.tail_rows import BATCH_MS, ITEM_MS, ServerAndLoad
from scripts.kept_rows import KeptRows
from scripts.serving.metrics_page import summed
from scripts.serving.processes import serving_with_metrics, started

MOST_LATE_MS = 5.0
"""A run whose client's own lag was longer (p99) shared the machine with something else. It is made again."""
ATTEMPTS = 3

logger = logging.getLogger(__name__)


class Measured(NamedTuple):
    """One run, as its clients saw it."""

    p50_ms: float
    p99_ms: float
    p99_9_ms: float
    failed: int
    reconstructed: float  # share of the requests
    late_ms: float  # the client's own lag, p99

    @property
    def is_disturbed(self) -> bool:
        return self.late_ms > MOST_LATE_MS

    @property
    def gap_ms(self) -> float:
        return self.p99_9_ms - self.p50_ms


Run = Callable[[ServerAndLoad, int, int], Measured]
"""Measures a row with so many requests and a seed."""


class KeptRuns:
    """Runs by row, requests and seed, a line each in a JSON Lines file if there is one.

    What the file has is not run again, but for what was disturbed.
    """

    def __init__(self, path: Path | None, run: Run) -> None:
        self._rows, self._run = KeptRows(path, ("key",)), run

    def measured(self, row: ServerAndLoad, requests: int, seed: int) -> Measured:
        key = {"key": json.dumps({"requests": requests, "seed": seed} | row.settings(), sort_keys=True)}
        if key not in self._rows or Measured(**self._rows[key]["measured"]).is_disturbed:
            measured = self._undisturbed(row, requests, seed)
            names = {"label": row.label, "mode": row.shown_mode}
            self._rows.add(names | key | {"measured": measured._asdict()})
        return Measured(**self._rows[key]["measured"])

    def _undisturbed(self, row: ServerAndLoad, requests: int, seed: int) -> Measured:
        """RuntimeError where something else disturbs each attempt."""
        for _ in range(ATTEMPTS):
            measured = self._run(row, requests, seed)
            if not measured.is_disturbed:
                return measured
            logger.warning("%s: made again, requests were sent %.1f ms late", row.label, measured.late_ms)
        raise RuntimeError(
            f"the client sent 1 % of the requests more than {MOST_LATE_MS:g} ms late in {ATTEMPTS} runs; "
            "let nothing else run on this machine, and give the same command again"
        )


def measure(row: ServerAndLoad, requests: int, seed: int) -> Measured:
    """A fresh server and a load generator, both ended afterwards."""
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
            reconstructed = summed(metrics_url, "rrl_reconstructed_count")
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
        "backup.ms": BATCH_MS / row.backup_speed_up, "backup.per_item_ms": ITEM_MS / row.backup_speed_up,
    }  # fmt: skip
    times = [part for key, value in times_ms.items() for part in ("--model-option", f"{key}={value}")]
    knobs = ("--instances", row.workers, "--intra-op-threads", 1, "--max-batch-size", row.max_batch_size)
    models = ("--parity-model", "sleep", "--backup-model", "sleep")
    return *models, *times, *knobs, "--resilience", row.mode, "--k", row.k, *row.flags, "--faults", faults
