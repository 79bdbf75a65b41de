"""Bounds the calls that stay: streams of requests, watches, reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc


class StreamRoom:
    """Room for `most` streams of all clients, so that calls of one request find theirs."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0

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
