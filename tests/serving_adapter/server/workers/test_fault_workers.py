"""What a worker makes of it to be stopped, killed and slowed by its zygote."""

from __future__ import annotations

import socket
import subprocess
import sys

import psutil
import pytest

from serving_adapter.server.workers import messages
from serving_adapter.server.workers.messages import parse_batch_reply
from serving_adapter.server.workers.tenant import Tenant
from tests.support.servers.real_zygote import RealZygote


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
