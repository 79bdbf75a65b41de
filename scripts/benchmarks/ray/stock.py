"""`ray-stock`: MiniLM on two nodes of a cluster, by `rrl-serve` and by a stock application of Ray Serve.

Both have two workers of one thread and the same module. The application is measured with every batch size
and wait of a small grid, and with several numbers of clients in a closed loop. It is judged by its most
requests/s. Its proxy spreads them over both nodes. Our server has batches of at most 8, and as many clients;
its p95 latency may not be above the application's. Both are measured in turns, and asked as their users ask
them: ours by gRPC, the other by HTTP.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

from scripts.benchmarks.ray.nodes import nodes
from scripts.benchmarks.server.http_client import closed_loop_by_http
from scripts.ray_cluster import free_ports
from scripts.serving.closed_loop import ClosedLoopFigures, closed_loop
from scripts.serving.minilm_requests import grpc_requests
from scripts.serving.processes import serving
from serving_adapter.target.ray_serve.dashboard import Dashboard

BATCH_SIZES, WAITS_S = (1, 4, 8, 16), (0.0, 0.005, 0.02)
CLIENTS = (8, 16, 32, 64)
SWEEP_SECONDS, SECONDS, ROUNDS = 3.0, 8.0, 5
PATIENCE_S, PUT_S = 180.0, 60.0
# Else the proxy of the head asks the head's own replica alone.
SPREAD = {"RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0"}
KNOBS = ("--instances", 2, "--intra-op-threads", 1, "--max-batch-size", 8)
REACH = 2.0


def run() -> dict[str, Any]:
    with (
        nodes(dashboard=True, settings=SPREAD) as cluster,
        serving("minilm", *KNOBS, "--engine", "ray", "--address", cluster.address) as address,
        StockMiniLM.on(cluster.dashboard) as stock,
    ):
        found = {}
        for size, wait_s in itertools.product(BATCH_SIZES, WAITS_S):
            stock.set(size, wait_s)
            for clients in CLIENTS:
                figures = closed_loop_by_http(stock.port, clients, SWEEP_SECONDS)
                found[size, wait_s, clients] = figures.requests_per_s
        size, wait_s, clients = max(found, key=found.__getitem__)
        stock.set(size, wait_s)
        print(
            f"best of the application: batches of {size}, {1e3 * wait_s:g} ms of waiting, {clients} clients"
        )
        ours, theirs = list[ClosedLoopFigures](), list[ClosedLoopFigures]()
        print(f"{'round':>5} {'rrl-serve':>10} {'Ray Serve':>10}   requests/s")
        for i in range(ROUNDS):
            ours.append(closed_loop(address, grpc_requests(), clients, SECONDS))
            theirs.append(closed_loop_by_http(stock.port, clients, SECONDS))
            print(f"{i:5} {ours[-1].requests_per_s:10.0f} {theirs[-1].requests_per_s:10.0f}")
    ratio = median(a.requests_per_s / b.requests_per_s for a, b in zip(ours, theirs, strict=True))
    p95_ms, stock_p95_ms = (median(each.p95_ms for each in some) for some in (ours, theirs))
    print(f"requests/s, of those of the application: {ratio:.2f}")
    print(f"p95: {p95_ms:.0f} ms, of the application {stock_p95_ms:.0f} ms")
    return {
        "value": round(median(each.requests_per_s for each in ours), 1),
        "unit": "requests/s",
        "peer": round(median(each.requests_per_s for each in theirs), 1),
        "ratio": round(ratio, 3),
        "reach": REACH,
        "holds": ratio >= REACH and p95_ms <= stock_p95_ms,
        "failed_requests": sum(each.failed for each in ours),
        "p95_ms": round(p95_ms, 1),
        "stock_p95_ms": round(stock_p95_ms, 1),
    }


class StockMiniLM:
    """The application on a cluster that has its dashboard."""

    def __init__(self, dashboard: Dashboard, port: int) -> None:
        self._dashboard, self.port = dashboard, port

    @classmethod
    @contextlib.contextmanager
    def on(cls, dashboard: str) -> Iterator[StockMiniLM]:
        """Deployed, and taken away at the end."""
        (port,) = free_ports(1)
        stock = cls(Dashboard(dashboard, PUT_S, Counter()), port)
        stock.set(1, 0.0)
        try:
            yield stock
        finally:
            stock._put([])

    def set(self, max_batch_size: int, batch_wait_timeout_s: float) -> None:
        """Returns when replicas of this configuration serve."""
        knobs = {"max_batch_size": max_batch_size, "batch_wait_timeout_s": batch_wait_timeout_s}
        deployment = {"name": "MiniLMDeployment", "num_replicas": 2, "user_config": knobs}
        application = {
            "name": "minilm",
            "route_prefix": "/predict",
            "import_path": "scripts.benchmarks.ray.stock_minilm:application",
            "deployments": [deployment],
        }
        self._put([application])
        end_s = time.monotonic() + PATIENCE_S
        while not self._serves():
            if time.monotonic() > end_s:
                raise RuntimeError(f"the application does not serve: {self._dashboard.applications()}")
            time.sleep(0.1)

    def _put(self, applications: list[dict[str, Any]]) -> None:
        self._dashboard.put_applications(
            {
                "proxy_location": "HeadOnly",
                "http_options": {"host": "127.0.0.1", "port": self.port},
                "applications": applications,
            }
        )

    def _serves(self) -> bool:
        told = self._dashboard.applications()["applications"].get("minilm", {})
        if told.get("status") != "RUNNING":
            return False
        with contextlib.suppress(Exception):  # whatever the client says while the proxy does not know it
            closed_loop_by_http(self.port, 2, 0.5)
            return True
        return False
