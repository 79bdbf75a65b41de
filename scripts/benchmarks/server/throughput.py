"""`server-throughput`: MiniLM, 32 tokens a request, in the best configuration of a small grid.

Every peer runs the same module in the same run, in the best configuration of its own grid:

- bare processes, which are the physical limit, in throughput;
- LitServe in throughput, in a closed loop with the same number of requests outstanding;
- LitServe in p95 latency under Poisson arrivals of 40/s. Both servers then have two workers of one thread,
  batches of at most 8 and no delay.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scripts.benchmarks.server.bare_processes import items_per_s
from scripts.benchmarks.server.http_client import closed_loop_by_http, poisson_latencies_ms
from scripts.serving.closed_loop import closed_loop
from scripts.serving.minilm_requests import grpc_requests
from scripts.serving.processes import serving, started
from serving_adapter.target import OpenInferenceTarget

OUTSTANDING = 48
SECONDS = 5.0
ROUNDS = 3
RATE_PER_S = 40
POISSON_SECONDS = 30.0
BATCH_SIZES = (8, 16, 32)
TAIL_BATCH_SIZE = 8
DELAYS_US = (0, 5000)
LITSERVE = [(2, 1, b, 1e-6 * d) for b in BATCH_SIZES for d in DELAYS_US]  # workers, threads, batch size, s
REACH = 0.85


def run() -> dict[str, Any]:
    configurations = [
        {"instances": 2, "intra_op_threads": 1, "max_batch_size": b, "max_queue_delay_us": d}
        for b in BATCH_SIZES
        for d in DELAYS_US
    ]
    with serving("minilm") as address:
        target = OpenInferenceTarget(address)
        target.connect()
        best = max(configurations, key=lambda c: _ours(target, address, c, 3.0))
        limit_batch = max(BATCH_SIZES, key=lambda b: items_per_s(2, 1, b, 3.0))
        lit = max(LITSERVE, key=lambda c: _litserve(c, 3.0))
        print(f"best of the grids: ours {best}")
        print(
            f"  bare processes 2 x 1 thread, batch {limit_batch}; LitServe (workers, threads, batch, s) {lit}"
        )
        ours, limit, litserve = [], [], []
        print(f"{'round':>5} {'rrl-serve':>10} {'limit':>8} {'LitServe':>9}   requests/s")
        for i in range(ROUNDS):
            ours.append(_ours(target, address, best, SECONDS))
            limit.append(items_per_s(2, 1, limit_batch, SECONDS))
            litserve.append(_litserve(lit, SECONDS))
            print(f"{i:5} {ours[-1]:10.0f} {limit[-1]:8.0f} {litserve[-1]:9.0f}")
        p95_ms, litserve_p95_ms = _tails(target, address)
        target.close()
    of_limit = median(a / b for a, b in zip(ours, limit, strict=True))
    print(f"of the limit: {of_limit:.2f}; of LitServe: {median(ours) / median(litserve):.2f}")
    print(f"p95 at Poisson {RATE_PER_S}/s: ours {p95_ms:.1f} ms, LitServe {litserve_p95_ms:.1f} ms")
    return {
        "value": round(median(ours), 1),
        "unit": "requests/s",
        "peer": round(median(limit), 1),
        "ratio": round(of_limit, 3),
        "reach": REACH,
        "holds": of_limit >= REACH and p95_ms < litserve_p95_ms,
        "litserve_requests_per_s": round(median(litserve), 1),
        "p95_ms": round(p95_ms, 1),
        "litserve_p95_ms": round(litserve_p95_ms, 1),
    }


def _ours(target: OpenInferenceTarget, address: str, configuration: dict[str, int], seconds: float) -> float:
    target.apply(configuration)
    return closed_loop(address, grpc_requests(), OUTSTANDING, seconds).requests_per_s


def _litserve(configuration: tuple[int, int, int, float], seconds: float) -> float:
    with _litserve_on(configuration) as port:
        return closed_loop_by_http(port, OUTSTANDING, seconds).requests_per_s


@contextlib.contextmanager
def _litserve_on(configuration: tuple[int, int, int, float]) -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    # LitServe prints a traceback for every request that its shutdown cuts off.
    with started(
        "scripts.benchmarks.server.litserve_minilm", port, *configuration, patience_s=3.0, quiet=True
    ):
        end_s = time.monotonic() + 60
        while True:
            try:
                closed_loop_by_http(port, 2, 1.0)
                break
            except Exception:
                if time.monotonic() > end_s:
                    raise
        yield port


def _tails(target: OpenInferenceTarget, address: str) -> tuple[float, float]:
    """p95 in ms under Poisson arrivals, medians over rounds in turns; both servers in one configuration."""
    target.apply(
        {"instances": 2, "intra_op_threads": 1, "max_batch_size": TAIL_BATCH_SIZE, "max_queue_delay_us": 0}
    )
    ours, theirs = [], []
    for seed in range(ROUNDS):
        ours.append(p95_ms_at_poisson(address, seed))
        with _litserve_on((2, 1, TAIL_BATCH_SIZE, 0.0)) as port:
            latencies_ms = poisson_latencies_ms(port, RATE_PER_S, POISSON_SECONDS, seed)
            theirs.append(float(np.percentile(latencies_ms, 95)))
    return median(ours), median(theirs)


def p95_ms_at_poisson(address: str, seed: int) -> float:
    """Of Poisson arrivals, `RATE_PER_S` for `POISSON_SECONDS`."""
    with tempfile.TemporaryDirectory() as out:
        options = ("--target", address, "--rate", RATE_PER_S, "--duration-s", POISSON_SECONDS)
        with started("serving_adapter.load.command_line", *options, "--seed", seed, "--out", out) as load:
            load.wait(POISSON_SECONDS + 60)
        report = json.loads((Path(out) / "load.json").read_text())
    return float(report["latency_ms"]["p95"])
