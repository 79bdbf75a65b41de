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
from serving_adapter.server.protocol.received import MAX_PARSED_BYTES, InferenceMessage
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.rest import inference
from serving_adapter.server.rest.application import application
from serving_adapter.server.rest.bodies import SMALL_BYTES, Bodies
from tests.support.servers.rest_door import serving
from tests.support.waiting import PATIENCE_S

LARGE = np.arange(SMALL_BYTES).tolist()


def request_of(path: str, body: bytes, *more: tuple[bytes, bytes]) -> Scope:
    headers = [(b"content-length", str(len(body)).encode()), *more]
    return {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}


class Service:
    """Keeps what was asked, and answers without outputs."""

    def __init__(self) -> None:
        self.inference = self
        self.asked: list[InferenceMessage] = []

    async def infer(self, message: InferenceMessage, call: object) -> InferAnswer:
        self.asked.append(message)
        return InferAnswer(pb.ModelInferResponse(model_name=message.request.model_name), [])


class Body(bytes):
    """A request's, which tells when nobody holds it any more."""

    let_go: threading.Event

    def __del__(self) -> None:
        self.let_go.set()


class WatchedBodies(Bodies):
    """Has one request's body tell when nobody holds it any more."""

    def __init__(self) -> None:
        super().__init__(1 << 24, 1 << 30)
        self.let_go = threading.Event()

    async def _received(self, *arguments: Any) -> bytes:
        body = Body(await super()._received(*arguments))
        body.let_go = self.let_go
        return body


class AnswersOnceLetGo(Service):
    """Answers a request when nobody holds its body any more."""

    def __init__(self, bodies: WatchedBodies) -> None:
        super().__init__()
        self._bodies = bodies

    async def infer(self, message: InferenceMessage, call: object) -> InferAnswer:
        assert await asyncio.to_thread(self._bodies.let_go.wait, PATIENCE_S)
        return await super().infer(message, call)


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


def binary_body(values: list[int], blanks: int) -> tuple[bytes, int]:
    """A request with a tensor behind its document, which ends in so many blanks; the document's length."""
    tensor = np.array(values, np.int64).tobytes()
    described = {"name": "x", "shape": [1, len(values)], "datatype": "INT64"}
    text = json.dumps({"inputs": [described | {"parameters": {"binary_data_size": len(tensor)}}]}).encode()
    return text + b" " * blanks + tensor, len(text) + blanks


def tensor_of_waiting(body: bytes, *headers: tuple[bytes, bytes]) -> Any:
    """The tensor of a request that waits for its answer until nobody holds its body."""
    bodies = WatchedBodies()
    service: Any = AnswersOnceLetGo(bodies)
    asgi = application(service, bodies)
    received: list[Message] = [{"type": "http.request", "body": body}]

    async def receive() -> Message:
        return received.pop() if received else await asyncio.get_running_loop().create_future()

    async def send(message: Message) -> None:
        assert message.get("status", 200) == 200

    asyncio.run(asgi(request_of("/v2/models/m/infer", body, *headers), receive, send))
    (message,) = service.asked
    return message.raw[0]


@pytest.mark.parametrize("values", [[1, 2], LARGE], ids=["small", "large"])
def test_a_document_is_let_go_while_its_request_waits(values: list[int]) -> None:
    assert np.frombuffer(tensor_of_waiting(body_of(values)), np.int64).tolist() == values


def test_a_large_document_is_let_go_while_the_tensors_behind_it_wait() -> None:
    body, length = binary_body([1, 2], blanks=SMALL_BYTES)
    tensor = tensor_of_waiting(body, (inference.HEADER_LENGTH.encode(), str(length).encode()))
    assert np.frombuffer(tensor, np.int64).tolist() == [1, 2]


def test_a_document_may_not_hold_much_beside_its_tensors() -> None:
    document = json.loads(body_of([1, 2])) | {"id": "i" * MAX_PARSED_BYTES}
    body = json.dumps(document).encode()
    with pytest.raises(Refused, match=f"at most {MAX_PARSED_BYTES} bytes beside its tensors"):
        inference.read_request(body, len(body), "m", "")
