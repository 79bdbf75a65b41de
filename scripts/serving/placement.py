"""Which cores a server's processes may run on: its front and the load on one, the model on the others."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress

import psutil

FRONT_CORES = 1


def split_cores() -> tuple[set[int], set[int]]:
    """The cores of the front and the load, and those of the model; ValueError where there is one core."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) <= FRONT_CORES:
        raise ValueError(f"this machine has {len(cores)} core; front and model need one each")
    return set(cores[:FRONT_CORES]), set(cores[FRONT_CORES:])


def place_server(front_pid: int, front_cores: Collection[int], model_cores: Collection[int]) -> None:
    """Keeps the front on its cores, and the zygote and its workers on theirs; later workers inherit them."""
    place(front_pid, front_cores)
    for child in psutil.Process(front_pid).children(recursive=True):
        place(child.pid, model_cores)


def place(pid: int, cores: Collection[int]) -> None:
    """Moves every thread of a process; those it starts later inherit the cores."""
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        for thread in psutil.Process(pid).threads():
            with suppress(ProcessLookupError):  # It ended meanwhile.
                os.sched_setaffinity(thread.id, cores)


def cpu_seconds(pid: int) -> float:
    """Processor time of one process so far, without its children's."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
