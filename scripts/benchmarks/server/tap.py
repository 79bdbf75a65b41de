"""`tap-overhead`: what `rrl-tap` adds to the latency of a no-op model at 500 requests/s.

Clients send straight to the server and through the tap, in turns, with the same arrivals in each pair.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from scripts.serving.processes import serving_with_metrics, started

RATE_PER_S = 500
SECONDS = 8
PAIRS = 7
REACH_MS = 0.5


class ClientLatency(NamedTuple):
    """What `rrl-load` reports."""

    p50_ms: float
    p95_ms: float
    failed: int


def run() -> dict[str, Any]:
    with (
        serving_with_metrics("noop", "--intra-op-threads", 1) as (server, metrics_url),
        started(
            "serving_adapter.tap.command_line",
            *("--target", server, "--target-metrics-url", metrics_url, "--listen", ":0", "--metrics-port", 0),
        ) as process,
    ):
        assert process.stdout is not None
        tap = process.stdout.readline().split(" on ")[1].split(",")[0]
        print(f"latency in ms at {RATE_PER_S}/s")
        print(f"{'pair':>4} {'p50 direct':>11} {'tapped':>8} {'p95 direct':>11} {'tapped':>8}")
        pairs = []
        for seed in range(PAIRS):
            direct, tapped = _load(server, seed), _load(tap, seed)
            pairs.append((direct, tapped))
            print(f"{seed:4} {direct.p50_ms:11.2f} {tapped.p50_ms:8.2f}", end=" ")
            print(f"{direct.p95_ms:11.2f} {tapped.p95_ms:8.2f}")
    added_ms = median(tapped.p50_ms - direct.p50_ms for direct, tapped in pairs)
    failed = sum(tapped.failed for _, tapped in pairs)
    return {
        "value": round(added_ms, 3),
        "unit": "ms added at the median",
        "peer": round(median(direct.p50_ms for direct, _ in pairs), 2),
        "ratio": round(median(tapped.p50_ms / direct.p50_ms for direct, tapped in pairs), 3),
        "p95_added_ms": round(median(tapped.p95_ms - direct.p95_ms for direct, tapped in pairs), 3),
        "failed": failed,
        "reach": REACH_MS,
        "holds": added_ms <= REACH_MS and failed == 0,
    }


def _load(address: str, seed: int) -> ClientLatency:
    with tempfile.TemporaryDirectory(prefix="rrl-bench-") as folder:
        sending = ("--rate", RATE_PER_S, "--duration-s", SECONDS, "--seed", seed, "--out", folder)
        with started("serving_adapter.load.command_line", "--target", address, *sending) as client:
            client.communicate()
        report = json.loads((Path(folder) / "load.json").read_text(encoding="utf-8"))
    latency_ms = report["latency_ms"]
    return ClientLatency(latency_ms["p50"], latency_ms["p95"], sum(report["failed"].values()))
