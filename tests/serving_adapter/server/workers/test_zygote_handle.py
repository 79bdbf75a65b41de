"""What a zygote tells beside its answers: a cluster of any size, and nothing that harms who hears it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Sequence

import pytest

from serving_adapter.messages import MAX_MESSAGE_BYTES
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.messages import (
    ClusterReport,
    Forked,
    ForkWorker,
    ModelDescription,
    ModelReference,
    NodeUse,
)
from serving_adapter.server.workers.zygote_handle import ZygoteHandle
from serving_adapter.server.workers.zygote_succession import ZygoteSuccession
from tests.support.waiting import PATIENCE_S, eventually

HOST_NAME = "a-node-whose-name-has-63-characters-as-a-label-may.example.net"


class SpokenFor:
    """A zygote that the test speaks for, at the other end of its channel."""

    pid = 17

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel.dup()
        self._ended = asyncio.Event()
        self.channel.setblocking(False)
        messages.send(self.channel, ModelDescription((), (), False))

    async def say(self, message: messages.Message) -> None:
        await self.say_bytes(json.dumps(message.to_wire()).encode())

    async def say_bytes(self, packet: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.channel, packet)

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    def kill(self) -> None:
        self.channel.close()
        self._ended.set()


async def started() -> tuple[ZygoteHandle, SpokenFor]:
    launched: list[SpokenFor] = []

    async def launch(channel: socket.socket) -> SpokenFor:
        launched.append(SpokenFor(channel))
        return launched[0]

    handle = ZygoteHandle([ModelReference("noop")], "cpu", launch, PATIENCE_S, lambda _: None)
    await handle.start()
    return handle, launched[0]


class Lingering(SpokenFor):
    """One whose process ends a few turns of the loop after its kill, as a real one does."""

    async def wait(self) -> int:
        status = await super().wait()
        for _ in range(5):
            await asyncio.sleep(0)
        return status


def test_the_end_of_a_zygote_that_the_server_ends_itself_is_told_to_nobody() -> None:
    launched: list[Lingering] = []
    told: list[ZygoteHandle] = []

    async def launch(channel: socket.socket) -> Lingering:
        launched.append(Lingering(channel))
        return launched[-1]

    def new(models: Sequence[ModelReference]) -> ZygoteHandle:
        return ZygoteHandle(models, "cpu", launch, PATIENCE_S, told.append)

    async def scenario() -> None:
        zygotes = ZygoteSuccession([ModelReference("noop")], new)
        await zygotes.start()
        await zygotes.hold_too([ModelReference("another")], [])
        await eventually(lambda: not zygotes._endings)
        assert not told
        launched[1].kill()
        await eventually(lambda: bool(told))
        assert told == [zygotes.present]
        await zygotes.close()

    asyncio.run(scenario())


def report_of(nodes: int) -> ClusterReport:
    return ClusterReport(tuple(NodeUse(f"{HOST_NAME}-{i}", 64.0, 64, i, i) for i in range(nodes)), 1.5)


@pytest.mark.parametrize("nodes", [0, 1, 256, 257, 5000])
def test_a_cluster_of_any_size_is_told(nodes: int) -> None:
    async def scenario() -> None:
        handle, zygote = await started()
        for _ in range(2):
            handle.cluster = None
            for part in report_of(nodes).parts():
                await zygote.say(part)
            await eventually(lambda: handle.cluster is not None)
            assert handle.cluster == report_of(nodes)
        await handle.close()

    asyncio.run(scenario())


def test_what_cannot_be_read_is_left_out_where_no_order_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        handle, zygote = await started()
        for _ in range(2):
            await zygote.say_bytes(b" " * (MAX_MESSAGE_BYTES + 1))
        await zygote.say(report_of(1))
        await eventually(lambda: handle.cluster is not None)
        answer = handle._send(ForkWorker(1, 1), ())
        await zygote.say(Forked(18, node="a node"))
        assert (await answer).pid == 18
        await handle.close()

    asyncio.run(scenario())
    (said,) = [record.message for record in caplog.records if "is left out" in record.message]
    assert "a part of it was lost" in said


def test_however_many_workers_are_wanted_at_once_their_orders_have_room() -> None:
    async def scenario() -> None:
        handle, zygote = await started()
        loop, wanted = asyncio.get_running_loop(), 1000

        async def answer() -> None:
            await loop.sock_recv(zygote.channel, MAX_MESSAGE_BYTES)  # what to build
            while await loop.sock_recv(zygote.channel, MAX_MESSAGE_BYTES):
                await zygote.say(Forked(0, "there is no room"))

        answering = asyncio.create_task(answer())
        forking = [handle.fork(ForkWorker(1, 1), ()) for _ in range(wanted)]
        outcomes = await asyncio.gather(*forking, return_exceptions=True)
        answering.cancel()
        assert [str(outcome) for outcome in outcomes] == ["there is no room"] * wanted
        assert handle.is_serving
        await handle.close()

    asyncio.run(scenario())
