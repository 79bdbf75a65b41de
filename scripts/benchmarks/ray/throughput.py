"""`ray-throughput`: MiniLM on two local nodes of a Ray cluster, against as many workers without one.

Both servers stand in one run, and are measured in turns: requests/s in a closed loop with batches of 8, and
p95 latency under Poisson arrivals of 40/s. Both have two workers of one thread; on the cluster one on each
node. Two nodes of one machine share its processors, so this measures what the way to a node costs.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from scripts.benchmarks.ray.nodes import nodes
from scripts.benchmarks.server.throughput import RATE_PER_S, p95_ms_at_poisson
from scripts.serving.closed_loop import closed_loop
from scripts.serving.minilm_requests import grpc_requests
from scripts.serving.processes import serving

OUTSTANDING = 32
SECONDS = 8.0
ROUNDS = 5
KNOBS = ("--instances", 2, "--intra-op-threads", 1, "--max-batch-size", 8)
REACH, REACH_MS = 0.9, 3.0


def run() -> dict[str, Any]:
    with (
        nodes() as cluster,
        serving("minilm", *KNOBS) as local,
        serving("minilm", *KNOBS, "--engine", "ray", "--address", cluster.address) as on_nodes,
    ):
        servers = {"local": local, "cluster": on_nodes}
        rates: dict[str, list[float]] = {name: [] for name in servers}
        p95s_ms: dict[str, list[float]] = {name: [] for name in servers}
        print(f"{'round':>5} {'local':>8} {'cluster':>8}   requests/s")
        for i in range(ROUNDS):
            for name, server in servers.items():
                figures = closed_loop(server, grpc_requests(), OUTSTANDING, SECONDS)
                rates[name].append(figures.requests_per_s)
            print(f"{i:5} {rates['local'][-1]:8.0f} {rates['cluster'][-1]:8.0f}")
        for seed in range(ROUNDS):
            for name, server in servers.items():
                p95s_ms[name].append(p95_ms_at_poisson(server, seed))
    ratio = median(b / a for a, b in zip(rates["local"], rates["cluster"], strict=True))
    later_ms = median(b - a for a, b in zip(p95s_ms["local"], p95s_ms["cluster"], strict=True))
    local_ms, cluster_ms = (median(p95s_ms[name]) for name in servers)
    print(f"requests/s on the cluster, of those here: {ratio:.2f}")
    print(
        f"p95 at Poisson {RATE_PER_S}/s: here {local_ms:.1f} ms, on the cluster {cluster_ms:.1f} ms, "
        f"{later_ms:.1f} ms later in the median round"
    )
    return {
        "value": round(median(rates["cluster"]), 1),
        "unit": "requests/s",
        "peer": round(median(rates["local"]), 1),
        "ratio": round(ratio, 3),
        "reach": REACH,
        "holds": ratio >= REACH and later_ms <= REACH_MS,
        "p95_ms": round(cluster_ms, 1),
        "local_p95_ms": round(local_ms, 1),
        "later_ms": round(later_ms, 1),
    }
