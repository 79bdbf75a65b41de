"""The driver: what the front takes for a zygote, and what has its batches run on the nodes of a cluster.

    front --RunBatch--> driver --RunBatch, inputs--> agent --RunBatch--> worker

Ray starts the agents, watches them and ends them. Batches travel beside it, over the connections of `link`.
The front's arenas end here. The driver copies a batch's inputs out of the one, its outputs into the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import sys
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from serving_adapter.messages import receive_with_descriptors
from serving_adapter.own_process import end_with_parent
from serving_adapter.ray_connection import ClusterError, connect
from serving_adapter.server.ray_engine import link
from serving_adapter.server.ray_engine.agent import used_bytes
from serving_adapter.server.ray_engine.cluster import Cluster, Node
from serving_adapter.server.ray_engine.placing import Unplaceable
from serving_adapter.server.ray_engine.reserving import Reservations
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.messages import (
    BatchOutputs,
    BatchReply,
    BuildError,
    BuildModels,
    Forked,
    ForkWorker,
    NodeEnded,
    RunBatch,
    SignalWorker,
    WorkerReady,
    WorkerSignal,
    parse_zygote_order,
)
from serving_adapter.standard_streams import ERROR, keep_standard_streams

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
TELL_AFTER_S = 0.05  # what changed on many nodes at once is told at once
FIRST_NUMBER = 1 << 22
"""Of a worker. Its process has a number on its node, which may be anybody's here; none is this large."""


@dataclass(eq=False)
class RemoteWorker:
    """A worker on a node, and the front's end of it: a channel and two arenas."""

    number: int
    node: Node
    channel: socket.socket
    inputs: Arena
    outputs: Arena
    link: asyncio.StreamWriter | None = None  # to the agent
    asked_number: int = 0  # of the batch that it has, as the front counts


class Driver:
    """Answers the front's orders at the control channel, and its batches at each worker's."""

    def __init__(self, control: socket.socket, address: str) -> None:
        self._control, self._address = control, address
        self._workers: dict[int, RemoteWorker] = {}
        self._reservations = Reservations()
        self._numbers = itertools.count(FIRST_NUMBER)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = asyncio.Event()
        self._is_described = self._will_tell = False
        self._unsaid: deque[messages.Message] = deque()  # to the front, whose channel is full

    async def serve(self) -> None:
        """Until the front is gone."""
        order = messages.receive(self._control, BuildModels.from_wire)
        if order is None:
            return
        try:
            connect("--address", self._address)
            for signum in (signal.SIGINT, signal.SIGTERM):  # Ray has its own handler; the front says when
                signal.signal(signum, signal.SIG_IGN)
            self._cluster = Cluster(self._address, order, self._node_lost, self._tell)
            description = await self._cluster.start()
        except (ClusterError, Unplaceable) as error:
            messages.send(self._control, BuildError(str(error)))
            return
        messages.send(self._control, description)
        self._is_described = True
        self._tell()
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._ordered)
        await self._is_over.wait()

    # --- orders ------------------------------------------------------------------------------------

    def _ordered(self) -> None:
        try:
            wire, descriptors = receive_with_descriptors(self._control)
        except BlockingIOError:
            return
        except ValueError as error:
            self._say(Forked(0, f"its order is incomplete: {error}"))
            return
        if wire is None:
            self._is_over.set()
            return
        match parse_zygote_order(wire):
            case ForkWorker() as order:
                self._fork(order, descriptors)
            case SignalWorker(what=what, pid=number):
                self._signal(number, what)

    def _fork(self, order: ForkWorker, descriptors: list[int]) -> None:
        """Answers at once with the worker's number and node. The worker itself says when it is ready."""
        try:
            node = self._cluster.place(order)
        except Unplaceable as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self._say(Forked(0, str(error)))
            return
        channel_fd, input_fd, output_fd = descriptors
        channel = socket.socket(fileno=channel_fd)
        channel.setblocking(False)
        worker = RemoteWorker(next(self._numbers), node, channel, Arena(input_fd), Arena(output_fd))
        self._workers[worker.number] = worker
        node.workers[worker.number] = order.placement
        self._reservations.reserve(worker.number, node.id)
        asyncio.get_running_loop().add_reader(channel, self._asked, worker)
        self._say(Forked(worker.number, node=node.name))
        self._tell()
        self._do(self._attend(worker, order))

    def _signal(self, number: int, what: WorkerSignal) -> None:
        worker = self._workers.get(number)
        if worker is None:
            return
        if what is WorkerSignal.KILL:
            self._close(worker)
        elif worker.link is not None:
            link.send(worker.link, SignalWorker(what, number))

    # --- one worker --------------------------------------------------------------------------------

    async def _attend(self, worker: RemoteWorker, order: ForkWorker) -> None:
        """Has an agent fork a worker, and passes on what it answers until it is gone, or its node."""
        try:
            is_over = await self._connect(worker, order)
        except Exception:  # The front has another worker run the batch.
            log.exception("worker %d on node %s is given up", worker.number, worker.node.name)
            is_over = True
        if worker.link is not None:
            worker.link.close()
        if worker.number not in self._workers:  # the front needed it no more
            return
        if is_over:
            self._close(worker)
        else:
            self._cluster.lose(worker.node)

    async def _connect(self, worker: RemoteWorker, order: ForkWorker) -> bool:
        """Returns once the worker is over; False if its node is gone."""
        where = worker.node.address
        assert where is not None, "its node serves"
        opening = asyncio.open_connection(where.host, where.port, limit=link.MOST_AT_ONCE_BYTES)
        try:
            reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        except OSError as error:  # A time-out is one.
            log.warning(
                "the agent on node %s takes no connection at %s:%d: %s",
                worker.node.name,
                where.host,
                where.port,
                error or type(error).__name__,
            )
            return False
        worker.link = writer
        if worker.number not in self._workers:  # meanwhile the front needs it no more
            return True
        link.send(writer, link.Hello(where.secret, order))
        started = await link.receive(reader)
        if started is None:
            return False
        start = messages.parse_worker_start(started[0])
        if isinstance(start, BuildError):
            self._send(worker, start)
            return True
        worker.node.was_reached = True
        self._send(worker, WorkerReady(worker.number))
        while (got := await link.receive(reader)) is not None:
            wire, outputs = got
            if "ended" in wire:
                return True
            if worker.number in self._workers:
                self._pass_on(worker, messages.parse_batch_reply(wire), outputs)
        return False

    def _pass_on(self, worker: RemoteWorker, reply: BatchReply, outputs: bytes) -> None:
        if isinstance(reply, BatchOutputs):
            worker.outputs.ensure_for_batch(len(outputs))
            worker.outputs.view[: len(outputs)] = outputs
            reply = replace(reply, capacity_bytes=worker.outputs.capacity_bytes)
        self._send(worker, replace(reply, number=worker.asked_number))

    def _asked(self, worker: RemoteWorker) -> None:
        """The front has a batch for a worker, or needs it no more."""
        try:
            order = messages.receive(worker.channel, RunBatch.from_wire)
        except BlockingIOError:
            return
        if order is None or worker.link is None:
            self._close(worker)
            return
        worker.asked_number = order.number
        worker.inputs.ensure(order.capacity_bytes)
        link.send(worker.link, order, used_bytes(worker.inputs, order.inputs))

    # --- ends --------------------------------------------------------------------------------------

    def _node_lost(self, node: Node) -> None:
        """The front hears it before any channel closes, so that it gives no batch to the others there."""
        lost = [self._workers[number] for number in sorted(node.workers) if number in self._workers]
        for worker in lost:
            self._send(worker, NodeEnded())
        for worker in lost:
            self._close(worker)

    def _close(self, worker: RemoteWorker) -> None:
        """The front sees it gone."""
        if self._workers.pop(worker.number, None) is None:
            return
        worker.node.workers.pop(worker.number, None)
        self._reservations.free(worker.number)
        asyncio.get_running_loop().remove_reader(worker.channel)
        worker.channel.close()
        if worker.link is not None:
            worker.link.close()
        worker.inputs.close()
        worker.outputs.close()
        self._tell()

    # --- to the front ------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Soon tells the front of the cluster as it is then."""
        if self._is_described and not self._will_tell:
            self._will_tell = True
            asyncio.get_running_loop().call_later(TELL_AFTER_S, self._told)

    def _told(self) -> None:
        self._will_tell = False
        if self._unsaid:
            self._tell()  # once there is room
        else:
            self._say(self._cluster.report())

    def _say(self, message: messages.Message) -> None:
        self._unsaid.append(message)
        self._say_what_fits()

    def _say_what_fits(self) -> None:
        loop = asyncio.get_running_loop()
        while self._unsaid:
            try:
                messages.send(self._control, self._unsaid[0])
            except BlockingIOError:
                loop.add_writer(self._control, self._say_what_fits)
                return
            except OSError:  # the front is gone
                self._unsaid.clear()
                break
            self._unsaid.popleft()
        loop.remove_writer(self._control)

    def _send(self, worker: RemoteWorker, message: messages.Message) -> None:
        with contextlib.suppress(OSError):
            messages.send(worker.channel, message)

    def _do(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are the front's to handle
        signal.signal(signum, signal.SIG_IGN)
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    keep_standard_streams(prints_to=ERROR)
    log_to_standard_error()
    serving = Driver(socket.socket(fileno=int(sys.argv[2])), sys.argv[3]).serve()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serving)
    else:
        uvloop.run(serving)
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
