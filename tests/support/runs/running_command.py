"""`rrl-tune` as a command or in this process, and what it leaves in force."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from rrl.command_line import main
from rrl.queueing.machine import Machine
from serving_adapter.target import OpenInferenceTarget
from tests.support import CHECKOUT

QUICK = ["--interval-s", "0.25", "--settle-s", "0.05", "--knobs", "instances=1:2,max_batch_size=1,4"]


def exit_code(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


@contextmanager
def watching(address: str) -> Iterator[OpenInferenceTarget]:
    """The target, to look at."""
    target = OpenInferenceTarget(address)
    target.connect(control=False)
    try:
        yield target
    finally:
        target.close()


def in_force(address: str) -> dict[str, int]:
    with watching(address) as target:
        return target.configuration()


def answered(address: str) -> int:
    """How many requests the server has answered."""
    with watching(address) as target:
        return target.read().success


def two_by_two(slower: float = 1.0) -> None:
    """A machine file of one instance and two, batches of one and four; so many times slower than 10 ms."""
    one, times_s = np.array([1]), slower * np.array([[[[0.01, 0.02], [0.01, 0.02]]]])
    Machine(one, one, np.array([1, 2]), np.array([1, 4]), times_s).save("m.npz")


def tuner(served: str, *arguments: object, stderr: int | None = None) -> subprocess.Popen[str]:
    return started("--target", served, "--agent", "random", *QUICK, *arguments, stderr=stderr)


def started(
    *arguments: object, stdout: int | None = None, stderr: int | None = None
) -> subprocess.Popen[str]:
    """A run as a process of its own, in this one's folder."""
    command = [sys.executable, "-m", "rrl.command_line", *map(str, arguments)]
    environment = dict(os.environ) | {"PYTHONPATH": str(CHECKOUT)}
    return subprocess.Popen(command, text=True, env=environment, stdout=stdout, stderr=stderr)


def lines(journal: Path) -> int:
    return journal.read_bytes().count(b"\n") if journal.exists() else 0
