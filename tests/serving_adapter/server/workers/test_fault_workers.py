"""What a worker makes of it to be stopped, killed and slowed by its zygote."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from serving_adapter import own_process
from serving_adapter.messages import socket_pair
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, place, read_outputs
from serving_adapter.server.workers.messages import (
    BatchOutputs,
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
from serving_adapter.server.workers.tenant import Tenant


class RealWorker:
    """A worker as the front holds it, spoken to over its channel."""

    def __init__(self, zygote: RealZygote) -> None:
        self.channel, theirs = socket_pair()
        self.inputs, self.outputs = Arena.create("inputs"), Arena.create("outputs")
        descriptors = (theirs.fileno(), self.inputs.fd, self.outputs.fd)
        messages.send(zygote.control, ForkWorker(inter_op_threads=1, intra_op_threads=1), descriptors)
        theirs.close()
        ready = messages.receive(self.channel, WorkerReady.from_wire)
        assert ready is not None
        self.pid = ready.pid
        self.process = psutil.Process(self.pid)

    def send_batch(self, value: float, slow_ms: float = 0.0, tenant: Tenant | None = None) -> None:
        (placed,), _ = place([("x", "FP32", (1, 16), 64)])
        self.inputs.array(placed)[...] = value
        capacity_bytes = self.inputs.capacity_bytes
        batch = RunBatch(0, [placed], capacity_bytes, 1, slow_ms=slow_ms, tenant=tenant)
        messages.send(self.channel, batch)

    def answer(self) -> SimpleNamespace:
        reply = messages.receive(self.channel, parse_batch_reply)
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
    """A zygote of `noop` as `WorkerPool` starts it, its workers forked on demand."""

    def __init__(self) -> None:
        self.control, theirs = socket_pair()
        arguments = (str(os.getpid()), str(theirs.fileno()))
        command = own_process.command("serving_adapter.server.workers.zygote", *arguments)
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} | dict(os.environ)
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        messages.send(self.control, BuildModels((ModelReference("noop"),), "cpu", 60.0))
        assert isinstance(messages.receive(self.control, parse_build_reply), ModelDescription)
        self.workers: list[RealWorker] = []

    def worker(self) -> RealWorker:
        self.workers.append(RealWorker(self))
        return self.workers[-1]

    def order(self, what: str, pid: int) -> None:
        messages.send(self.control, SignalWorker(WorkerSignal(what), pid))

    def close(self) -> None:
        self.control.close()
        self.process.wait(30)
        for worker in self.workers:
            worker.close()


@pytest.fixture(scope="module")
def zygote():
    running = RealZygote()
    yield running
    running.close()


def test_a_stopped_worker_answers_once_it_is_resumed(zygote):
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    worker.send_batch(7.0)
    assert worker.process.status() == psutil.STATUS_STOPPED
    assert not worker.has_said_something()
    zygote.order("resume", worker.pid)
    assert worker.answer().value == 7.0


def test_a_stopped_worker_can_be_killed(zygote):
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    worker.send_batch(7.0)
    zygote.order("kill", worker.pid)
    assert messages.receive(worker.channel, parse_batch_reply) is None
    assert not psutil.wait_procs([worker.process], timeout=30)[1]


def test_orders_for_a_worker_that_is_gone_are_no_error(zygote):
    gone = zygote.worker()
    zygote.order("kill", gone.pid)
    assert not psutil.wait_procs([gone.process], timeout=30)[1]
    for what in ("stop", "resume", "kill"):
        zygote.order(what, gone.pid)
    worker = zygote.worker()
    worker.send_batch(1.0)
    assert worker.answer().value == 1.0


def test_a_worker_let_go_of_while_stopped_ends_once_it_is_resumed(zygote):
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    worker.channel.shutdown(socket.SHUT_RDWR)
    zygote.order("resume", worker.pid)
    assert not psutil.wait_procs([worker.process], timeout=30)[1]


def test_only_the_zygotes_own_children_take_its_orders(zygote):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        for what in ("stop", "kill"):
            zygote.order(what, stranger.pid)
        worker = zygote.worker()  # by now the orders are read
        assert psutil.Process(stranger.pid).status() != psutil.STATUS_STOPPED
        stranger.communicate(b"\n")
        assert stranger.returncode == 0
    finally:
        stranger.kill()
        stranger.wait()
    worker.send_batch(2.0)
    assert worker.answer().value == 2.0


def test_a_stopped_worker_does_not_outlive_its_zygote():
    zygote = RealZygote()
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    zygote.close()
    assert not psutil.wait_procs([worker.process], timeout=30)[1]


def test_a_slowed_batch_takes_that_much_longer_in_its_compute_time(zygote):
    worker = zygote.worker()
    worker.send_batch(3.0, slow_ms=80.0)
    slowed = worker.answer()
    assert slowed.value == 3.0
    assert slowed.infer_ms >= 80.0


def test_a_batch_beside_a_tenant_takes_twice_as_long(zygote):
    worker = zygote.worker()
    worker.send_batch(4.0, slow_ms=40.0, tenant=Tenant(1000.0, 60_000.0))  # who is always there
    shared = worker.answer()
    assert shared.value == 4.0
    assert shared.infer_ms >= 80.0
