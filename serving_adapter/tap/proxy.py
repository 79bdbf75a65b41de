"""Hands bytes on in both directions, untouched, and lets `Calls` read along.

What cannot be read along (TLS, another protocol) is handed on all the same, and counted as unwatched. A side
that takes its bytes slowly slows the other down, so little is held here. Where the server's side ends first,
what its clients wait for is unavailable; where a client does, it has given up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import cast

import grpc

from serving_adapter.tap.calls import Calls
from serving_adapter.tap.frames import NotHttp2
from serving_adapter.tap.tally import ClientTally

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 10.0
HIGH_WATER_BYTES = 1 << 20
MAX_CONNECTIONS = 10_000
DRAIN_POLL_S = 0.02


class Tap:
    """Hands the connections of all clients on to one server."""

    def __init__(self, host: str, port: int, tally: ClientTally) -> None:
        self._host, self._port, self.tally = host, port, tally
        self.clients: set[_Client] = set()

    def connection(self) -> asyncio.Protocol:
        """For a client that has just come."""
        return _Client(self)

    async def connect(self, client: _Client) -> None:
        """Connects a client to the server; ends its connection where that cannot be."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                loop = asyncio.get_running_loop()
                await loop.create_connection(lambda: _Server(client), self._host, self._port)
        except OSError as error:  # TimeoutError is one
            log.warning("the server at %s:%d cannot be reached: %s", self._host, self._port, error)
            client.server_is_gone()
            client.end()

    async def drain(self, within_s: float) -> None:
        """Ends all connections once no request is under way, or after `within_s` seconds."""
        try:
            async with asyncio.timeout(within_s):
                while self.tally.under_way.total():
                    await asyncio.sleep(DRAIN_POLL_S)
                for client in self.clients:
                    client.end()
                while self.clients:  # each until its last answer is written
                    await asyncio.sleep(DRAIN_POLL_S)
        except TimeoutError:
            log.warning("%d requests are still under way after %g s", self.tally.under_way.total(), within_s)


class _Side(asyncio.Protocol):
    """One of the two connections that belong together."""

    other: _Side | None = None
    has_ended = False  # it sends no more
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def hand_on(self, data: bytes) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(data)

    def eof_received(self) -> bool:
        """This side sends no more: the other is told, and both end once it does neither."""
        self.has_ended = True
        other = self.other
        if other is None:
            return True
        if other.has_ended:
            other.end()
            return False
        if other.transport is not None and other.transport.can_write_eof():
            other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.other is not None and self.other.transport is not None:
            self.other.transport.resume_reading()

    def end(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self.other is not None:
            self.other.end()


class _Client(_Side):
    """The side of a client. What it sends before the server is reached waits, in its socket for the most."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._waiting: list[bytes] = []  # read before the loop heard that it should not
        self._calls: Calls | None = Calls(tap.tally, time.monotonic)
        self._connecting: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._tap.tally.connections += 1
        self._tap.clients.add(self)
        assert self.transport is not None
        if self._tap.tally.connections > MAX_CONNECTIONS:
            self.end()
            return
        self.transport.pause_reading()
        self._connecting = asyncio.ensure_future(self._tap.connect(self))

    def reached(self, server: _Server) -> None:
        self.other = server
        if self.transport is None or self.transport.is_closing():
            server.end()
            return
        for data in self._waiting:
            self.hand_on(data)
        self._waiting.clear()
        if self.has_ended:
            self.eof_received()
        self.transport.resume_reading()

    def server_is_gone(self) -> None:
        """No answer comes any more. A client that has not ended before may reset its calls only now."""
        if not self.has_ended:
            self.watch(lambda calls: calls.lost(grpc.StatusCode.UNAVAILABLE))

    def data_received(self, data: bytes) -> None:
        if self.other is None:
            self._waiting.append(data)
            if self.transport is not None:
                self.transport.pause_reading()
        else:
            self.hand_on(data)
        self.watch(lambda calls: calls.asked(data))

    def watch(self, read: Callable[[Calls], None]) -> None:
        """Reads bytes along that are on their way already: no error there may hold them up."""
        if self._calls is None:
            return
        try:
            read(self._calls)
        except Exception as error:
            if not isinstance(error, NotHttp2):
                log.exception("a connection cannot be read along; it is handed on all the same")
            self._calls.lost(grpc.StatusCode.CANCELLED)
            self._calls = None
            self._tap.tally.unwatched += 1

    def connection_lost(self, error: Exception | None) -> None:
        super().connection_lost(error)
        self._tap.tally.connections -= 1
        self._tap.clients.discard(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self._calls is not None:
            self._calls.lost(grpc.StatusCode.CANCELLED)


class _Server(_Side):
    """The side of the server."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self.other = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._client.reached(self)

    def data_received(self, data: bytes) -> None:
        self.hand_on(data)
        self._client.watch(lambda calls: calls.answered(data))

    def eof_received(self) -> bool:
        self._client.server_is_gone()
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.server_is_gone()
        super().connection_lost(error)
