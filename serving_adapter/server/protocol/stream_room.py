"""Bounds the calls that stay, and ends them where the server drains: streams, watches, reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import grpc

T = TypeVar("T")


class StreamRoom:
    """Room for `most` streams of all clients, so that calls of one request find theirs.

    `most_requests` is how many of their requests are answered at once. They share it equally, and what a
    stream sends beyond its share waits in its connection.
    """

    def __init__(self, most: int, most_requests: int) -> None:
        self._most, self._most_requests, self._count = most, most_requests, 0
        self._draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_draining(self) -> bool:
        return self._draining.done()

    def drain(self) -> None:
        """Ends what waits for its clients, so that nobody holds up the end of the server."""
        self._draining.set_result(None)

    async def unless_draining(self, coming: Coroutine[Any, Any, T]) -> T | None:
        """What a call waits for; None where the server drains before that comes."""
        task = asyncio.create_task(coming)
        try:
            await asyncio.wait((task, self._draining), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            task.cancel()

    @property
    def requests_of_each(self) -> int:
        """The share of one stream."""
        return max(1, self._most_requests // max(1, self._count))

    @asynccontextmanager
    async def place(self, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
        """A place for a call; one too many is refused in a sentence."""
        if self._count >= self._most:
            sentence = (
                f"{self._most} streams are open, the most that are served; close some, or use ModelInfer"
            )
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, sentence)
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
