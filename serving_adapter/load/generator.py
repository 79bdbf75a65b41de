"""The load generator: open loop, in which requests leave when their arrival process says, and closed loop.

| loop | a request leaves | its latency counts from |
|---|---|---|
| open | when the arrival process says, answered or not | the moment it was meant to be sent |
| closed | when one of a fixed number under way was answered | the moment it was sent |

In the open loop neither a stalled server nor a late client hides the wait of the requests behind it
(coordinated omission). How late the client was is reported apart, as the send lag. A closed loop sends as
fast as it is answered, so it never shows what waits outside: it tells what a server can do, not what users
of a given rate would see.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from itertools import cycle
from typing import Any

import grpc
import numpy as np

from serving_adapter.load.arrivals import Arrivals
from serving_adapter.load.payloads import RequestSource
from serving_adapter.load.report import LoadReport, Recorder, RequestRow, SecondRow
from serving_adapter.load.sizes import Sizes

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
SENDS_PER_YIELD = 8  # a client that is late still has to take its answers
PAUSE_AFTER_FAILURE_S = 0.05  # of a closed loop, which would else ask a dead server as fast as it can
SIZES_AT_ONCE = 256  # that a closed loop draws
LONGEST_OVERTIME_S = 10.0  # after the duration, in which a late client sends what was due within it

Send = Callable[[bytes], Awaitable[object]]  # raises AioRpcError where the request fails


def grpc_send(channels: list[grpc.aio.Channel], timeout_s: float) -> Send:
    """Sends serialised requests over the channels in turn; the answers are not decoded."""
    calls = cycle([channel.unary_unary(MODEL_INFER) for channel in channels])

    def send(payload: bytes) -> Awaitable[object]:
        return next(calls)(payload, timeout=timeout_s)

    return send


class LoadGenerator:
    """Sends requests of the given sizes, and records what becomes of them; `run` may be called once."""

    def __init__(
        self,
        send: Send,
        payloads: RequestSource,
        load: Arrivals | int,
        sizes: Sizes,
        seed: int,
        duration_s: float = math.inf,
        on_second: Callable[[SecondRow], None] = lambda row: None,
        on_request: Callable[[RequestRow], None] = lambda row: None,
    ) -> None:
        """`load`: the arrivals of an open loop, or how many requests of a closed one are under way."""
        if isinstance(load, int) and load < 1:
            raise ValueError(f"a closed loop needs at least 1 request under way, got {load}")
        self._send = send
        self._payloads = payloads
        self._load = load
        self._sizes = sizes
        self._arrivals_rng, self._sizes_rng = (np.random.default_rng([seed, part]) for part in range(2))
        self._duration_s = duration_s
        self._recorder = Recorder(on_second)
        self._on_request = on_request
        self._in_flight: set[asyncio.Task] = set()
        self._start_s = 0.0
        self._started_at = 0.0  # the same moment as Unix time

    async def run(self, stop: asyncio.Event) -> LoadReport:
        """Sends until the duration, the trace's end or `stop`; then waits for what is in flight.

        A late client sends what was due within the duration, for `LONGEST_OVERTIME_S` at most.
        """
        self._start_s, self._started_at = time.monotonic(), time.time()
        sending = asyncio.create_task(self._send_all())
        stopping = asyncio.create_task(stop.wait())
        ticking = asyncio.create_task(self._tick())
        await asyncio.wait({sending, stopping, ticking}, return_when=asyncio.FIRST_COMPLETED)
        duration_s = self._now_s()
        stopping.cancel()
        for task in (sending, ticking):
            if task.done():
                task.result()  # raises what went wrong in it
        sending.cancel()
        if self._in_flight:
            await asyncio.wait(self._in_flight)
        until_last_answer_s = self._now_s()
        ticking.cancel()
        self._recorder.finish(until_last_answer_s)
        return self._recorder.report(min(duration_s, self._duration_s), until_last_answer_s)

    async def _send_all(self) -> None:
        """Starts requests until the duration is over."""
        if isinstance(self._load, int):
            await self._send_closed(self._load)
        else:
            await self._send_open(self._load)

    async def _send_open(self, arrivals: Arrivals) -> None:
        for number, (intended_s, size) in enumerate(self._schedule(arrivals)):
            if intended_s >= self._duration_s:
                await asyncio.sleep(self._duration_s - self._now_s())
                return
            ahead_s = intended_s - self._now_s()
            if intended_s - ahead_s >= self._duration_s + LONGEST_OVERTIME_S:
                return
            if ahead_s > 0 or number % SENDS_PER_YIELD == 0:
                await asyncio.sleep(max(ahead_s, 0.0))
            self._start(self._request(intended_s, self._payloads.of_size(size)))

    def _schedule(self, arrivals: Arrivals) -> Iterator[tuple[float, int]]:
        """(intended moment, size) of each request."""
        for times_s in arrivals.times_s(self._arrivals_rng):
            sizes = self._sizes.sample(self._sizes_rng, len(times_s))
            yield from zip(times_s.tolist(), sizes.tolist(), strict=True)

    async def _send_closed(self, concurrency: int) -> None:
        free = asyncio.Semaphore(concurrency)
        while True:
            for size in self._sizes.sample(self._sizes_rng, SIZES_AT_ONCE).tolist():
                await free.acquire()
                if self._now_s() >= self._duration_s:
                    return
                self._start(self._one_of_closed(size, free))

    async def _one_of_closed(self, size: int, free: asyncio.Semaphore) -> None:
        try:
            if not await self._request(self._now_s(), self._payloads.of_size(size)):
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
        finally:
            free.release()

    def _start(self, request: Coroutine[Any, Any, object]) -> asyncio.Task:
        task = asyncio.create_task(request)
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return task

    async def _request(self, intended_s: float, payload: bytes) -> bool:
        """True if it was answered."""
        sent_s = self._now_s()
        self._recorder.sent(sent_s, sent_s - intended_s)
        try:
            await self._send(payload)
        except grpc.aio.AioRpcError as error:
            status, ended_s = error.code().name, self._now_s()
            self._recorder.failed(ended_s, status)
        else:
            status, ended_s = "OK", self._now_s()
            self._recorder.completed(ended_s, ended_s - intended_s)
        self._on_request(RequestRow(self._started_at + intended_s, 1e3 * (ended_s - intended_s), status))
        return status == "OK"

    async def _tick(self) -> None:
        """Closes each second on time in a lull too."""
        while True:
            await asyncio.sleep(1 - self._now_s() % 1)
            self._recorder.advance(self._now_s())

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s
