"""The front's end of a worker, and the batch that it holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from typing import Protocol

from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, Memory, Placed
from serving_adapter.server.workers.fault_file import Delay
from serving_adapter.server.workers.health import Health
from serving_adapter.server.workers.messages import (
    SIGNALS,
    BatchError,
    BatchOutputs,
    BatchReply,
    NodeEnded,
    RunBatch,
    WorkerSignal,
)
from serving_adapter.server.workers.tenant import Tenant


class ModelFailed(Exception):
    """The model cannot be served; the text is one sentence for the user."""


class Job(Protocol):
    """A batch on a worker, and who is told what becomes of it."""

    @property
    def dispatched_ns(self) -> int: ...

    def worker_answered(self, outputs: Memory, reply: BatchReply) -> None:
        """The worker is through with the batch; the outputs last until this returns, unless copied."""

    def worker_died(self, with_node: bool = False) -> None:
        """The worker ended, by itself, by a signal or with its node, before it answered."""

    def handed_back(self) -> None:
        """The worker is not needed any more and was ended before it answered."""


class WorkerParent(Protocol):
    """Whom a worker was forked by."""

    @property
    def is_serving(self) -> bool:
        """False once it has ended or hangs: another one is needed to fork workers."""

    def signal(self, what: WorkerSignal, pid: int) -> None:
        """Signals a worker of its own."""

    @property
    def has_ended(self) -> bool:
        """Whether it is gone, and its workers with it."""


class WorkerHandle:
    """The front's end of one worker process; workers of one `kind` differ in nothing."""

    def __init__(
        self,
        channel: socket.socket,
        inputs: Arena,
        outputs: Arena,
        kind: tuple[object, ...],
        zygote: WorkerParent,
    ) -> None:
        self.channel, self.inputs, self.outputs, self.kind = channel, inputs, outputs, kind
        self.zygote = zygote
        self.node = ""  # of a cluster, that of a unit's first member; empty at home
        self.nodes: tuple[str, ...] = ()  # of all members
        self.ended_node = ""  # the one of these that took it with it
        self.pid = 0
        self.pidfd: int | None = None  # None where the kernel has none
        self.job: Job | None = None  # the batch it holds
        self.number = 0  # of the last batch it got
        self.is_copied = False  # its inputs or outputs are, for which it waits with its job
        self.retired = False
        self.health = Health()
        self.slow: Delay | None = None  # extra time of its batches: an injected fault
        self.tenant: Tenant | None = None  # who shares its machine, an injected fault too

    def belongs_to(self, pid: int, pidfd: int | None, node: str, more_nodes: tuple[str, ...]) -> None:
        """Its process. When that ends, so does its channel: what its model forked may hold it open."""
        self.pid, self.pidfd = pid, pidfd
        self.node, self.nodes = node, (node, *more_nodes)
        if pidfd is not None:
            asyncio.get_running_loop().add_reader(pidfd, self._end_channel)

    def _end_channel(self) -> None:
        self._unwatch()
        end_channel(self.channel)

    def _unwatch(self) -> None:
        if self.pidfd is not None:
            asyncio.get_running_loop().remove_reader(self.pidfd)

    def signal(self, what: WorkerSignal) -> None:
        """Signals the process, without its zygote where that can be: it may hang, too."""
        if self.pidfd is None:
            self.zygote.signal(what, self.pid)
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, SIGNALS[what])

    def hand(self, placed: list[Placed], intra_op_threads: int, model: int, slow_ms: float) -> None:
        """Has it run the batch that lies in its input arena; OSError if it is gone."""
        self.number += 1
        capacity_bytes = self.inputs.capacity_bytes
        order = RunBatch(model, placed, capacity_bytes, intra_op_threads, slow_ms, self.number, self.tenant)
        messages.send(self.channel, order)

    def reply(self) -> BatchReply | None:
        """What it answered, its outputs within reach; None if it is gone."""
        try:
            reply = messages.receive(self.channel, messages.parse_worker_message)
            if isinstance(reply, BatchOutputs):
                self.outputs.ensure(reply.capacity_bytes)
            elif isinstance(reply, NodeEnded):
                self.ended_node = reply.node
                return None
            return reply
        except Exception as error:  # no memory to map its outputs, or no message of ours
            sentence = f"the server could not read what a worker answered ({error!r})"
            return BatchError(sentence, worker_is_broken=True, number=self.number)

    def close(self) -> None:
        """Ends the process, which has nothing to save and may hang or be stopped."""
        if self.pid:
            self.signal(WorkerSignal.KILL)
        if self.pidfd is not None:
            self._unwatch()
            os.close(self.pidfd)
            self.pidfd = None
        self.channel.close()
        self.inputs.close()
        self.outputs.close()


def end_channel(channel: socket.socket) -> None:
    """Its reader gets what is there already, and then the end."""
    with contextlib.suppress(OSError):  # it is closed, or its other end is
        channel.shutdown(socket.SHUT_RDWR)
