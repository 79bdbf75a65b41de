"""So many connections over HTTP as the descriptors bear, and those are served whoever else comes."""

from __future__ import annotations

import asyncio
from asyncio.constants import SSL_HANDSHAKE_TIMEOUT
from contextlib import suppress
from pathlib import Path

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving_adapter.server.rest import listening
from tests.support.servers.rest_door import serving
from tests.support.servers.tls import TlsFiles
from tests.support.waiting import PATIENCE_S

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
