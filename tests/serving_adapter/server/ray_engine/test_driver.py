"""The driver, and the agent of a node, between a front and a real worker. Ray has no part in it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from serving_adapter.messages import socket_pair
from serving_adapter.server.ray_engine import link
from serving_adapter.server.ray_engine.agent import NodeAgent, launch_here
from serving_adapter.server.ray_engine.cluster import Cluster, Node
from serving_adapter.server.ray_engine.driver import Driver
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, place
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    BuildModels,
    ClusterReport,
    ForkWorker,
    ModelReference,
    NodeEnded,
    RunBatch,
    WorkerReady,
)
from serving_adapter.server.workers.share import ALL
from serving_adapter.server.workers.zygote_handle import ZygoteHandle, receive
from tests.support.waiting import PATIENCE_S

LARGE = ModelReference("tests.support.models.large:large")
HOST, SECRET, MIB = "127.0.0.1", "secret", 1 << 20


class NothingReserved:
    """There is no Ray to reserve a CPU with."""

    def reserve(self, number: int, node_ids: Sequence[str]) -> None: ...

    def free(self, number: int) -> None: ...


class OneWorker:
    """The front's end of a worker on a node."""

    def __init__(self, driver: Driver) -> None:
        self.channel, theirs = socket_pair()
        self.channel.setblocking(False)
        self._inputs, self._outputs = Arena.create("inputs"), Arena.create("outputs")
        arenas = (os.dup(self._inputs.fd), os.dup(self._outputs.fd))
        driver._fork(ForkWorker(1, 1), [theirs.detach(), *arenas])

    async def run(self, rows: int, mib: int) -> BatchOutputs | BatchError | NodeEnded | None:
        """What comes of a batch whose rows have 8 bytes each, and get so many MiB each."""
        batch = np.full((rows, 2), mib, np.float32)
        placed, needed_bytes = place([("x", "FP32", batch.shape, batch.nbytes)])
        self._inputs.ensure_for_batch(needed_bytes)
        self._inputs.array(placed[0])[...] = batch
        messages.send(self.channel, RunBatch(0, placed, self._inputs.capacity_bytes, 1, number=rows))
        return await receive(self.channel, messages.parse_worker_message, PATIENCE_S)

    def close(self) -> None:
        self.channel.close()
        self._inputs.close()
        self._outputs.close()


def driver_at(control: socket.socket, *nodes: Node) -> Driver:
    """One that has been connected to a cluster of these nodes."""
    control.setblocking(False)
    driver = Driver(control, "", ALL)
    driver._reservations = NothingReserved()  # type: ignore[assignment]
    driver._cluster = Cluster("", BuildModels((LARGE,), "cpu", 0.0), driver._node_lost, driver._tell)
    driver._cluster.nodes = {node.id: node for node in nodes}
    return driver


@asynccontextmanager
async def one_worker() -> AsyncIterator[OneWorker]:
    """On the only node, once it is ready."""
    agent = NodeAgent()
    agent._zygote = ZygoteHandle([LARGE], "cpu", launch_here, PATIENCE_S, lambda _: None)
    agent._secret = SECRET
    await agent._zygote.start()
    server = await asyncio.start_server(agent._connected, HOST, 0)
    address = link.AgentAddress(HOST, server.sockets[0].getsockname()[1], SECRET)
    ours, theirs = socket_pair()
    driver = driver_at(theirs, Node("1", "the node", 2.0, address=address, serves=True))
    worker = OneWorker(driver)
    try:
        ready = await receive(worker.channel, messages.parse_worker_start, PATIENCE_S)
        assert isinstance(ready, WorkerReady), ready
        yield worker
    finally:
        for remote in list(driver._workers.values()):
            driver._close(remote)
        worker.close()
        server.close()
        await server.wait_closed()
        await agent._zygote.close()
        ours.close()
        theirs.close()


def test_what_is_too_large_to_travel_is_refused_and_costs_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_DATA_BYTES", MIB)

    async def scenario() -> None:
        async with one_worker() as worker:
            for rows, mib, said in (
                (
                    1,
                    1,
                    f"the outputs of a batch have {MIB + 4} bytes, and a node takes and gives at most {MIB};",
                ),
                (
                    MIB,
                    0,
                    f"the inputs of a batch have {8 * MIB} bytes, and a node takes and gives at most {MIB};",
                ),
            ):
                refused = await worker.run(rows, mib)
                assert isinstance(refused, BatchError), refused
                assert refused.error.startswith(said)
                assert refused.number == rows
                answered = await worker.run(2, 0)
                assert isinstance(answered, BatchOutputs), answered

    asyncio.run(scenario())


def test_thousands_of_nodes_are_told_in_messages_that_can_be_read() -> None:
    nodes = [Node(str(i), f"a-node-with-a-name-of-usual-length-{i}", 64.0, serves=True) for i in range(5000)]

    async def scenario() -> list[ClusterReport]:
        ours, theirs = socket_pair()
        with ours, theirs:
            driver_at(theirs, *nodes)._told()
            told: list[ClusterReport] = []
            while not told or told[-1].goes_on:
                part = await receive(ours, messages.parse_zygote_answer, PATIENCE_S)
                assert isinstance(part, ClusterReport), part
                told.append(part)
            return told

    told = asyncio.run(scenario())
    assert [use.name for part in told for use in part.nodes] == [node.name for node in nodes]
