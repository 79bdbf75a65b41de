"""`ray-units`: MiniLM on units of one, two and three nodes of a Ray cluster, one request at a time.

The real counterpart of SERF's inter-node parallelism (SC 2016, Fig. 3). All nodes share this machine's
processors, so nothing is done any faster. What is seen is what a unit costs: in each layer its members wait
for each other twice, and what they send goes through the network's code. The servers are asked in turns, and
must answer alike.

    scripts/bench ray-units
"""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.benchmarks.ray.nodes import nodes
from scripts.serving.closed_loop import closed_loop
from scripts.serving.minilm_requests import grpc_requests
from scripts.serving.processes import serving

NODES_PER_UNIT = (1, 2, 3)
KNOBS = ("--instances", 1, "--intra-op-threads", 1, "--max-batch-size", 1)
SECONDS, ROUNDS = 8.0, 5
COMPARED = 8  # requests
SAME = 1e-4  # of the largest value of an answer: sums of parts are rounded otherwise


def run() -> dict[str, Any]:
    with ExitStack() as stack:
        cluster = stack.enter_context(nodes(len(NODES_PER_UNIT), cpus=len(NODES_PER_UNIT)))
        on_it = (*KNOBS, "--engine", "ray", "--address", cluster.address)
        servers = {
            size: stack.enter_context(serving("minilm", *on_it, "--nodes-per-unit", size))
            for size in NODES_PER_UNIT
        }
        p50s_ms: dict[int, list[float]] = {size: [] for size in servers}
        failed = 0
        for turn in range(ROUNDS):
            for size, server in servers.items():
                figures = closed_loop(server, grpc_requests(), 1, SECONDS)
                p50s_ms[size].append(figures.p50_ms)
                failed += figures.failed
            print(f"{turn:3}  " + "".join(f"{p50s_ms[size][-1]:9.2f} ms" for size in servers), flush=True)
        answers = {size: answered(server) for size, server in servers.items()}
    apart = {size: difference(answers[size], answers[1]) for size in NODES_PER_UNIT}
    p50_ms = {size: median(each) for size, each in p50s_ms.items()}
    for size in NODES_PER_UNIT:
        print(f"{size} nodes a unit: p50 {p50_ms[size]:.2f} ms, answers {apart[size]:.1e} apart")
    return {
        "value": round(p50_ms[2], 2),
        "unit": "ms, p50 on a unit of two nodes",
        "peer": round(p50_ms[1], 2),
        "ratio": round(p50_ms[2] / p50_ms[1], 3),
        "reach": f"answers at most {SAME:g} apart, 0 failed",
        "holds": failed == 0 and max(apart.values()) <= SAME,
        "p50_ms": {str(size): round(each, 2) for size, each in p50_ms.items()},
        "apart": max(apart.values()),
        "failed": failed,
    }


def answered(server: str) -> list[np.ndarray]:
    """The first output for each of some requests."""
    with grpc.insecure_channel(server) as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        answers = [infer(pb.ModelInferRequest.FromString(each)) for each in grpc_requests(COMPARED)]
    return [np.frombuffer(each.raw_output_contents[0], np.float32) for each in answers]


def difference(answers: list[np.ndarray], of_one: list[np.ndarray]) -> float:
    """The largest of any value, as a share of the largest value of an answer."""
    pairs = zip(answers, of_one, strict=True)
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
