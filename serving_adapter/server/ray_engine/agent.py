"""What a node of the cluster does: a zygote of its own forks the workers, which the driver sends batches to.

An agent is an actor of Ray. The driver has one on each node, and it ends with the driver. Weights lie in the
model store of the node, which its zygote opens as at home.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import subprocess
import time
from dataclasses import replace
from typing import Any, NamedTuple

import psutil

from serving_adapter import own_process
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE, OFF
from serving_adapter.server.ray_engine.link import (
    MOST_AT_ONCE_BYTES,
    AgentAddress,
    Ended,
    Hello,
    Meeting,
    receive,
    refusal,
    send,
)
from serving_adapter.server.ray_engine.versions import Versions, difference, versions
from serving_adapter.server.workers.arena import Arena, Placed, end_of
from serving_adapter.server.workers.handles import ModelFailed, WorkerHandle
from serving_adapter.server.workers.launching import ENVIRONMENT
from serving_adapter.server.workers.messages import (
    BatchError,
    BuildError,
    BuildModels,
    BuildReply,
    ForkWorker,
    RunBatch,
    WorkerReady,
    WorkerSignal,
)
from serving_adapter.server.workers.zygote_handle import ZygoteHandle

log = logging.getLogger(__name__)

ZYGOTE_ENDED = 1  # the exit status
STORE_TIMEOUT_S = 0.5
HELLO_TIMEOUT_S = 10.0
SET_BY_RAY = ("OMP_NUM_THREADS",)  # which is a knob here


class AgentStart(NamedTuple):
    """What an agent says once it has tried to build the models."""

    reply: BuildReply
    address: AgentAddress | None = None  # where it serves
    node_began_s: float = 0.0  # when its node joined the cluster, by the clock there


class AgentReport(NamedTuple):
    """What an agent tells again and again."""

    cpu_s: float  # processor time of the agent, the zygote and its workers
    store_hits: int
    store_misses: int
    niceness: int  # of the agent, its zygote and its workers, as Ray starts them


class NodeAgent:
    """Forks a worker on its node for each connection of the driver, and has it run the batches that come."""

    def __init__(self) -> None:
        self._workers: set[WorkerHandle] = set()
        self._store: Any = None

    async def start(
        self, order: BuildModels, start_timeout_s: float, uses_store: bool, of_front: Versions
    ) -> AgentStart:
        """Builds the models; describes the first one, or says why there is none."""
        if other := difference(of_front, versions()):
            return AgentStart(BuildError(other))
        if not uses_store:
            os.environ[FOLDER_VARIABLE] = OFF
        self._zygote = ZygoteHandle(
            order.models, order.device, launch_here, start_timeout_s, lambda _: os._exit(ZYGOTE_ENDED)
        )
        try:
            description = await self._zygote.start()
            return AgentStart(description, await self._listen(), _node_began_s())
        except ModelFailed as error:
            return AgentStart(BuildError(str(error)))
        except OSError as error:
            return AgentStart(BuildError(f"the agent cannot listen on its node ({error.strerror or error})"))

    async def report(self) -> AgentReport:
        hits, misses = await asyncio.to_thread(self._store_counts)
        return AgentReport(self._cpu_s(), hits, misses, os.nice(0))

    async def _listen(self) -> AgentAddress:
        import ray

        host = ray.util.get_node_ip_address()
        self._secret = secrets.token_hex(32)
        self._server = await asyncio.start_server(self._connected, host, 0, limit=MOST_AT_ONCE_BYTES)
        return AgentAddress(host, self._server.sockets[0].getsockname()[1], self._secret)

    # --- one connection ----------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            order = await self._order(reader)
            if order is not None:
                await self._serve(order, reader, writer)
        finally:
            writer.close()

    async def _order(self, reader: asyncio.StreamReader) -> ForkWorker | None:
        """What the driver asks for; None for anybody else."""
        try:
            hello = await asyncio.wait_for(receive(reader, most_data_bytes=0), HELLO_TIMEOUT_S)
        except TimeoutError:
            return None
        return None if hello is None else Hello.order_of(hello[0], self._secret)

    async def _serve(
        self, order: ForkWorker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            worker = await self._fork(order, writer)
        except ModelFailed as error:
            send(writer, BuildError(str(error)))
            return
        self._workers.add(worker)
        loop = asyncio.get_running_loop()
        loop.add_reader(worker.channel, self._answered, worker, writer)
        try:
            send(writer, WorkerReady(worker.pid))
            while (got := await receive(reader)) is not None and worker in self._workers:
                wire, inputs = got
                if "signal" in wire:
                    worker.signal(WorkerSignal(wire["signal"]))
                else:
                    _hand(worker, RunBatch.from_wire(wire), inputs)
        except (OSError, ValueError, KeyError) as error:  # no memory for it, or another version's words
            log.error("a worker is ended, as it cannot be given a batch: %s", error)
            send(writer, Ended())
        finally:
            self._forget(worker)

    async def _fork(self, order: ForkWorker, writer: asyncio.StreamWriter) -> WorkerHandle:
        """A new worker; the first member of a unit is told where the others will find it."""
        member = order.member
        if member is None or member.rank:
            return await self._zygote.fork(order, ())
        try:
            meeting = socket.create_server((member.host, 0))
        except OSError as error:
            raise ModelFailed(f"its unit cannot meet on {member.host} ({error.strerror or error})") from None
        with meeting:
            port = meeting.getsockname()[1]
            send(writer, Meeting(port))
            told = replace(order, member=member._replace(meeting_port=port))
            return await self._zygote.fork(told, (), meeting)

    def _answered(self, worker: WorkerHandle, writer: asyncio.StreamWriter) -> None:
        reply = worker.reply()
        if reply is None:
            self._forget(worker)
            send(writer, Ended())
            writer.close()
        elif isinstance(reply, BatchError):
            send(writer, reply)
        elif (refused := refusal("outputs", end_of(reply.outputs))) is not None:
            send(writer, refused)
        else:
            send(writer, reply, used_bytes(worker.outputs, reply.outputs))

    def _forget(self, worker: WorkerHandle) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            asyncio.get_running_loop().remove_reader(worker.channel)
            worker.close()

    # --- what it reports ---------------------------------------------------------------------------

    def _cpu_s(self) -> float:
        total = time.process_time()
        for pid in (self._zygote.pid, *(worker.pid for worker in self._workers)):
            with contextlib.suppress(psutil.Error):
                times = psutil.Process(pid).cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def _store_counts(self) -> tuple[int, int]:
        """Hits and misses of the node's model store; zeros where it is off or does not answer."""
        from serving_adapter.model_store.clients.client import Client
        from serving_adapter.model_store.endpoint import switched_off
        from serving_adapter.model_store.errors import StoreError
        from serving_adapter.model_store.protocol import model_store_pb2 as pb

        if switched_off():
            return 0, 0
        try:
            if self._store is None:
                self._store = Client(starts_store=False)
            tiers = self._store.call("Stats", pb.Empty(), STORE_TIMEOUT_S).tiers
        except StoreError:
            return 0, 0
        return sum(tier.hits for tier in tiers), sum(tier.misses for tier in tiers)


def _node_began_s() -> float:
    """When the process was started that is the node for Ray, and the parent of all agents there."""
    try:
        return psutil.Process(os.getppid()).create_time()
    except psutil.Error:  # the system hides it: such nodes are ordered by their names for Ray
        return 0.0


def _hand(worker: WorkerHandle, order: RunBatch, inputs: bytes) -> None:
    worker.inputs.ensure_for_batch(len(inputs))
    worker.inputs.view[: len(inputs)] = inputs
    worker.tenant = order.tenant
    with contextlib.suppress(OSError):  # it ended in this instant, as its reader will tell
        worker.hand(order.inputs, order.intra_op_threads, order.model, order.slow_ms)


def used_bytes(arena: Arena, placed: list[Placed]) -> bytes:
    """All that tensors take in an arena, from its beginning on."""
    return bytes(arena.view[: end_of(placed)])


class ZygoteOnNode:
    """A zygote started by an agent, in whose process no child watcher of asyncio may run."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process, self.pid = process, process.pid
        self._ended = asyncio.Event()
        self._pidfd = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._has_ended)

    def _has_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return self._process.wait()

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)


async def launch_here(channel: socket.socket) -> ZygoteOnNode:
    """Starts a zygote, which ends with this process."""
    command = own_process.command(
        "serving_adapter.server.workers.zygote", str(os.getpid()), str(channel.fileno())
    )
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY_RAY}
    return ZygoteOnNode(
        subprocess.Popen(
            command,
            pass_fds=[channel.fileno()],
            env=ENVIRONMENT | environment,
            stdin=subprocess.DEVNULL,
        )
    )
