"""A zygote as `WorkerPool` starts it, and its workers, spoken to as the front does."""

from __future__ import annotations

import os
import select
import socket
import subprocess
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import psutil

from serving_adapter import own_process
from serving_adapter.messages import socket_pair
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, place, read_outputs
from serving_adapter.server.workers.messages import (
    BatchOutputs,
    BatchReply,
    BuildModels,
    ForkWorker,
    ModelDescription,
    ModelReference,
    RunBatch,
    SignalWorker,
    WorkerReady,
    WorkerSignal,
    parse_batch_reply,
    parse_build_reply,
)
from serving_adapter.server.workers.parallelism import UnitMember
from serving_adapter.server.workers.tenant import Tenant

DATATYPES = {np.dtype(np.float32): "FP32", np.dtype(np.int64): "INT64"}
HOST = "127.0.0.1"
NOOP = ModelReference("noop")


class RealWorker:
    """A worker as the front holds it, over its channel; `wait_until_ready` before anything else."""

    def __init__(
        self, zygote: RealZygote, member: UnitMember | None = None, meeting: socket.socket | None = None
    ) -> None:
        self.channel, theirs = socket_pair()
        self.inputs, self.outputs = Arena.create("inputs"), Arena.create("outputs")
        descriptors = [theirs.fileno(), self.inputs.fd, self.outputs.fd]
        descriptors += [] if meeting is None else [meeting.fileno()]
        order = ForkWorker(inter_op_threads=1, intra_op_threads=1, member=member)
        messages.send(zygote.control, order, tuple(descriptors))
        theirs.close()

    def wait_until_ready(self) -> None:
        ready = messages.receive(self.channel, WorkerReady.from_wire)
        assert ready is not None
        self.pid = ready.pid
        self.process = psutil.Process(self.pid)

    def send_batch(self, value: float, slow_ms: float = 0.0, tenant: Tenant | None = None) -> None:
        """One row of 16 such values, as the test models take it."""
        self.send({"x": np.full((1, 16), value, np.float32)}, slow_ms, tenant)

    def send(
        self, batch: Mapping[str, np.ndarray], slow_ms: float = 0.0, tenant: Tenant | None = None
    ) -> None:
        placed, needed_bytes = place(
            (name, DATATYPES[array.dtype], array.shape, array.nbytes) for name, array in batch.items()
        )
        self.inputs.ensure_for_batch(needed_bytes)
        for where in placed:
            self.inputs.array(where)[...] = batch[where.name]
        order = RunBatch(0, placed, self.inputs.capacity_bytes, 1, slow_ms=slow_ms, tenant=tenant)
        messages.send(self.channel, order)

    def reply(self) -> BatchReply | None:
        """None where it ended without one."""
        return messages.receive(self.channel, parse_batch_reply)

    def outputs_of_batch(self) -> dict[str, np.ndarray]:
        reply = self.reply()
        assert isinstance(reply, BatchOutputs), reply
        self.outputs.ensure(reply.capacity_bytes)
        return {name: array.copy() for name, array in read_outputs(reply.outputs, self.outputs).items()}

    def answer(self) -> SimpleNamespace:
        reply = self.reply()
        assert isinstance(reply, BatchOutputs)
        (output,) = read_outputs(reply.outputs, self.outputs).values()
        return SimpleNamespace(value=float(output[0, 0]), infer_ms=1e-6 * reply.compute.infer_ns)

    def await_status(self, *statuses: str) -> None:
        while self.process.status() not in statuses:
            pass

    def has_said_something(self) -> bool:
        return bool(select.select([self.channel], [], [], 0)[0])

    def close(self) -> None:
        self.channel.close()
        self.inputs.close()
        self.outputs.close()


class RealZygote:
    """A zygote of one model, its workers forked on demand."""

    def __init__(self, model: ModelReference = NOOP) -> None:
        self.control, theirs = socket_pair()
        arguments = (str(os.getpid()), str(theirs.fileno()))
        command = own_process.command("serving_adapter.server.workers.zygote", *arguments)
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} | dict(os.environ)
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        messages.send(self.control, BuildModels((model,), "cpu", 60.0))
        description = messages.receive(self.control, parse_build_reply)
        assert isinstance(description, ModelDescription), description
        self.description = description
        self.workers: list[RealWorker] = []

    def worker(self) -> RealWorker:
        self.workers.append(RealWorker(self))
        self.workers[-1].wait_until_ready()
        return self.workers[-1]

    def unit(self, size: int) -> list[RealWorker]:
        """Workers that run each batch together, the first of which gets it."""
        with socket.create_server((HOST, 0)) as meeting:
            port = meeting.getsockname()[1]
            members = [
                RealWorker(self, UnitMember(rank, size, HOST, HOST, port), None if rank else meeting)
                for rank in range(size)
            ]
        self.workers += members
        for member in members:
            member.wait_until_ready()
        return members

    def order(self, what: str, pid: int) -> None:
        messages.send(self.control, SignalWorker(WorkerSignal(what), pid))

    def close(self) -> None:
        self.control.close()
        self.process.wait(30)
        for worker in self.workers:
            worker.close()
