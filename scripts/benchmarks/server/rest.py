"""`rest-overhead`: a request over HTTP against one over gRPC, on the no-op model of one server.

One request is always under way, so the time of a request is what is compared, in turns. Tensors travel as
bytes behind the JSON document, as `tritonclient.http` sends them by default, and as JSON numbers.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from statistics import median
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.serving.closed_loop import closed_loop
from scripts.serving.processes import infer_request, serving

SECONDS = 3.0
ROUNDS = 7
REACH = 2.0


def run() -> dict[str, Any]:
    row = np.ones(16, np.float32)
    request = infer_request("noop", "x", "FP32", [1, 16], row.tobytes())
    with serving("noop", "--intra-op-threads", 1) as address:
        url = _url(address)
        print("ms a request, one at a time")
        print(f"{'round':>5} {'gRPC':>8} {'HTTP, bytes':>12} {'HTTP, JSON':>12}")
        rounds = []
        for number in range(ROUNDS):
            by_grpc = closed_loop(address, [request], 1, SECONDS)
            times_ms = (
                1e3 / by_grpc.requests_per_s,
                _over_http(url, *_as_bytes(row)),
                _over_http(url, *_as_json(row)),
            )
            rounds.append(times_ms)
            print(f"{number:5} {times_ms[0]:8.3f} {times_ms[1]:12.3f} {times_ms[2]:12.3f}")
    ratio = median(as_bytes / by_grpc for by_grpc, as_bytes, _ in rounds)
    return {
        "value": round(median(times[1] for times in rounds), 3),
        "unit": "ms a request",
        "peer": round(median(times[0] for times in rounds), 3),
        "ratio": round(ratio, 3),
        "ratio_json": round(median(as_json / by_grpc for by_grpc, _, as_json in rounds), 3),
        "reach": REACH,
        "holds": ratio <= REACH,
    }


def _url(address: str) -> str:
    """Where the server answers over HTTP, as its metadata tell."""
    with grpc.insecure_channel(address) as channel:
        metadata = GRPCInferenceServiceStub(channel).ServerMetadata(pb.ServerMetadataRequest())
    port = next(each[len("http(") : -1] for each in metadata.extensions if each.startswith("http("))
    return f"http://{address.rpartition(':')[0]}:{port}/v2"


def _as_bytes(row: np.ndarray) -> tuple[bytes, dict[str, str]]:
    tensor = {
        "name": "x",
        "shape": [1, 16],
        "datatype": "FP32",
        "parameters": {"binary_data_size": row.nbytes},
    }
    document = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return document + row.tobytes(), {"inference-header-content-length": str(len(document))}


def _as_json(row: np.ndarray) -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "data": row.tolist()}
    return json.dumps({"inputs": [tensor]}).encode(), {}


def _over_http(url: str, body: bytes, headers: dict[str, str]) -> float:
    """ms a request, by a client in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (f"{url}/models/noop/infer", body, headers))


def _run(url: str, body: bytes, headers: dict[str, str]) -> float:
    return asyncio.run(_drive(url, body, headers))


async def _drive(url: str, body: bytes, headers: dict[str, str]) -> float:
    import aiohttp

    count = 0
    async with aiohttp.ClientSession(skip_auto_headers=("accept-encoding",)) as client:
        start = time.perf_counter()
        while time.perf_counter() < start + SECONDS:
            async with client.post(url, data=body, headers=headers) as response:
                response.raise_for_status()
                await response.read()
            count += 1
        return 1e3 * (time.perf_counter() - start) / count
