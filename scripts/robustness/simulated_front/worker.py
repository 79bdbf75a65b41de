"""A worker that is no process: it runs one batch at a time, in drawn times, as its rows tell it to."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from scripts.robustness.simulated_front import checked_models
from scripts.robustness.simulated_front.fates import Deeds, Fates
from scripts.robustness.simulated_front.virtual_time import call_later
from serving_adapter.codecs import CODECS
from serving_adapter.server.statistics.model_statistics import ComputeTimes
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, place
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    BatchReply,
    ForkWorker,
    RunBatch,
    WorkerReady,
)

WARM_UP_S = 0.01
STRAGGLER_SHARE, STRAGGLER_FACTOR = 0.03, 20.0  # of batches, and how much longer they take


class Parent(Protocol):
    """The zygote of a worker."""

    references: list[str]
    """The models that its workers hold."""
    workers: list[SimulatedWorker]

    @property
    def busy_workers(self) -> int: ...


class SimulatedWorker:
    """Runs one batch at a time, in drawn times; rows may tell it to raise, to crash, to hang, to babble."""

    def __init__(
        self,
        zygote: Parent,
        fates: Fates,
        channel: socket.socket,
        inputs: Arena,
        outputs: Arena,
        threads: ForkWorker,
    ) -> None:
        self.zygote, self.threads = zygote, threads
        self._fates, self._channel, self._inputs, self._outputs = fates, channel, inputs, outputs
        self.pid = fates.next_pid()
        self.lives, self.is_stopped = True, False
        self.holds: list[int] | None = None  # the numbers of the requests in its batch
        self.holds_of = ""  # which model runs them
        self._when_resumed: list[Callable[[], None]] = []
        channel.setblocking(False)

    # --- life ------------------------------------------------------------------------------------

    def warm_up(self, deed: str) -> None:
        self._fates.watch.note("forks", self.pid, deed)
        if deed in (Deeds.DIES, Deeds.FAILS):
            call_later(self._fates.duration_s(WARM_UP_S, deed), self.end)
        elif deed != Deeds.HANGS:  # one that hangs while it starts is ended by a signal only
            call_later(self._fates.duration_s(WARM_UP_S, deed), self._do, self._ready)

    def _ready(self) -> None:
        self._say(WorkerReady(self.pid))
        asyncio.get_running_loop().add_reader(self._channel, self._told)

    def end(self) -> None:
        if not self.lives:
            return
        self.lives = False
        self._fates.watch.worker_ended(self, [*(self.holds or []), *self._unread()])
        self.zygote.workers.remove(self)
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._inputs.close()
        self._outputs.close()

    def _unread(self) -> list[int]:
        """The requests of a batch that reaches it in the moment in which it ends."""
        try:
            order = messages.receive(self._channel, RunBatch.from_wire)
        except BlockingIOError:
            return []
        if order is None or self.zygote.references[order.model] == checked_models.PARITY:
            return []
        self._inputs.ensure(order.capacity_bytes)
        return checked_models.numbers_of(self._inputs.array(order.inputs[0]))

    def stop(self) -> None:
        self.is_stopped = self.lives

    def resume(self) -> None:
        self.is_stopped = False
        waiting, self._when_resumed = self._when_resumed, []
        for do in waiting:
            self._do(do)

    def _do(self, do: Callable[[], None]) -> None:
        """Does it now, or once the process is resumed; never if it has ended."""
        if self.is_stopped:
            self._when_resumed.append(do)
        elif self.lives:
            do()

    # --- batches ---------------------------------------------------------------------------------

    def _told(self) -> None:
        order = messages.receive(self._channel, RunBatch.from_wire)
        if order is None:
            self.end()
            return
        self._inputs.ensure(order.capacity_bytes)
        x = self._inputs.array(order.inputs[0])
        self.holds_of = self.zygote.references[order.model]
        self.holds = [] if self._is_coded else checked_models.numbers_of(x)
        self._fates.watch.batch_reached(self, order, self.holds)
        if checked_models.HANGS in self._deeds(x):
            return
        service_s = 1e-3 * order.slow_ms + self._fates.duration_s(self._fates.mean_service_s)
        is_straggler = self._fates.draw.random() < STRAGGLER_SHARE
        call_later(service_s * (STRAGGLER_FACTOR if is_straggler else 1), self._do, lambda: self._run(order))

    def _run(self, order: RunBatch) -> None:
        arrays = [self._inputs.array(placed) for placed in order.inputs]
        x = arrays[0]
        if not all(checked_models.are_twins(x, twin) for twin in arrays[1:]):
            self._fates.watch.broken(f"the inputs of {self.holds} do not belong together")
        deeds = self._deeds(x)
        if not self._is_coded and checked_models.numbers_of(x) != self.holds:
            self._fates.watch.broken(f"the batch {self.holds} was overwritten while a worker ran it")
        if checked_models.CRASHES in deeds:
            self.end()
            return
        held, self.holds = self.holds, None
        if checked_models.RAISES in deeds:
            reply: BatchReply = BatchError(f"the model raised ValueError: {checked_models.RAISED}")
        elif checked_models.ANSWERS_NONSENSE in deeds:
            reply = self._nonsense(x)
        else:
            reply = self._outputs_of(checked_models.answer(self.holds_of, x))
        self._answer(held, order, reply, checked_models.ANSWERS_TWICE in deeds)

    @property
    def _is_coded(self) -> bool:
        return self.holds_of == checked_models.PARITY

    def _deeds(self, x: np.ndarray) -> set[float]:
        """What the rows of a batch do to the worker; those of a coded one are sums and do nothing."""
        return set() if self._is_coded else set(x[:, 1].tolist())

    def _outputs_of(self, arrays: dict[str, np.ndarray]) -> BatchOutputs:
        specs = {spec.name: spec.datatype for spec in self._fates.model.outputs}
        tensors = []
        for name, array in arrays.items():
            datatype = specs.get(name, "FP32")
            tensors.append((name, datatype, array.shape, CODECS[datatype].size_bytes(array.shape)))
        placed, needed_bytes = place(tensors)
        self._outputs.ensure(needed_bytes)
        for where, array in zip(placed, arrays.values(), strict=True):
            self._outputs.array(where)[...] = array
        return BatchOutputs(placed, self._outputs.capacity_bytes, ComputeTimes(1000, 2000, 3000))

    def _nonsense(self, x: np.ndarray) -> BatchOutputs:
        """An output of a name that nobody knows, or of tensors beyond the end of the arena."""
        reply = self._outputs_of(checked_models.answer(self.holds_of, x) | {"unknown": x})
        if self._fates.draw.random() < 0.5:
            beyond = [place._replace(offset=self._outputs.capacity_bytes) for place in reply.outputs]
            return BatchOutputs(beyond, reply.capacity_bytes, reply.compute)
        return reply

    def _answer(self, held: list[int] | None, order: RunBatch, reply: BatchReply, twice: bool) -> None:
        self._fates.watch.batch_left(self, held or [])
        reply = replace(reply, number=order.number)
        self._say(reply)
        if twice:
            again_s = self._fates.duration_s(self._fates.mean_service_s)
            call_later(again_s, self._do, lambda: self._say(reply))

    def _say(self, message: messages.Message) -> None:
        with contextlib.suppress(OSError):
            messages.send(self._channel, message)
