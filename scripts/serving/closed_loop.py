"""A closed-loop gRPC client in a process of its own: `concurrency` requests are always under way."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from typing import NamedTuple

import numpy as np

METHOD = "/inference.GRPCInferenceService/ModelInfer"


class ClosedLoopFigures(NamedTuple):
    """What the clients of one closed loop saw."""

    requests_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    failed: int

    @classmethod
    def of(cls, latencies_s: list[float], elapsed_s: float, failed: int) -> ClosedLoopFigures:
        quantiles_s = np.percentile(latencies_s, [50, 95, 99]) if latencies_s else np.full(3, np.nan)
        p50_ms, p95_ms, p99_ms = (1e3 * quantiles_s).tolist()
        return cls(len(latencies_s) / elapsed_s, p50_ms, p95_ms, p99_ms, failed)


def closed_loop(address: str, requests: list[bytes], concurrency: int, seconds: float) -> ClosedLoopFigures:
    """Sends the serialised ModelInfer requests round-robin for `seconds`; a fresh process does it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (address, requests, concurrency, seconds))


def _run(address: str, requests: list[bytes], concurrency: int, seconds: float) -> ClosedLoopFigures:
    return asyncio.run(_drive(address, requests, concurrency, seconds))


async def _drive(address: str, requests: list[bytes], concurrency: int, seconds: float) -> ClosedLoopFigures:
    import grpc

    latencies_s: list[float] = []
    failed = 0
    async with grpc.aio.insecure_channel(address) as channel:
        infer = channel.unary_unary(METHOD)
        await infer(requests[0])
        end = time.perf_counter() + seconds

        async def client(first: int) -> None:
            nonlocal failed
            turn = first
            while (sent := time.perf_counter()) < end:
                try:
                    await infer(requests[turn % len(requests)])
                    latencies_s.append(time.perf_counter() - sent)
                except grpc.aio.AioRpcError:
                    failed += 1
                turn += concurrency

        start = time.perf_counter()
        await asyncio.gather(*(client(i) for i in range(concurrency)))
        elapsed_s = time.perf_counter() - start
    return ClosedLoopFigures.of(latencies_s, elapsed_s, failed)
