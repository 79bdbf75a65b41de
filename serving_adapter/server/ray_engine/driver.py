"""The driver: what the front takes for a zygote, and what has its batches run on the nodes of a cluster.

    front --RunBatch--> driver --RunBatch, inputs--> agent --RunBatch--> worker

Ray starts the agents, watches them and ends them. Batches travel beside it, over the connections of `link`.
The front's arenas end here. The driver copies a batch's inputs out of the one, its outputs into the other.

A unit is one worker for the front. The driver has an agent fork each member, on nodes of their own, and ends
all of them when one is gone.
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
from dataclasses import dataclass, field, replace

from serving_adapter.messages import receive_with_descriptors
from serving_adapter.own_process import end_with_parent
from serving_adapter.ray_connection import ClusterError, connect
from serving_adapter.server.kept_tasks import KeptTasks
from serving_adapter.server.ray_engine import link
from serving_adapter.server.ray_engine.agent import used_bytes
from serving_adapter.server.ray_engine.cluster import Cluster, Node
from serving_adapter.server.ray_engine.placing import Unplaceable
from serving_adapter.server.ray_engine.reserving import Reservations
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, end_of
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
from serving_adapter.server.workers.parallelism import UnitMember
from serving_adapter.server.workers.share import Share
from serving_adapter.standard_streams import ERROR, keep_standard_streams

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
NODE_ENDS_WITHIN_S = 0.1  # after a member of a unit whose node took another member with it
TELL_AFTER_S = 0.05  # what changed on many nodes at once is told at once
FIRST = 0  # of the members of a unit; a worker that is none has this one only
FIRST_NUMBER = 1 << 22
"""Of a worker. Its process has a number on its node, which may be anybody's here; none is this large."""


@dataclass(eq=False)
class RemoteWorker:
    """A worker on a node, or a unit on several, and the front's end of it: a channel and two arenas."""

    number: int
    nodes: tuple[Node, ...]  # the first member's first
    channel: socket.socket
    inputs: Arena
    outputs: Arena
    links: dict[int, asyncio.StreamWriter] = field(default_factory=dict)  # to the agents, by member
    ready: set[int] = field(default_factory=set)  # members that are
    asked_number: int = 0  # of the batch that it has, as the front counts

    @property
    def link(self) -> asyncio.StreamWriter | None:
        """To the agent of the member that gets the batches."""
        return self.links.get(FIRST)

    @property
    def where(self) -> str:
        return ", ".join(node.name for node in self.nodes)

    def close_links(self) -> None:
        for writer in self.links.values():
            writer.close()


class Driver:
    """Answers the front's orders at the control channel, and its batches at each worker's."""

    def __init__(self, control: socket.socket, address: str, share: Share) -> None:
        self._control, self._address, self._share = control, address, share
        self._workers: dict[int, RemoteWorker] = {}
        self._reservations = Reservations()
        self._numbers = itertools.count(FIRST_NUMBER)
        self._tasks = KeptTasks()
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
            self._cluster = Cluster(self._address, order, self._node_lost, self._tell, self._share)
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
            nodes = self._cluster.place(order)
        except Unplaceable as error:
            for descriptor in descriptors:
                os.close(descriptor)
            self._say(Forked(0, str(error)))
            return
        channel_fd, input_fd, output_fd = descriptors
        channel = socket.socket(fileno=channel_fd)
        channel.setblocking(False)
        worker = RemoteWorker(next(self._numbers), nodes, channel, Arena(input_fd), Arena(output_fd))
        self._workers[worker.number] = worker
        for node in nodes:
            node.workers[worker.number] = order.placement
        self._reservations.reserve(worker.number, [node.id for node in nodes])
        asyncio.get_running_loop().add_reader(channel, self._asked, worker)
        first, *others = (node.name for node in nodes)
        self._say(Forked(worker.number, node=first, more_nodes=tuple(others)))
        self._tell()
        self._tasks.start(self._attend(worker, order))

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
        """Has agents fork a worker, and passes on what it answers until it is gone, or a node of it."""
        try:
            if len(worker.nodes) == 1:
                lost = await self._connect(worker, FIRST, order)
            else:
                lost = await self._unite(worker, order)
        except Exception:  # The front has another worker run the batch.
            log.exception("worker %d on node %s is given up", worker.number, worker.where)
            lost = None
        worker.close_links()
        if worker.number not in self._workers:  # the front needed it no more
            return
        if lost is None:
            self._close(worker)
        else:
            self._cluster.lose(lost)

    async def _unite(self, worker: RemoteWorker, order: ForkWorker) -> Node | None:
        """Has an agent fork each member of a unit; returns once one is over, and its node if that is gone."""
        hosts = [_address(node).host for node in worker.nodes]
        meeting: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def member(rank: int) -> Node | None:
            port = await meeting if rank != FIRST else 0  # of its agent's choice
            told = replace(order, member=UnitMember(rank, len(hosts), hosts[rank], hosts[FIRST], port))
            return await self._connect(worker, rank, told, meeting)

        members = [asyncio.create_task(member(rank)) for rank in range(len(hosts))]
        try:
            over, others = await asyncio.wait(members, return_when=asyncio.FIRST_COMPLETED)
            if others and _lost(over) is None:
                # It may have ended because another one's node did, which is known in an instant then.
                over |= (await asyncio.wait(others, timeout=NODE_ENDS_WITHIN_S))[0]
            return _lost(over)
        finally:
            for task in members:
                task.cancel()

    async def _connect(
        self, worker: RemoteWorker, rank: int, order: ForkWorker, meeting: asyncio.Future[int] | None = None
    ) -> Node | None:
        """Returns once the worker, or this member of it, is over; its node if that is gone.

        The first member tells `meeting` at which port it waits for the others.
        """
        node = worker.nodes[rank]
        where = _address(node)
        opening = asyncio.open_connection(where.host, where.port, limit=link.MOST_AT_ONCE_BYTES)
        try:
            reader, writer = await asyncio.wait_for(opening, CONNECT_TIMEOUT_S)
        except OSError as error:  # A time-out is one.
            log.warning(
                "the agent on node %s takes no connection at %s:%d: %s",
                node.name,
                where.host,
                where.port,
                error or type(error).__name__,
            )
            return node
        worker.links[rank] = writer
        if worker.number not in self._workers:  # meanwhile the front needs it no more
            return None
        link.send(writer, link.Hello(where.secret, order))
        started = await link.receive(reader)
        if meeting is not None and started is not None and "meeting_port" in started[0]:
            meeting.set_result(started[0]["meeting_port"])
            started = await link.receive(reader)
        if started is None:
            return node
        start = messages.parse_worker_start(started[0])
        if isinstance(start, BuildError):
            self._send(worker, start)
            return None
        node.was_reached = True
        worker.ready.add(rank)
        if len(worker.ready) == len(worker.nodes):
            self._send(worker, WorkerReady(worker.number))
        while (got := await link.receive(reader)) is not None:
            wire, outputs = got
            if "ended" in wire:
                return None
            if worker.number in self._workers:
                self._pass_on(worker, messages.parse_batch_reply(wire), outputs)
        return node

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
        if (refused := link.refusal("inputs", end_of(order.inputs))) is not None:
            self._send(worker, replace(refused, number=order.number))
            return
        worker.asked_number = order.number
        worker.inputs.ensure(order.capacity_bytes)
        link.send(worker.link, order, used_bytes(worker.inputs, order.inputs))

    # --- ends --------------------------------------------------------------------------------------

    def _node_lost(self, node: Node) -> None:
        """The front hears it before any channel closes, so that it gives no batch to the others there."""
        lost = [self._workers[number] for number in sorted(node.workers) if number in self._workers]
        for worker in lost:
            self._send(worker, NodeEnded(node.name))
        for worker in lost:
            self._close(worker)

    def _close(self, worker: RemoteWorker) -> None:
        """The front sees it gone."""
        if self._workers.pop(worker.number, None) is None:
            return
        for node in worker.nodes:
            node.workers.pop(worker.number, None)
        self._reservations.free(worker.number)
        asyncio.get_running_loop().remove_reader(worker.channel)
        worker.channel.close()
        worker.close_links()
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
            for part in self._cluster.report().parts():
                self._say(part)

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


def _lost(over: set[asyncio.Task[Node | None]]) -> Node | None:
    """The node that is gone, if one took its member with it."""
    return next((node for task in over if (node := task.result()) is not None), None)


def _address(node: Node) -> link.AgentAddress:
    assert node.address is not None, "it serves"
    return node.address


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are the front's to handle
        signal.signal(signum, signal.SIG_IGN)
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    keep_standard_streams(prints_to=ERROR)
    log_to_standard_error()
    share = Share(int(sys.argv[4]), int(sys.argv[5]))
    serving = Driver(socket.socket(fileno=int(sys.argv[2])), sys.argv[3], share).serve()
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
