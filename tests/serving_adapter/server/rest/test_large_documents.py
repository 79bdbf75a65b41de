"""Large JSON documents are read beside the event loop, which answers others meanwhile."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from starlette.types import Message, Scope
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.http_exchange import HttpAnswer, exchanged
from serving_adapter.server.protocol.inference import InferAnswer
from serving_adapter.server.protocol.received import InferenceMessage
from serving_adapter.server.rest import inference
from serving_adapter.server.rest.application import application
from serving_adapter.server.rest.bodies import SMALL_BYTES, Bodies
from tests.support.servers.rest_door import serving
from tests.support.waiting import PATIENCE_S

LARGE = np.arange(SMALL_BYTES).tolist()


def request_of(path: str, body: bytes) -> Scope:
    headers = [(b"content-length", str(len(body)).encode())]
    return {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}


class Service:
    """Keeps what was asked, and answers without outputs."""

    def __init__(self) -> None:
        self.inference = self
        self.asked: list[InferenceMessage] = []

    async def infer(self, message: InferenceMessage, call: object) -> InferAnswer:
        self.asked.append(message)
        return InferAnswer(pb.ModelInferResponse(model_name=message.request.model_name), [])


class SlowReading:
    """Reads a request once it may; tells when one has come, and in which threads they are read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self._read = inference.read_request
        monkeypatch.setattr(inference, "read_request", self)

    def __call__(self, *arguments: Any) -> object:
        self.threads.append(threading.current_thread())
        self.begun.set()
        assert self.may_go_on.wait(PATIENCE_S)
        return self._read(*arguments)


def body_of(values: list[int]) -> bytes:
    tensor = {"name": "x", "shape": [1, len(values)], "datatype": "INT64", "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


class Door:
    """Asks what is served."""

    def __init__(self, host: str, port: int) -> None:
        self._url = f"http://{host}:{port}/v2"

    async def live(self) -> HttpAnswer:
        return await asyncio.to_thread(exchanged, f"{self._url}/health/live", PATIENCE_S)

    async def infer(self, values: list[int]) -> HttpAnswer:
        url = f"{self._url}/models/m/infer"
        return await asyncio.to_thread(exchanged, url, PATIENCE_S, "POST", body_of(values))


@asynccontextmanager
async def door(service: Any, budget_bytes: int = 1 << 30) -> AsyncIterator[Door]:
    async with serving(application(service, Bodies(1 << 24, budget_bytes))) as (host, port):
        yield Door(host, port)


def test_others_are_answered_while_a_large_document_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    service, reading = Service(), SlowReading(monkeypatch)

    async def scenario() -> None:
        async with door(service) as at:
            large = asyncio.create_task(at.infer(LARGE))
            assert await asyncio.to_thread(reading.begun.wait, PATIENCE_S)
            assert not reading.may_go_on.is_set()
            assert (await at.live()).status == 200
            assert not large.done()
            reading.may_go_on.set()
            assert (await large).status == 200

    asyncio.run(scenario())
    (message,) = service.asked
    assert np.frombuffer(message.raw[0], np.int64).tolist() == LARGE


def test_a_small_document_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = SlowReading(monkeypatch)
    reading.may_go_on.set()

    async def scenario() -> None:
        async with door(Service()) as at:
            assert (await at.infer([1, 2])).status == 200

    asyncio.run(scenario())
    assert reading.threads == [threading.main_thread()]


def test_documents_that_wait_to_be_read_count_in_what_all_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = SlowReading(monkeypatch)

    async def scenario() -> None:
        async with door(Service(), budget_bytes=2 * len(body_of(LARGE)) - 1) as at:
            large = asyncio.create_task(at.infer(LARGE))
            assert await asyncio.to_thread(reading.begun.wait, PATIENCE_S)
            assert (await at.infer(LARGE)).status == 429
            reading.may_go_on.set()
            assert (await large).status == 200
            assert (await at.infer(LARGE)).status == 200

    asyncio.run(scenario())


def test_a_document_whose_client_leaves_waits_no_more_to_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    service: Any = Service()
    reading, body = SlowReading(monkeypatch), body_of(LARGE)
    bodies = Bodies(1 << 24, 2 * len(body))
    asgi = application(service, bodies)

    async def ask(left: asyncio.Event) -> list[Message]:
        """What is answered to a client that sends its request and then stays until it has left."""
        received, sent = iter([{"type": "http.request", "body": body}]), []

        async def receive() -> Message:
            if (message := next(received, None)) is not None:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await asgi(request_of("/v2/models/m/infer", body), receive, send)
        return sent

    async def scenario() -> None:
        stays, leaves = asyncio.Event(), asyncio.Event()
        first = asyncio.create_task(ask(stays))
        assert await asyncio.to_thread(reading.begun.wait, PATIENCE_S)
        leaves.set()
        async with asyncio.timeout(PATIENCE_S / 2):
            assert await ask(leaves) == []
        bodies.take(len(body))  # What it held is let go.
        assert not first.done()
        reading.may_go_on.set()
        assert (await first)[0]["status"] == 200

    asyncio.run(scenario())
    assert (len(reading.threads), len(service.asked)) == (1, 1)
