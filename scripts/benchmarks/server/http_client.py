"""An HTTP client for LitServe and Ray Serve, in a process of its own: closed loop, or open loop (Poisson)."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time

import numpy as np

from scripts.serving.closed_loop import ClosedLoopFigures
from scripts.serving.minilm_requests import token_ids


def closed_loop_by_http(port: int, concurrency: int, seconds: float) -> ClosedLoopFigures:
    """An answer that is none raises."""
    figures: ClosedLoopFigures = _in_process(_closed_loop, port, concurrency, seconds)
    return figures


def poisson_latencies_ms(port: int, rate_per_s: float, seconds: float, seed: int) -> np.ndarray:
    """Latencies from the intended send times."""
    return np.asarray(_in_process(_open_loop, port, rate_per_s, seconds, seed))


def _in_process(function, *arguments):  # type: ignore[no-untyped-def]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_run, (function, *arguments))


def _run(function, *arguments):  # type: ignore[no-untyped-def]
    return asyncio.run(function(*arguments))


def client(port: int):  # type: ignore[no-untyped-def]
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector)


def bodies() -> list[bytes]:
    return [json.dumps({"token_ids": row.tolist()}).encode() for row in token_ids(64)]


async def posted(session, body: bytes) -> None:  # type: ignore[no-untyped-def]
    headers = {"content-type": "application/json"}
    async with session.post("/predict", data=body, headers=headers) as response:
        response.raise_for_status()
        await response.read()


async def _closed_loop(port: int, concurrency: int, seconds: float) -> ClosedLoopFigures:
    contents, latencies_s = bodies(), list[float]()
    async with client(port) as session:
        end_s = time.perf_counter() + seconds

        async def send(turn: int) -> None:
            while (sent_s := time.perf_counter()) < end_s:
                await posted(session, contents[turn % len(contents)])
                latencies_s.append(time.perf_counter() - sent_s)
                turn += concurrency

        begin_s = time.perf_counter()
        await asyncio.gather(*(send(i) for i in range(concurrency)))
        return ClosedLoopFigures.of(latencies_s, time.perf_counter() - begin_s, failed=0)


async def _open_loop(port: int, rate_per_s: float, seconds: float, seed: int) -> list[float]:
    rng = np.random.default_rng(seed)
    times_s = np.cumsum(rng.exponential(1 / rate_per_s, int(2 * rate_per_s * seconds) + 10))
    contents, latencies_ms = bodies(), []
    async with client(port) as session:
        begin_s = time.perf_counter()

        async def send(i: int, intended_s: float) -> None:
            await asyncio.sleep(begin_s + intended_s - time.perf_counter())
            await posted(session, contents[i % len(contents)])
            latencies_ms.append(1e3 * (time.perf_counter() - begin_s - intended_s))

        await asyncio.gather(*(send(i, t) for i, t in enumerate(times_s) if t < seconds))
    return latencies_ms
