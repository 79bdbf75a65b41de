"""`tuner-overhead`: what `rrl-tune` itself uses of the machine while it tunes.

A light server (sleep, 20 requests/s) is tuned in intervals of 5 s. The processor time of the whole
`rrl-tune` process, its training thread included, is read at the first and at the last decision.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from scripts.serving.processes import serving, started, tune_command

INTERVALS = 24
REACH_SHARE = 0.03
REACH_DECISION_MS = 50.0


def run() -> dict[str, Any]:
    with (
        serving("sleep", "--model-option", "ms=20") as address,
        started("serving_adapter.load.command_line", "--target", address, "--rate", 20, "--duration-s", 0),
        tempfile.TemporaryDirectory() as out,
    ):
        command = tune_command("--target", address, "--out", out, "--intervals", INTERVALS)
        tuner = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        journal = Path(out) / "journal.jsonl"
        used = [cpu_at_record(tuner, journal, count) for count in (2, INTERVALS)]
        tuner.wait(120)
        records = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
    (first_s, first_cpu_s), (last_s, last_cpu_s) = used
    share = (last_cpu_s - first_cpu_s) / (last_s - first_s)
    decisions_ms = [r["decision_ms"] for r in records if r.get("decision_ms") is not None]
    slowest_ms = float(np.max(decisions_ms))
    print(f"{share:.2%} of one core over {last_s - first_s:.0f} s")
    print(f"decisions: median {np.median(decisions_ms):.2f} ms, slowest {slowest_ms:.2f} ms")
    return {
        "value": round(100 * share, 2),
        "unit": "% of one core",
        "peer": None,
        "ratio": None,
        "reach": 100 * REACH_SHARE,
        "holds": share < REACH_SHARE and slowest_ms < REACH_DECISION_MS,
        "slowest_decision_ms": round(slowest_ms, 2),
    }


def cpu_at_record(tuner: subprocess.Popen[bytes], journal: Path, count: int) -> tuple[float, float]:
    """Wall and processor time of the tuner when its journal has `count` intervals."""
    while not journal.exists() or len(journal.read_text().splitlines()) <= count:
        if tuner.poll() is not None:
            raise RuntimeError("rrl-tune ended before its time")
        time.sleep(0.05)
    times = psutil.Process(tuner.pid).cpu_times()
    return time.perf_counter(), times.user + times.system
