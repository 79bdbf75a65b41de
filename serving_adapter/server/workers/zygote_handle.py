"""The front's end of a zygote.

A zygote answers each order to fork at once, in the order in which they came: with the new worker's process,
or with why there is none. One that does not answer hangs. It is no part of what its workers do, so they serve
on while another one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from serving_adapter.messages import receive_with_descriptors, socket_pair
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.handles import ModelFailed, WorkerHandle, end_channel
from serving_adapter.server.workers.launching import Launch, ZygoteProcess
from serving_adapter.server.workers.messages import (
    BuildError,
    BuildModels,
    ClusterReport,
    Forked,
    ForkWorker,
    ModelDescription,
    ModelReference,
    NodeUse,
    SignalWorker,
    WorkerSignal,
)

log = logging.getLogger(__name__)

STORE_SHARE = 0.5  # of the time to start: weights that the store does not give by then are loaded privately
ANSWER_TIMEOUT_S = 10.0
"""A zygote that takes longer to fork hangs: it does nothing else."""
MAX_UNANSWERED = 64
"""Orders to fork, at once. The channel to the zygote has room for some three times as many."""

CLOSED = "the server is shutting down"

M = TypeVar("M")


class Child(NamedTuple):
    """A forked process; `pidfd` cannot come to mean another one, and is None where the kernel has none."""

    pid: int
    pidfd: int | None
    node: str = ""
    more_nodes: tuple[str, ...] = ()


class ZygoteHandle:
    """Starts one zygote, which builds the given models, and has it fork workers from itself."""

    def __init__(
        self,
        models: Sequence[ModelReference],
        device: str,
        launch: Launch,
        start_timeout_s: float,
        on_end: Callable[[ZygoteHandle], None],
    ) -> None:
        """`on_end` is called on the event loop if the process ends before `close`."""
        self._order, self._launch = BuildModels(tuple(models), device, STORE_SHARE * start_timeout_s), launch
        self.start_timeout_s, self._on_end = start_timeout_s, on_end
        self._process: ZygoteProcess | None = None
        self._control: socket.socket | None = None
        self._orders: deque[asyncio.Future[Child]] = deque()  # those that wait for their answer
        self._unanswered = asyncio.Semaphore(MAX_UNANSWERED)
        self._watching: asyncio.Task[None] | None = None
        self._is_building = self._is_closed = False
        self.pid = 0
        self.is_serving = False
        self.cluster: ClusterReport | None = None  # the latest; None at home
        self._nodes: tuple[NodeUse, ...] = ()  # those of the next one that were told already
        self._has_left_out = False  # something that could not be read

    async def start(self) -> ModelDescription:
        """Starts the process and has it build the models; returns the description of the first one."""
        try:
            self._is_building = True
            description = await self._build()
        except BaseException:
            self._is_building = False
            await self.close()
            raise
        self._is_building, self.is_serving = False, True
        asyncio.get_running_loop().add_reader(self._open_control, self._read_answer)
        return description

    async def _build(self) -> ModelDescription:
        try:
            self._control, theirs = socket_pair()
            with theirs:
                self._process = await self._launch(theirs)
            if self._is_closed:
                raise ModelFailed(CLOSED)
            self._watching = asyncio.create_task(self._end_channel_with(self._process, self._control))
            self._control.setblocking(False)
            self.pid = self._process.pid
            messages.send(self._control, self._order)
        except OSError as error:
            raise ModelFailed(
                f"the process that builds it cannot be started ({error.strerror or error})"
            ) from None
        try:
            reply = await receive(self._control, messages.parse_build_reply, self.start_timeout_s)
        except TimeoutError:
            raise ModelFailed(
                f"it was not built within {self.start_timeout_s:g} s; "
                "raise --start-timeout-s if it needs longer"
            ) from None
        if isinstance(reply, BuildError):
            raise ModelFailed(reply.error)
        if self._is_closed:
            raise ModelFailed(CLOSED)
        if reply is None:
            raise ModelFailed(f"the process that builds it {_ended(await self._process.wait())}")
        return reply

    @staticmethod
    async def _end_channel_with(process: ZygoteProcess, control: socket.socket) -> None:
        """When the process ends, so does its channel: what its model forked may hold that open."""
        await process.wait()
        end_channel(control)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, be it that nobody was told yet."""
        if self._control is None:
            return True
        try:
            return not self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    # --- workers -----------------------------------------------------------------------------------

    async def fork(
        self, order: ForkWorker, kind: tuple[object, ...], meeting: socket.socket | None = None
    ) -> WorkerHandle:
        """A new worker that has warmed up; ModelFailed, with nothing left behind, if there is none.

        At `meeting` the first member of a unit listens for the others.
        """
        async with self._unanswered:
            worker = await self._forked(order, kind, meeting)
        try:
            ready = await receive(worker.channel, messages.parse_worker_start, self.start_timeout_s)
        except TimeoutError:
            worker.close()
            raise ModelFailed(
                f"it was not ready within {self.start_timeout_s:g} s and was ended; "
                "raise --start-timeout-s if it needs longer"
            ) from None
        except BaseException:
            worker.close()
            raise
        if ready is None or isinstance(ready, BuildError):
            worker.close()
            raise ModelFailed(ready.error if ready else "it ended while it warmed up")
        return worker

    async def _forked(
        self, order: ForkWorker, kind: tuple[object, ...], meeting: socket.socket | None
    ) -> WorkerHandle:
        """A new worker that has yet to warm up."""
        worker, theirs = self._handle(kind)
        descriptors: tuple[int, ...] = (theirs.fileno(), worker.inputs.fd, worker.outputs.fd)
        if meeting is not None:
            descriptors = (*descriptors, meeting.fileno())
        try:
            with theirs:
                answer = self._send(order, descriptors)
            worker.belongs_to(*await self._answered(answer))
        except BaseException:
            worker.close()
            raise
        return worker

    def signal(self, what: WorkerSignal, pid: int) -> None:
        """Signals a worker by way of the zygote, which knows which processes are its own."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                messages.send(self._control, SignalWorker(what, pid))

    def _handle(self, kind: tuple[object, ...]) -> tuple[WorkerHandle, socket.socket]:
        """A worker to be, and the other end of its channel."""
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = socket_pair()
                undo.callback(ours.close)
                undo.callback(theirs.close)
                inputs = Arena.create("rrl-inputs")
                undo.callback(inputs.close)
                outputs = Arena.create("rrl-outputs")
            except OSError as error:
                raise ModelFailed(f"there is nothing to reach it by ({error.strerror or error})") from None
            undo.pop_all()
        ours.setblocking(False)
        return WorkerHandle(ours, inputs, outputs, kind, self), theirs

    def _send(self, order: ForkWorker, descriptors: tuple[int, ...]) -> asyncio.Future[Child]:
        if not self.is_serving:
            raise ModelFailed("the process that forks it is gone")
        try:
            messages.send(self._open_control, order, descriptors)
        except OSError as error:  # it ended in this instant, or reads nothing
            self.is_serving = False
            raise ModelFailed(f"the process that forks it takes no orders ({error.strerror})") from None
        answer: asyncio.Future[Child] = asyncio.get_running_loop().create_future()
        self._orders.append(answer)
        return answer

    async def _answered(self, answer: asyncio.Future[Child]) -> Child:
        try:
            return await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
        except TimeoutError:
            self.is_serving = False
            raise ModelFailed(
                f"the process that forks it (pid {self.pid}) has not answered for {ANSWER_TIMEOUT_S:g} s"
            ) from None

    def _read_answer(self) -> None:
        try:
            wire, descriptors = receive_with_descriptors(self._open_control)
        except BlockingIOError:
            return
        except ValueError as error:  # descriptors got lost, as this process has too many open
            if not self._orders:  # it is no answer
                self._leave_out(error)
                return
            wire, descriptors = Forked(0, "this server has too many files open").to_wire(), []
        if wire is None:
            self._gone()
            return
        forked = messages.parse_zygote_answer(wire)
        if isinstance(forked, ClusterReport):
            self._told_of(forked)
            return
        pidfd = descriptors[0] if descriptors else None
        child = Child(forked.pid, pidfd, forked.node, forked.more_nodes)
        answer = self._orders.popleft()
        if not answer.done() and not forked.error:
            answer.set_result(child)
        elif not answer.done():
            answer.set_exception(ModelFailed(forked.error))
        else:  # nobody waits for this worker any more
            self._end(child)

    def _told_of(self, part: ClusterReport) -> None:
        self._nodes += part.nodes
        if not part.goes_on:
            self.cluster, self._nodes = replace(part, nodes=self._nodes), ()

    def _leave_out(self, error: ValueError) -> None:
        if not self._has_left_out:
            log.warning("what the process that forks workers (pid %d) told is left out: %s", self.pid, error)
        self._has_left_out = True

    def _end(self, child: Child) -> None:
        if child.pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
            os.close(child.pidfd)
        elif child.pid:
            self.signal(WorkerSignal.KILL, child.pid)

    def _gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self._open_control)
        self.is_serving = False
        self._fail_orders()
        if not self._is_closed:
            self._on_end(self)

    def _fail_orders(self) -> None:
        for answer in self._orders:
            if not answer.done():
                answer.set_exception(ModelFailed("the process that forks it ended"))
        self._orders.clear()

    @property
    def _open_control(self) -> socket.socket:
        assert self._control is not None, "it was started"
        return self._control

    async def close(self) -> None:
        """Ends the process at once, and with it the workers that it has: it holds nothing to be saved."""
        self.is_serving, self._is_closed = False, True
        self._fail_orders()
        if self._control is not None:
            end_channel(self._control)  # whoever awaits its reply gets none
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        if self._control is not None and not self._is_building:
            asyncio.get_running_loop().remove_reader(self._control)
            self._control.close()
            self._control = None


async def receive(sock: socket.socket, parse: Callable[[messages.Wire], M], timeout_s: float) -> M | None:
    """The next message of a socket that has no reader yet; None if it closed.

    TimeoutError if it stays silent.
    """
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, lambda: None if readable.done() else readable.set_result(None))
    try:
        await asyncio.wait_for(readable, timeout_s)
        return messages.receive(sock, parse)
    finally:
        loop.remove_reader(sock)


def _ended(status: int) -> str:
    """How a process ended, after its name."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}, as by a lack of memory"
    return f"ended with status {status}"
