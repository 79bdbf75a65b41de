"""Calls that never send their request keep nobody else from being served."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.recent_arrivals import METHOD as ARRIVALS
from serving_adapter.server.protocol.listening import most_calls
from serving_adapter.server.protocol.methods import INSTEAD, SERVICE, STREAM_INFER
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import eventually

INFER, LIVE = (f"/{SERVICE.full_name}/{name}" for name in ("ModelInfer", "ServerLive"))
HEALTH = "/grpc.health.v1.Health/Check"
MAX_QUEUED = 1
MAX_CALLS = most_calls(MAX_QUEUED)
TOO_MANY = 5
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def small() -> Iterator[RunningServer]:
    running = start("--model", "noop", "--max-queue-size", MAX_QUEUED)
    yield running
    running.stop()
    assert running.process.stdout is not None
    running.process.stdout.close()


def connection(server: RunningServer) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])


def silent(channel: grpc.aio.Channel, method: str) -> grpc.aio.StreamUnaryCall[Any, Any]:
    """A call that is open, and sends nothing."""
    call: grpc.aio.StreamUnaryCall[Any, Any] = channel.stream_unary(method)()
    return call


async def refusal(call: Any) -> tuple[grpc.StatusCode, str]:
    code, details = await asyncio.wait_for(call.code(), PATIENCE_S), await call.details()
    return code, details


def test_silent_calls_make_room_and_cost_other_connections_nothing(small):
    async def scenario() -> None:
        async with connection(small) as greedy, connection(small) as slow, connection(small) as honest:
            silent_calls = [silent(greedy, INFER if i % 2 else LIVE) for i in range(MAX_CALLS)]
            slow_calls = [silent(slow, LIVE) for _ in range(TOO_MANY)]
            await eventually(lambda: sum(call.done() for call in silent_calls) == TOO_MANY)
            for call in silent_calls:
                if call.done():
                    code, sentence = await refusal(call)
                    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
                    assert "send each request with its call" in sentence
            live = await honest.unary_unary(LIVE)(b"", timeout=PATIENCE_S)
            assert pb.ServerLiveResponse.FromString(live).live
            for call in slow_calls:
                await call.write(b"")
                assert pb.ServerLiveResponse.FromString(await asyncio.wait_for(call, PATIENCE_S)).live

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "method",
    [
        ARRIVALS,
        HEALTH,
        *(
            f"/{SERVICE.full_name}/{method.name}"
            for method in SERVICE.methods
            if method.name not in (*INSTEAD, STREAM_INFER)
        ),
    ],
)
def test_a_call_that_ends_without_a_request_is_refused_in_a_sentence(small, method):
    async def scenario() -> None:
        async with connection(small) as channel:
            call = silent(channel, method)
            await call.done_writing()
            code, sentence = await refusal(call)
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert sentence == "the call has no request; send one message"

    asyncio.run(scenario())


@pytest.mark.parametrize("method", INSTEAD)
def test_a_method_that_is_not_there_says_so_before_anything_is_sent(small, method):
    async def scenario() -> None:
        async with connection(small) as channel:
            code, sentence = await refusal(silent(channel, f"/{SERVICE.full_name}/{method}"))
            assert code is grpc.StatusCode.UNIMPLEMENTED
            assert INSTEAD[method] in sentence

    asyncio.run(scenario())
