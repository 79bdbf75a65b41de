"""Poisson arrivals at an application that answers over HTTP, until SIGTERM or for so many seconds.

    python -m scripts.benchmarks.ray.http_load --port PORT --rate 20 --out FOLDER

A line says when the first is sent. `requests.csv` in the folder then has the rows of `rrl-load --requests`
that `scripts.serving.client_log` reads. What is under way at the end is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scripts.benchmarks.server.http_client import bodies, client, posted
from serving_adapter.flags.parsing import parse

Row = tuple[float, float, str]  # Unix time at which it was meant to be sent, latency in ms, status


@dataclass(frozen=True)
class Options:
    """Sends requests to an application on this machine."""

    port: int
    """Where it listens."""
    out: Path
    """Folder for requests.csv."""
    rate: float = 20.0
    """Requests/s."""
    seed: int = 0
    """The same seed sends at the same moments."""
    duration_s: float = 0.0
    """How long to send; 0 is until SIGTERM."""


async def sent(options: Options) -> list[Row]:
    rng = np.random.default_rng(options.seed)
    contents = bodies()
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    rows: list[Row] = []

    async def ask(at: float, body: bytes) -> None:
        try:
            await posted(session, body)
            status = "OK"
        except Exception as error:  # the client's own, a time-out, or an answer that is none
            status = type(error).__name__
        rows.append((at, 1e3 * (time.time() - at), status))

    async with client(options.port) as session:
        under_way = set[asyncio.Task[None]]()
        began_at = at = time.time()
        print("sending", flush=True)
        while not over.is_set() and (not options.duration_s or at < began_at + options.duration_s):
            task = asyncio.create_task(ask(at, contents[len(rows) % len(contents)]))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            at += rng.exponential(1 / options.rate)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(over.wait(), max(0.0, at - time.time()))
        await asyncio.gather(*under_way)
    return rows


def main() -> None:
    options = parse(Options, sys.argv[1:])
    rows = asyncio.run(sent(options))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "requests.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("at", "latency_ms", "status"), *rows])


if __name__ == "__main__":
    main()
