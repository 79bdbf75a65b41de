"""Bounds the calls that stay: streams of requests, watches, reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc


class StreamRoom:
    """Room for `most` streams of all clients, so that calls of one request find theirs.

    `most_requests` is how many of their requests are answered at once. They share it equally, and what a
    stream sends beyond its share waits in its connection.
    """

    def __init__(self, most: int, most_requests: int) -> None:
        self._most, self._most_requests, self._count = most, most_requests, 0

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
