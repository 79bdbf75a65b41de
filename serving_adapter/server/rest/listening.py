"""How the REST door listens: within the event loop of the front, with bounds on what connections may cost.

uvicorn ends idle connections, though any byte counts as use, and it keeps all that stands behind a body. What
it lacks are bounds on how many there are, and on a request's head, in time and in bytes. `BoundedConnection`
adds these. An event loop shows it no connection before its encryption is agreed on, so `EncryptedConnections`
bounds those.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from serving_adapter.address import bracketed
from serving_adapter.flags.parsing import fail
from serving_adapter.resources import allow_descriptors
from serving_adapter.server.protocol.listening import MAX_DESCRIPTORS, check_free
from serving_adapter.server.rest.bodies import PART_BYTES

log = logging.getLogger(__name__)

HEAD_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 64 << 10
IDLE_TIMEOUT_S = 75
MAX_CONNECTIONS = 4096
RETRY_S = 1.0  # after no connection could be taken: there may be a descriptor again
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""The errors of taking connections that last. Others are of one connection, which is gone."""
LEAST_DRAIN_S = 1  # uvicorn takes 0 for over, and logs an error though nothing is in flight


class BoundedConnection(HttpToolsProtocol):
    """Ends where there are too many, or where a request's head takes too long to come or is too large."""

    _late: asyncio.TimerHandle | None = None  # while a head is awaited
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)
            transport.abort()
            return
        transport.set_write_buffer_limits(PART_BYTES)  # TLS would take eight times that
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._late is not None:
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.close()
                return
            self._head_bytes += len(data)
        idle = self.timeout_keep_alive_task
        super().data_received(data)
        if idle is not None and self.cycle.response_complete and self._late is None:
            # They begin no request, so the connection is as idle as before.
            self.timeout_keep_alive_task = self.loop.call_at(idle.when(), self.timeout_keep_alive_handler)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._late is not None:  # Else it is behind a body, where nobody reads it.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._has_come()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._has_come()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._late is None:
            self._late, self._head_bytes = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close), 0

    def _has_come(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def most_connections() -> int:
    """A quarter of the descriptors at most: half are for gRPC, and workers need the rest."""
    return min(MAX_CONNECTIONS, allow_descriptors(MAX_DESCRIPTORS) // 4)


class RestServer:
    """Serves an ASGI application in the event loop that runs, from `start` to `stop`."""

    def __init__(
        self, application: ASGIApp, listener: socket.socket, tls_cert: Path | None, tls_key: Path | None
    ) -> None:
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._listener = listener
        self._is_secure = tls_cert is not None
        config = uvicorn.Config(
            application,
            loop="none",
            http=BoundedConnection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=most_connections() + 1,  # from which on uvicorn answers 503
            timeout_keep_alive=IDLE_TIMEOUT_S,
            ssl_certfile=tls_cert,
            ssl_keyfile=tls_key,
        )
        self._server = _WithinLoop(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{'https' if self._is_secure else 'http'}://{bracketed(host)}:{port}/v2"

    def start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))

    async def stop(self, drain_s: float) -> None:
        """Takes no more connections, and gives what is in flight so many seconds."""
        if self._serving is None:
            self._listener.close()
            return
        self._server.config.timeout_graceful_shutdown = max(LEAST_DRAIN_S, math.ceil(drain_s))
        self._server.should_exit = True
        await self._serving


class EncryptedConnections:
    """Takes connections and agrees on their encryption, which may last so long; all count from their begin.

    It stands where uvicorn has a server of the event loop.
    """

    def __init__(
        self,
        listener: socket.socket,
        tls: ssl.SSLContext,
        make: Callable[[], Any],
        opened: set[Any],
        most: int,
    ) -> None:
        """`make` makes the protocol of a connection, which is among those `opened` while it is one."""
        self._listener, self._tls, self._make = listener, tls, make
        self._opened, self._most = opened, most
        self._opening: dict[Any, asyncio.Task[None]] = {}  # by protocol
        self._taking: asyncio.Task[None] | None = None

    def start(self, backlog: int) -> None:
        self._listener.setblocking(False)
        self._listener.listen(backlog)
        self._taking = asyncio.create_task(self._take())

    def close(self) -> None:
        for task in self._tasks():
            task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self._taking, *self._opening.values()) if task is not None]

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pause_s = 0.0  # However fast they come, others have their turn.
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                if error.errno in SCARCE:
                    log.warning("no connection over HTTP can be taken: %s", error.strerror)
                    pause_s = RETRY_S
            else:
                self._taken(connection)
            await asyncio.sleep(pause_s)

    def _taken(self, connection: socket.socket) -> None:
        if len(self._opened) + len(self._opening.keys() - self._opened) >= self._most:
            connection.close()
            return
        protocol = self._make()
        self._opening[protocol] = asyncio.create_task(self._open(connection, protocol))

    async def _open(self, connection: socket.socket, protocol: Any) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: protocol, connection, ssl=self._tls, ssl_handshake_timeout=HEAD_TIMEOUT_S
            )
        except OSError:  # Its client went, took too long, or does not speak TLS.
            pass
        except Exception:
            log.exception("the encryption of a connection over HTTP could not be agreed on")
            connection.close()
        finally:
            del self._opening[protocol]


class _WithinLoop(uvicorn.Server):
    """Leaves signals to those whom the loop is of."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None or not sockets:
            await super().startup(sockets)
            return
        state = self.server_state
        make = partial(BoundedConnection, self.config, state, self.lifespan.state)
        taking: list[Any] = [
            EncryptedConnections(each, self.config.ssl, make, state.connections, most_connections())
            for each in sockets
        ]
        for each in taking:
            each.start(self.config.backlog)
        self.servers, self.started = taking, True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """Takes the port; ends the command with a sentence where it cannot be had."""
    try:
        check_free(host, port)
        return _bound(host.strip("[]"), port)
    except OSError as error:
        fail(
            f"cannot serve HTTP on {bracketed(host)}:{port} ({error.strerror}); choose another --http-port, "
            "0 for any free one, or -1 for none"
        )


def _bound(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    return listener
