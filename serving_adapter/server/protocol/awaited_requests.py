"""Bounds the calls whose request is not there yet: a client may open calls, and never send what they ask.

When there are too many, the connection that has most of them loses its oldest. So calls that stay silent make
room for others, and a request that takes long to come is not refused because of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from serving_adapter.server.protocol.refusals import Refused, invalid

Behaviour = Callable[[Any, grpc.aio.ServicerContext], Awaitable[Any]]
StreamBehaviour = Callable[[Any, grpc.aio.ServicerContext], AsyncIterator[Any]]


class AwaitedRequests:
    """Reads the requests of all calls; `most` calls may wait for theirs."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._waits_of: dict[str, dict[asyncio.Timeout, None]] = {}  # by connection, the oldest first

    def handler(
        self, behaviour: Behaviour, read: Callable[[bytes], Any] | None, write: Callable[[Any], bytes] | None
    ) -> grpc.RpcMethodHandler:
        """Handles a method of one request and one answer.

        To gRPC the request is a stream: of a method without streams it does not say whose request it awaits.
        """

        async def answer(_: object, context: grpc.aio.ServicerContext) -> Any:
            return await behaviour(await self.request_of(context), context)

        return grpc.stream_unary_rpc_method_handler(answer, read, write)

    def stream_handler(
        self,
        behaviour: StreamBehaviour,
        read: Callable[[bytes], Any] | None,
        write: Callable[[Any], bytes] | None,
    ) -> grpc.RpcMethodHandler:
        """Handles a method of one request and a stream of answers, likewise."""

        async def answer(_: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            async for each in behaviour(await self.request_of(context), context):
                yield each

        return grpc.stream_stream_rpc_method_handler(answer, read, write)

    async def request_of(self, context: grpc.aio.ServicerContext) -> Any:
        """The request of a call; where none comes, the refusal that is to be answered."""
        peer, wait = context.peer(), asyncio.timeout(None)
        try:
            async with wait:
                self._begin(peer, wait)
                request = await context.read()
        except TimeoutError:
            return Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"more than {self._most} calls wait for their requests; send each request with its call",
            )
        finally:
            self._end(peer, wait)
        return invalid("the call has no request; send one message") if request is grpc.aio.EOF else request

    def _begin(self, peer: str, wait: asyncio.Timeout) -> None:
        self._waits_of.setdefault(peer, {})[wait] = None
        self._count += 1
        if self._count > self._most:
            greediest = max(self._waits_of, key=lambda of: len(self._waits_of[of]))
            oldest = next(iter(self._waits_of[greediest]))
            self._end(greediest, oldest)
            oldest.reschedule(0.0)

    def _end(self, peer: str, wait: asyncio.Timeout) -> None:
        waits = self._waits_of.get(peer, {})
        if wait not in waits:
            return  # it had to make room
        del waits[wait]
        self._count -= 1
        if not waits:
            del self._waits_of[peer]
