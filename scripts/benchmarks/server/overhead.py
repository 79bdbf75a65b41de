"""`server-overhead`: a no-op model through queue, batcher and worker, against a bare grpc.aio echo."""

from __future__ import annotations

from statistics import median
from typing import Any

import numpy as np

from scripts.serving.closed_loop import closed_loop
from scripts.serving.processes import infer_request, serving, started

CONCURRENCY = 16
SECONDS = 4.0
ROUNDS = 7
BATCHING = ("--max-batch-size", 16, "--max-queue-delay-us", 500)  # fewer wake-ups of the worker
REACH = 0.7


def run() -> dict[str, Any]:
    request = infer_request("noop", "x", "FP32", [1, 16], np.ones(16, np.float32).tobytes())
    ours, echo = [], []
    with (
        serving("noop", "--intra-op-threads", 1, *BATCHING) as address,
        started("scripts.benchmarks.server.echo_server") as echo_process,
    ):
        assert echo_process.stdout is not None
        echo_address = f"127.0.0.1:{echo_process.stdout.readline().strip()}"
        print(f"requests/s, concurrency {CONCURRENCY}")
        print(f"{'round':>5} {'rrl-serve':>12} {'echo':>12} {'ratio':>7}")
        for i in range(ROUNDS):
            ours.append(closed_loop(address, [request], CONCURRENCY, SECONDS))
            echo.append(closed_loop(echo_address, [request], CONCURRENCY, SECONDS))
            ratio = ours[-1].requests_per_s / echo[-1].requests_per_s
            print(f"{i:5} {ours[-1].requests_per_s:12.0f} {echo[-1].requests_per_s:12.0f} {ratio:7.2f}")
    value, peer = (median(r.requests_per_s for r in results) for results in (ours, echo))
    ratio = median(a.requests_per_s / b.requests_per_s for a, b in zip(ours, echo, strict=True))
    failed = sum(r.failed for r in ours)
    return {
        "value": round(value),
        "unit": "requests/s",
        "peer": round(peer),
        "ratio": round(ratio, 3),
        "reach": REACH,
        "holds": ratio >= REACH and failed == 0,
    }
