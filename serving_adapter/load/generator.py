"""An open-loop load generator: requests leave when their arrival process says, answered or not.

A request's latency counts from the moment it was meant to be sent. So neither a stalled server nor a late
client hides the wait of the requests behind it (coordinated omission). How late the client was is reported
apart, as the send lag.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle

import grpc
import numpy as np

from serving_adapter.load.arrivals import Arrivals
from serving_adapter.load.payloads import RequestSource
from serving_adapter.load.report import LoadReport, Recorder, RequestRow, SecondRow
from serving_adapter.load.sizes import Sizes

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"
SENDS_PER_YIELD = 8  # a client that is late still has to take its answers

Send = Callable[[bytes], Awaitable[object]]  # raises AioRpcError where the request fails


def grpc_send(channels: list[grpc.aio.Channel], timeout_s: float) -> Send:
    """Sends serialised requests over the channels in turn; the answers are not decoded."""
    calls = cycle([channel.unary_unary(MODEL_INFER) for channel in channels])

    def send(payload: bytes) -> Awaitable[object]:
        return next(calls)(payload, timeout=timeout_s)

    return send


class LoadGenerator:
    """Sends requests of the given sizes at the given arrivals; `run` may be called once."""

    def __init__(
        self,
        send: Send,
        payloads: RequestSource,
        arrivals: Arrivals,
        sizes: Sizes,
        seed: int,
        duration_s: float = math.inf,
        on_second: Callable[[SecondRow], None] = lambda row: None,
        on_request: Callable[[RequestRow], None] = lambda row: None,
    ) -> None:
        self._send = send
        self._payloads = payloads
        self._arrivals = arrivals
        self._sizes = sizes
        self._arrivals_rng, self._sizes_rng = (np.random.default_rng([seed, part]) for part in range(2))
        self._duration_s = duration_s
        self._recorder = Recorder(on_second)
        self._on_request = on_request
        self._in_flight: set[asyncio.Task] = set()
        self._start_s = 0.0
        self._started_at = 0.0  # the same moment as Unix time

    async def run(self, stop: asyncio.Event) -> LoadReport:
        """Sends until the duration, the trace's end or `stop`; then waits for what is in flight."""
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
        for number, (intended_s, size) in enumerate(self._schedule()):
            if intended_s >= self._duration_s:
                await asyncio.sleep(self._duration_s - self._now_s())
                return
            ahead_s = intended_s - self._now_s()
            if ahead_s > 0 or number % SENDS_PER_YIELD == 0:
                await asyncio.sleep(max(ahead_s, 0.0))
            task = asyncio.create_task(self._request(intended_s, self._payloads.of_size(size)))
            self._in_flight.add(task)
            task.add_done_callback(self._in_flight.discard)

    def _schedule(self) -> Iterator[tuple[float, int]]:
        """(intended moment, size) of each request."""
        for times_s in self._arrivals.times_s(self._arrivals_rng):
            sizes = self._sizes.sample(self._sizes_rng, len(times_s))
            yield from zip(times_s.tolist(), sizes.tolist(), strict=True)

    async def _request(self, intended_s: float, payload: bytes) -> None:
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

    async def _tick(self) -> None:
        """Closes each second on time in a lull too."""
        while True:
            await asyncio.sleep(1 - self._now_s() % 1)
            self._recorder.advance(self._now_s())

    def _now_s(self) -> float:
        return time.monotonic() - self._start_s
