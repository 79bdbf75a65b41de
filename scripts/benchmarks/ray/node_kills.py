"""`ray-node-kills`: a node of a cluster is killed every 10 s for two minutes, under load.

Three nodes of one CPU each have one worker each. The model sleeps, so that a node's capacity is its worker's
and not this machine's. Eight clients ask in a closed loop. Each kill ends all processes of one node at once,
and a fresh node starts in its place. It takes longer than 10 s to serve, so at times the head is left alone.
The capacity of the rest is that of all three before the first kill, in proportion to the nodes that serve.
"""

from __future__ import annotations

import re
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from scripts.benchmarks.ray.nodes import nodes
from scripts.ray_cluster import RayCluster
from scripts.serving.client_log import Requests
from scripts.serving.metrics_page import page
from scripts.serving.processes import serving_with_metrics, started

KILLS, EVERY_S = 12, 10.0
NODES, CLIENTS, SERVICE_MS = 3, 8, 20
PATIENCE_S = 60.0
WITHIN_S, WINDOW_S, REACH = 1.0, 1.5, 0.9
KNOBS = ("--instances", NODES, "--max-batch-size", 1, "--model-option", f"ms={SERVICE_MS}")
WORKERS = re.compile(r'^rrl_node_workers\{.*node="([^"]+)".*\} (\d+)', re.MULTILINE)


class Kill(NamedTuple):
    """One node's end."""

    at: float  # Unix time
    rest: int  # how many others had a worker


def run() -> dict[str, Any]:
    with nodes(NODES, cpus=1) as cluster, tempfile.TemporaryDirectory() as folder:
        engine = ("--engine", "ray", "--address", cluster.address)
        with serving_with_metrics("sleep", *KNOBS, *engine, quiet=True) as (address, metrics_url):
            load = ["--target", address, "--concurrency", CLIENTS, "--duration-s", 0]
            with started("serving_adapter.load.command_line", *load, "--out", folder, "--requests") as client:
                assert client.stdout is not None
                client.stdout.readline()  # it says when it starts sending
                kills = killed(cluster, metrics_url)
        requests = Requests.read(Path(folder))
    answered_at = (requests.at + requests.latency_ms / 1e3)[~requests.failed]

    def per_s(from_at: float, until_at: float) -> float:
        answered = (answered_at >= from_at) & (answered_at < until_at)
        return float(np.count_nonzero(answered) / (until_at - from_at))

    all_per_s = per_s(kills[0].at - EVERY_S / 2, kills[0].at)
    shares = []
    for kill in kills:
        served_per_s = per_s(kill.at + WITHIN_S, kill.at + WITHIN_S + WINDOW_S)
        shares.append(served_per_s / (all_per_s * kill.rest / NODES))
    print(f"{NODES} nodes serve {all_per_s:.0f}/s")
    print(f"{KILLS} kills: {len(requests)} requests, {requests.failures} failed")
    print(
        f"{WITHIN_S:g} s after a kill: {np.median(shares):.2f} of the rest's capacity, at least "
        f"{min(shares):.2f}; slowest request {requests.latency_ms.max():.0f} ms"
    )
    return {
        "value": requests.failures,
        "unit": "failed requests",
        "peer": None,
        "ratio": None,
        "reach": 0,
        "holds": requests.failures == 0 and min(shares) >= REACH,
        "requests": len(requests),
        "least_share_of_capacity": round(min(shares), 3),
        "slowest_request_ms": round(float(requests.latency_ms.max()), 1),
    }


def killed(cluster: RayCluster, metrics_url: str) -> list[Kill]:
    """Ends the node that serves longest, but for the head, and starts another; again and again."""
    end_s = time.monotonic() + PATIENCE_S
    while len(serving_nodes(metrics_url)) < NODES:
        if time.monotonic() > end_s:
            raise RuntimeError(f"not all of {NODES} nodes serve after {PATIENCE_S:g} s")
        time.sleep(0.1)
    kills, starting = [], list[threading.Thread]()
    next_s = time.monotonic() + EVERY_S
    for _ in range(KILLS):
        time.sleep(max(0.0, next_s - time.monotonic()))
        next_s += EVERY_S
        serves = serving_nodes(metrics_url)
        others = [node for node in cluster.nodes[1:] if node.name in serves]
        if not others:
            raise RuntimeError(f"no node but the head serves {EVERY_S:g} s after the last kill")
        kills.append(Kill(time.time(), len(serves) - 1))
        cluster.kill(others[0])
        starting.append(threading.Thread(target=cluster.add_node, kwargs={"cpus": 1}))
        starting[-1].start()
    for each in starting:
        each.join()
    return kills


def serving_nodes(metrics_url: str) -> set[str]:
    """The names of the nodes that have a worker."""
    return {node for node, workers in WORKERS.findall(page(metrics_url)) if int(workers)}
