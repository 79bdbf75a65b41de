"""The front's ends of a zygote and of the workers that it forks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from serving_adapter.messages import socket_pair
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.fault_file import Delay
from serving_adapter.server.workers.health import Health
from serving_adapter.server.workers.launching import Launch, ZygoteProcess
from serving_adapter.server.workers.messages import (
    BatchReply,
    BuildError,
    BuildModels,
    ForkWorker,
    ModelDescription,
    ModelReference,
    SignalWorker,
    WorkerSignal,
)

START_TIMEOUT_S = 120.0
FORK_TIMEOUT_S = 60.0
END_TIMEOUT_S = 5.0

M = TypeVar("M")


class ModelFailed(Exception):
    """The model cannot be served; the text is one sentence for the user."""


class Job(Protocol):
    """A batch on a worker, and who is told what becomes of it."""

    @property
    def dispatched_ns(self) -> int: ...

    def worker_answered(self, worker: WorkerHandle, reply: BatchReply) -> None:
        """The worker is through with the batch; its output arena keeps the outputs until the next one."""

    def worker_died(self) -> None:
        """The worker ended, by itself or by a signal, before it answered."""

    def handed_back(self) -> None:
        """The worker is not needed any more and was ended before it answered."""


class WorkerHandle:
    """The front's end of one worker process; workers of one `kind` differ in nothing."""

    def __init__(self, channel: socket.socket, inputs: Arena, outputs: Arena, kind: tuple[int, ...]) -> None:
        self.channel, self.inputs, self.outputs, self.kind = channel, inputs, outputs, kind
        self.pid = 0
        self.job: Job | None = None  # the batch it holds
        self.retired = False
        self.health = Health()
        self.slow: Delay | None = None  # extra time of its batches: an injected fault

    def close(self) -> None:
        """Closing the channel is what tells a worker to end."""
        self.channel.close()
        self.inputs.close()
        self.outputs.close()


class ZygoteHandle:
    """The front's end of a zygote, which builds the given models and forks workers from itself."""

    def __init__(self, models: Sequence[ModelReference], device: str, launch: Launch) -> None:
        self._order, self._launch = BuildModels(tuple(models), device), launch
        self._process: ZygoteProcess | None = None
        self.pid = 0
        self.is_gone = False

    async def start(self, on_end: Callable[[], None]) -> ModelDescription:
        """Starts the process and has it build the models; returns the description of the first one.

        `on_end` is called on the event loop if the process ends before `close`.
        """
        ours, theirs = socket_pair()
        self._process = await self._launch(theirs)
        theirs.close()
        self._control, self.is_gone = ours, False
        self._control.setblocking(False)
        self.pid = self._process.pid
        messages.send(self._control, self._order)
        reply = await _receive(self._control, messages.parse_build_reply, START_TIMEOUT_S)
        if reply is None or isinstance(reply, BuildError):
            await self.close()
            raise ModelFailed(reply.error if reply else "the process that builds it ended or hung")
        asyncio.get_running_loop().add_reader(self._control, self._ended, on_end)
        return reply

    def _ended(self, on_end: Callable[[], None]) -> None:
        """A zygote says nothing once it serves, so a readable socket means that it is gone."""
        asyncio.get_running_loop().remove_reader(self._control)
        self.is_gone = True
        on_end()

    async def fork(self, order: ForkWorker, kind: tuple[int, ...]) -> WorkerHandle:
        """A new worker that has warmed up; ModelFailed if it ended or hung before."""
        ours, theirs = socket_pair()
        ours.setblocking(False)
        inputs, outputs = Arena.create("rrl-inputs"), Arena.create("rrl-outputs")
        worker = WorkerHandle(ours, inputs, outputs, kind)
        try:
            messages.send(self._control, order, (theirs.fileno(), inputs.fd, outputs.fd))
            theirs.close()
            ready = await _receive(ours, messages.parse_worker_start, FORK_TIMEOUT_S)
        except OSError:
            ready = None
        except BaseException:
            theirs.close()
            worker.close()
            raise
        if ready is None or isinstance(ready, BuildError):
            theirs.close()
            worker.close()
            raise ModelFailed("it ended while it warmed up" if ready is None else ready.error)
        worker.pid = ready.pid
        return worker

    def signal(self, signal: WorkerSignal, worker: WorkerHandle) -> None:
        """Signals a worker by way of the zygote, which knows which processes are its own."""
        with contextlib.suppress(OSError):
            messages.send(self._control, SignalWorker(signal, worker.pid))

    async def close(self) -> None:
        """Closing the control socket is what tells the zygote to end."""
        if self._process is None:  # never started
            return
        if self._control.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


async def _receive(sock: socket.socket, parse: Callable[[messages.Wire], M], timeout_s: float) -> M | None:
    """The next message of a socket that has no reader yet; None if it closed or stayed silent."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, lambda: None if readable.done() else readable.set_result(None))
    try:
        await asyncio.wait_for(readable, timeout_s)
        return messages.receive(sock, parse)
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(sock)
