"""What a zygote knows of its children, and what is left where it cannot have any."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading

import pytest

from serving_adapter.messages import receive_with_descriptors, socket_pair
from serving_adapter.server.workers import zygote
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.launching import launch_zygote
from serving_adapter.server.workers.messages import ForkWorker, ModelReference
from serving_adapter.server.workers.zygote import Zygote
from serving_adapter.server.workers.zygote_handle import ZygoteHandle


def ended(pid: int) -> None:
    """Waits for the end of a child, which stays to be reaped."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_threads_that_a_factory_leaves_are_noted(caplog):
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    zygote._warn_of_threads()
    done.set()
    thread.join()
    assert "threads beside the main one, so workers may hang while they start" in caplog.text


def test_processes_that_a_factory_started_are_left_to_it():
    ours, theirs = socket_pair()
    with ours, theirs, subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as of_a_factory:
        ended(of_a_factory.pid)
        parent = Zygote(theirs)
        parent._reap(signal.SIGCHLD, None)
        assert of_a_factory.wait() == 3


def test_a_worker_that_ends_at_once_is_not_taken_for_one_that_lives(monkeypatch):
    ours, theirs = socket_pair()

    def fork_worker(*_: object) -> int:
        pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
        ended(pid)  # its signal has come before anybody knows it
        return pid

    monkeypatch.setattr(Zygote, "_fork_worker", fork_worker)
    with ours, theirs:
        parent = Zygote(theirs)
        parent._answer_fork(ForkWorker(1, 1), [])
        told, descriptors = receive_with_descriptors(ours)
        for descriptor in descriptors:
            os.close(descriptor)
    assert told is not None
    assert told["pid"] > 0
    assert not parent.children


def test_a_worker_for_which_there_is_too_little_leaves_no_descriptor(monkeypatch):
    create, made = os.memfd_create, list[int]()

    def second_fails(name: str, flags: int) -> int:
        if made:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        made.append(create(name, flags))
        return made[0]

    monkeypatch.setattr(os, "memfd_create", second_fails)
    handle = ZygoteHandle([ModelReference("noop")], "cpu", launch_zygote, 1.0, lambda _: None)
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(ModelFailed, match="there is nothing to reach it by"):
        handle._handle((1,))
    assert made
    assert set(os.listdir("/proc/self/fd")) == before
