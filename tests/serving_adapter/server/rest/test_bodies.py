"""What the bodies of requests count for while they are read and answered."""

from __future__ import annotations

import asyncio
import gzip
import random
import threading

import pytest
from starlette.requests import Request
from starlette.types import Message

from serving_adapter.server.rest import bodies as bodies_module
from serving_adapter.server.rest.bodies import SMALL_BYTES, Bodies
from serving_adapter.server.rest.call import HttpRefused

TEXT = b"0.125," * SMALL_BYTES
NOISE = random.Random(0).randbytes(2 * SMALL_BYTES)  # packed into more than it is


def packed_request(body: bytes) -> Request:
    async def receive() -> Message:
        return {"type": "http.request", "body": gzip.compress(body)}

    return Request({"type": "http", "headers": [(b"content-encoding", b"gzip")]}, receive)


@pytest.mark.parametrize(
    ("body", "budget_bytes"), [(TEXT, len(TEXT)), (NOISE, len(gzip.compress(NOISE)))], ids=["text", "noise"]
)
def test_a_packed_body_counts_once(body: bytes, budget_bytes: int) -> None:
    bodies = Bodies(1 << 24, budget_bytes)

    async def scenario() -> None:
        for _ in range(2):
            async with bodies.read(packed_request(body)) as unpacked:
                assert unpacked == body
                bodies.take(budget_bytes - len(body))
                with pytest.raises(HttpRefused, match="too many requests are on their way at once"):
                    bodies.take(1)
                bodies.take(len(body) - budget_bytes)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "is_aside"), [(b"[]", False), (bytes(1 << 24), True)], ids=["small", "large"]
)
def test_a_small_body_that_unpacks_to_a_large_one_is_unpacked_in_a_thread(
    body: bytes, is_aside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(gzip.compress(body)) <= SMALL_BYTES
    threads: list[threading.Thread] = []
    unpack = bodies_module._unpacked

    def noted(body: bytes, packing: str, most_bytes: int) -> bytes:
        threads.append(threading.current_thread())
        return unpack(body, packing, most_bytes)

    monkeypatch.setattr(bodies_module, "_unpacked", noted)

    async def scenario() -> None:
        async with Bodies(1 << 24, 1 << 30).read(packed_request(body)) as unpacked:
            assert unpacked == body

    asyncio.run(scenario())
    assert [thread is not threading.main_thread() for thread in threads] == [is_aside]
