"""A call over HTTP as the service sees it: what `grpc.aio.ServicerContext` is to a call over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import grpc
from starlette.requests import Request

from serving_adapter.server.protocol.served_call import ServedCall

R = TypeVar("R")

STATUS_OF = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.INTERNAL: 500,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}


class HttpRefused(Exception):
    """A request that gets a status and one sentence instead of an answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ClientLeft(Exception):
    """Nobody waits for the answer."""


class Call(ServedCall):
    """One HTTP request, until its answer has left."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self._request = request

    def peer(self) -> str:
        """The connection it came by."""
        client = self._request.client
        return "" if client is None else f"{client.host}:{client.port}"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._request.headers.items()

    async def unless_left(self, answering: Coroutine[Any, Any, R]) -> R:
        """The answer, whose making is given up when the client goes away. Its request has been read."""
        making = asyncio.ensure_future(answering)
        leaving = asyncio.ensure_future(self._request.receive())
        try:
            await asyncio.wait((making, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                raise ClientLeft
            return making.result()
        finally:
            making.cancel()
            leaving.cancel()
