"""Zygotes that are no processes: they speak the real messages over real sockets, and fork simulated workers.

They can be killed, stopped and resumed at any moment, and a fault plan says what goes wrong with the next
builds and forks. A killed zygote takes its workers with it, as the kernel does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from scripts.robustness.simulated_front.fates import Deeds, Fates
from scripts.robustness.simulated_front.virtual_time import call_later
from scripts.robustness.simulated_front.worker import SimulatedWorker
from serving_adapter import messages as packets
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.messages import (
    BuildError,
    BuildModels,
    Forked,
    ForkWorker,
    ModelDescription,
    SignalWorker,
    WorkerSignal,
    parse_zygote_order,
)

BUILD_S = 0.05
LAUNCH_S = 0.003


class SimulatedMachine:
    """All processes of one simulation: its `launch` stands where the starting of a process does."""

    def __init__(self, fates: Fates) -> None:
        self.fates = fates
        self.zygotes: list[SimulatedZygote] = []

    async def launch(self, channel: socket.socket) -> SimulatedZygote:
        await asyncio.sleep(self.fates.duration_s(LAUNCH_S))
        zygote = SimulatedZygote(self.fates, channel.dup())
        self.zygotes.append(zygote)
        return zygote

    @property
    def workers(self) -> list[SimulatedWorker]:
        return [worker for zygote in self.zygotes for worker in zygote.workers]


class SimulatedZygote:
    """Builds the models, then forks and signals workers as it is told to."""

    def __init__(self, fates: Fates, channel: socket.socket) -> None:
        self.fates, self._channel, self.pid = fates, channel, fates.next_pid()
        self.workers: list[SimulatedWorker] = []
        self.references: list[str] = []
        self.is_stopped = False
        self._is_building = False
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._listen()

    @property
    def lives(self) -> bool:
        return not self._ended.done()

    @property
    def busy_workers(self) -> int:
        return sum(worker.holds is not None for worker in self.workers)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """It ends as by SIGKILL, and the kernel ends its workers."""
        if not self.lives:
            return
        self.fates.watch.note("zygote ends", self.pid)
        self._ignore()
        self._channel.close()
        self._ended.set_result(-9)
        for worker in list(self.workers):
            worker.end()

    def stop(self) -> None:
        if self.lives and not self.is_stopped:
            self.is_stopped = True
            self._ignore()

    def resume(self) -> None:
        if self.lives and self.is_stopped:
            self.is_stopped = False
            if not self._is_building:
                self._listen()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._channel, self._told)

    def _ignore(self) -> None:
        asyncio.get_running_loop().remove_reader(self._channel)

    def _told(self) -> None:
        wire, descriptors = packets.receive_with_descriptors(self._channel)
        if wire is None:
            self.kill()
        elif "models" in wire:
            self._build(BuildModels.from_wire(wire))
        else:
            match parse_zygote_order(wire):
                case ForkWorker() as threads:
                    self._fork(threads, descriptors)
                case SignalWorker(what=signal, pid=pid):
                    self._signal(signal, pid)

    def _build(self, order: BuildModels) -> None:
        self.references = [model.reference for model in order.models]
        self._is_building = True
        self._ignore()
        deed = self.fates.faults.next_build()
        self.fates.watch.note("builds", self.pid, deed)
        if deed == Deeds.HANGS:
            return
        call_later(self.fates.duration_s(BUILD_S, deed), self._built, deed)

    def _built(self, deed: str) -> None:
        if not self.lives:
            return
        if self.is_stopped:
            call_later(0.1, self._built, deed)
            return
        self._is_building = False
        self._listen()
        model = self.fates.model
        if deed == Deeds.DIES:
            self.kill()
        elif deed == Deeds.FAILS:
            self._say(BuildError("there was no memory to build it in"))
            self.kill()
        else:
            self._say(ModelDescription(model.inputs, model.outputs, self.fates.has_parallel_branches))

    def _say(self, message: messages.Message) -> None:
        with contextlib.suppress(OSError):
            messages.send(self._channel, message)

    def _fork(self, threads: ForkWorker, descriptors: list[int]) -> None:
        channel, inputs, outputs = descriptors
        worker = SimulatedWorker(
            self, self.fates, socket.socket(fileno=channel), Arena(inputs), Arena(outputs), threads
        )
        self.workers.append(worker)
        self._say(Forked(worker.pid))
        worker.warm_up(self.fates.faults.next_fork())

    def _signal(self, signal: WorkerSignal, pid: int) -> None:
        for worker in list(self.workers):
            if worker.pid == pid:
                {
                    WorkerSignal.KILL: worker.end,
                    WorkerSignal.STOP: worker.stop,
                    WorkerSignal.RESUME: worker.resume,
                }[signal]()
