"""The services beside the protocol's: what is sent to them costs nobody else a place, or the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import Int32Value

from serving_adapter.recent_arrivals import METHOD as ARRIVALS
from serving_adapter.server.protocol.arrivals_service import arrivals_handler
from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.health_service import SERVING, health_handler
from serving_adapter.server.protocol.keep_alive import KeepAliveOptions
from serving_adapter.server.protocol.listening import grpc_server
from serving_adapter.server.protocol.received import MAX_CONTROL_BYTES
from serving_adapter.server.protocol.reflection import reflection_handlers
from serving_adapter.server.protocol.stream_room import StreamRoom
from tests.support.waiting import PATIENCE_S, eventually

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
MOST_CALLS = 4
LARGE = b"\x0a\x00" * MAX_CONTROL_BYTES  # to a parser, many fields


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    """The address of a server with these services alone, and no model."""
    server = grpc_server(16 << 20, MOST_CALLS, KeepAliveOptions())
    awaited, room = AwaitedRequests(MOST_CALLS), StreamRoom(MOST_CALLS, MOST_CALLS)
    handlers = (
        arrivals_handler({}, awaited),
        health_handler({}, awaited, room),
        *reflection_handlers((), room),
    )
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


def connection(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    return await asyncio.wait_for(call.code(), PATIENCE_S), await call.details()


def test_watches_that_never_say_of_what_make_room() -> None:
    async def scenario() -> None:
        async with served() as address, connection(address) as one, connection(address) as two:
            silent = [channel.stream_stream(WATCH)() for channel in (one, two) for _ in range(MOST_CALLS)]
            await eventually(lambda: sum(call.done() for call in silent) == MOST_CALLS)
            for call in silent:
                if call.done():
                    code, sentence = await refusal(call)
                    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                    assert "send each request with its call" in sentence
            async with connection(address) as honest:
                status = await honest.unary_unary(CHECK)(b"", timeout=PATIENCE_S)
                assert Int32Value.FromString(status).value == SERVING
                watch = honest.unary_stream(WATCH)(b"", timeout=PATIENCE_S)
                assert Int32Value.FromString(await watch.read()).value == SERVING
                watch.cancel()
            for call in silent:
                call.cancel()

    asyncio.run(scenario())


def test_a_watch_that_ends_without_a_request_is_refused_in_a_sentence() -> None:
    async def scenario() -> None:
        async with served() as address, connection(address) as channel:
            call = channel.stream_stream(WATCH)()
            await call.done_writing()
            sentence = "the call has no request; send one message"
            assert await refusal(call) == (grpc.StatusCode.INVALID_ARGUMENT, sentence)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "message", "says"),
    [
        (REFLECTION, LARGE, f"at most {MAX_CONTROL_BYTES} bytes"),
        (REFLECTION, b"\xff", "these bytes are no ServerReflectionRequest"),
        (ARRIVALS, LARGE, f"at most {MAX_CONTROL_BYTES} bytes"),
        (ARRIVALS, b"", "begins with a count"),
    ],
)
def test_what_is_too_large_or_no_message_is_refused_in_a_sentence(
    method: str, message: bytes, says: str
) -> None:
    async def scenario() -> None:
        async with served() as address, connection(address) as channel:
            call = channel.stream_stream(method)(iter([message]))
            code, sentence = await refusal(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert says in sentence

    asyncio.run(scenario())
