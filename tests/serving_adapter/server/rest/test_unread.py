"""An answer over HTTP counts as unread until its client has taken it, encrypted or not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from serving_adapter.server.rest.bodies import AnswerInParts
from tests.support.servers.rest_door import serving
from tests.support.servers.running_server import RunningServer
from tests.support.servers.tls import TlsFiles
from tests.support.waiting import PATIENCE_S, until

BODY = bytes(range(256)) * (1 << 17)  # 32 MiB, more than sockets take
ANSWER_MIB = 12


@pytest.fixture(params=["plain", "TLS"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> TlsFiles | None:
    """None for a door without encryption."""
    return None if request.param == "plain" else TlsFiles.made_in(tmp_path)


class Answering:
    """An ASGI application that tells when its answer has left."""

    def __init__(self) -> None:
        self.has_left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await AnswerInParts(BODY)(scope, receive, send)
        self.has_left.set()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_an_answer_has_left_only_when_its_client_has_read_it(loop: str, files: TlsFiles | None) -> None:
    async def scenario() -> None:
        answering = Answering()
        async with serving(answering, files) as (host, port):
            context = None if files is None else files.context()
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await reader.readuntil(b"\r\n\r\n")
                assert not answering.has_left.is_set()
                assert await reader.readexactly(len(BODY)) == BODY
                await asyncio.wait_for(answering.has_left.wait(), PATIENCE_S)
            finally:
                writer.transport.abort()

    pytest.importorskip(loop).run(scenario())


@contextmanager
def asking(server: RunningServer) -> Iterator[tuple[socket.socket, int]]:
    """A connection that asked for a large answer and reads no more of it than the status."""
    tensor = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [ANSWER_MIB, 1.0]}
    body = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}})
    place = urlsplit(server.rest_url)
    head = f"POST /v2/models/large/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as connection:
        connection.sendall((head + body).encode())
        with connection.makefile("rb") as answer:
            status = int(answer.readline().split()[1])
        yield connection, status


def test_answers_that_clients_do_not_read_are_bounded(start_server) -> None:
    """Of 40 MiB, an answer of 12 MiB takes 24, and twice the bytes are the end."""
    server = start_server("--model", "tests.support.models.large:large", "--max-queue-bytes", 40 << 20)
    with ExitStack() as connections:
        asked = [connections.enter_context(asking(server)) for _ in range(5)]
        assert [status for _, status in asked] == [200, 200, 200, 429, 429]
        asked[0][0].close()

        def status_of_another() -> int:
            with asking(server) as (_, status):
                return status

        until(lambda: status_of_another() == 200)
