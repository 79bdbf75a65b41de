"""So many connections over HTTP as the descriptors bear, and those are served whoever else comes."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import socket
import ssl
from asyncio.constants import SSL_HANDSHAKE_TIMEOUT
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from serving_adapter.server.rest import listening
from tests.support.servers.rest_door import serving
from tests.support.servers.tls import TlsFiles
from tests.support.waiting import PATIENCE_S, eventually

MOST = 3
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def alive(scope: Scope, receive: Receive, send: Send) -> None:
    await Response()(scope, receive, send)


async def is_served(connection: Connection) -> bool:
    """Whether a request is answered; the other possibility is that the connection is closed."""
    reader, writer = connection
    with suppress(ConnectionError):
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        return (await reader.readline()).startswith(b"HTTP/1.1 200")
    return False


def test_silent_connections_beyond_a_quarter_of_the_descriptors_are_closed_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listening, "allow_descriptors", lambda wanted: 4 * MOST)
    monkeypatch.setattr(listening, "HEAD_TIMEOUT_S", 100 * PATIENCE_S)

    async def scenario() -> None:
        async with serving(alive) as place:
            opened = [await asyncio.open_connection(*place) for _ in range(2 * MOST)]
            for reader, _ in opened[MOST:]:
                with suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            assert [await is_served(connection) for connection in opened[:MOST]] == [True] * MOST
            opened[0][1].close()
            async with asyncio.timeout(PATIENCE_S):
                while not await is_served(another := await asyncio.open_connection(*place)):
                    another[1].close()
            for _, writer in (*opened, another):
                writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_connections_that_do_not_agree_on_their_encryption_count_as_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: str
) -> None:
    monkeypatch.setattr(listening, "allow_descriptors", lambda wanted: 4 * MOST)
    monkeypatch.setattr(listening, "HEAD_TIMEOUT_S", 100 * PATIENCE_S)
    files = TlsFiles.made_in(tmp_path)

    async def scenario() -> None:
        async with serving(alive, files) as place:
            encrypted = await asyncio.open_connection(*place, ssl=files.context())
            silent = [await asyncio.open_connection(*place) for _ in range(2 * MOST)]
            for reader, _ in silent[MOST - 1 :]:
                with suppress(ConnectionError):
                    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
            assert await is_served(encrypted)
            silent[0][1].close()
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    with suppress(ConnectionError):
                        another = await asyncio.open_connection(*place, ssl=files.context())
                        break
            assert await is_served(another)
            for _, writer in (*silent, encrypted, another):
                writer.transport.abort()

    pytest.importorskip(loop).run(scenario())


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_connection_that_takes_too_long_to_agree_on_its_encryption_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, loop: str
) -> None:
    monkeypatch.setattr(listening, "HEAD_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        async with serving(alive, TlsFiles.made_in(tmp_path)) as place:
            reader, writer = await asyncio.open_connection(*place)
            async with asyncio.timeout(SSL_HANDSHAKE_TIMEOUT / 2):  # What an event loop gives by itself.
                assert await reader.read() == b""
            writer.close()

    pytest.importorskip(loop).run(scenario())


@asynccontextmanager
async def taking_connections() -> AsyncIterator[tuple[str, int]]:
    """The place where connections are taken, which should agree on their encryption."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with listening.bind("127.0.0.1", 0) as listener:
        connections = listening.EncryptedConnections(listener, tls, object, set(), MOST)
        connections.start(1)
        yield listener.getsockname()
        connections.close()
        await connections.wait_closed()


@pytest.mark.parametrize(
    ("number", "retry_s", "told"),
    [
        (errno.ECONNABORTED, 100 * PATIENCE_S, []),
        (errno.EMFILE, 0.0, ["no connection over HTTP can be taken: Too many open files"]),
    ],
)
def test_only_what_lasts_delays_the_connections_after_one_that_could_not_be_taken(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
    retry_s: float,
    told: list[str],
) -> None:
    monkeypatch.setattr(listening, "RETRY_S", retry_s)
    ours, theirs = socket.socketpair()

    async def scenario() -> None:
        loop, opened = asyncio.get_running_loop(), asyncio.Event()
        answers: Iterator[Any] = iter([OSError(number, os.strerror(number)), ours])

        async def accept(listener: socket.socket) -> tuple[Any, None]:
            answer = next(answers, None)
            if isinstance(answer, OSError):
                raise answer
            if answer is None:
                await asyncio.Event().wait()
            return answer, None

        async def connect(*arguments: Any, **more: Any) -> None:
            opened.set()

        monkeypatch.setattr(loop, "sock_accept", accept)
        monkeypatch.setattr(loop, "connect_accepted_socket", connect)
        async with taking_connections(), asyncio.timeout(PATIENCE_S):
            await opened.wait()

    with ours, theirs:
        asyncio.run(scenario())
    assert caplog.messages == told


def test_a_fault_while_encryption_is_agreed_on_is_logged_as_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unheard: list[dict[str, Any]] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unheard.append(context))

        async def connect(*arguments: Any, **more: Any) -> None:
            raise RuntimeError("a fault")

        monkeypatch.setattr(loop, "connect_accepted_socket", connect)
        async with taking_connections() as place:
            reader, writer = await asyncio.open_connection(*place)
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())
    gc.collect()
    assert unheard == []
    assert caplog.messages == ["the encryption of a connection over HTTP could not be agreed on"]


class Connected(asyncio.Transport):
    """The server's end of a connection that a test speaks on; it keeps what is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answered, self.is_closed = b"", False

    def write(self, data: Any) -> None:
        self.answered += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def connected(application: ASGIApp) -> tuple[listening.BoundedConnection, Connected]:
    config = uvicorn.Config(application, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    transport = Connected()
    connection = listening.BoundedConnection(config, ServerState(), {}, asyncio.get_running_loop())
    connection.connection_made(transport)
    return connection, transport


GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
BODY_THAT_GOES_ON = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "more"),
    [
        (GET, [b"\r\n", b"\r\n"]),
        (BODY_THAT_GOES_ON, [b"1\r\nx\r\n", b"1\r\nx\r\n"]),
        (BODY_THAT_GOES_ON, [b"0\r\n\r\n"]),
    ],
    ids=["empty lines", "body after its answer", "end of a body after its answer"],
)
def test_bytes_that_begin_no_request_do_not_keep_an_idle_connection(
    request_bytes: bytes, more: list[bytes]
) -> None:
    async def scenario() -> None:
        connection, transport = connected(alive)
        connection.data_received(request_bytes)
        await eventually(lambda: transport.answered.startswith(b"HTTP/1.1 200"))
        idle = connection.timeout_keep_alive_task
        assert idle is not None
        for data in more:
            connection.data_received(data)
            still_idle = connection.timeout_keep_alive_task
            assert still_idle is not None
            assert still_idle.when() == idle.when()
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_a_request_that_begins_ends_the_time_to_be_idle_and_has_a_time_of_its_own() -> None:
    async def scenario() -> None:
        connection, transport = connected(alive)
        connection.data_received(GET)
        await eventually(lambda: transport.answered.startswith(b"HTTP/1.1 200"))
        connection.data_received(b"\r\n" + GET[:5])
        assert connection.timeout_keep_alive_task is None
        assert connection._late is not None
        connection.data_received(GET[5:])
        assert connection._late is None
        await eventually(lambda: transport.answered.count(b"HTTP/1.1 200") == 2)
        connection.connection_lost(None)

    asyncio.run(scenario())


def test_what_stands_behind_a_body_is_not_kept() -> None:
    async def scenario() -> None:
        connection, _ = connected(alive)
        connection.data_received(BODY_THAT_GOES_ON + b"1\r\nx\r\n0\r\n")
        before = list(connection.headers)
        for _ in range(100):
            connection.data_received(b"name: value\r\n")
        assert connection.headers == before
        connection.data_received(b"\r\n" + GET)
        assert connection.headers == [(b"host", b"x")]
        connection.connection_lost(None)

    asyncio.run(scenario())
