"""So many connections over HTTP as the descriptors bear, and those are served whoever else comes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving_adapter.server.rest import listening
from tests.support.servers.rest_door import serving
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
