"""What processes hold: memory, descriptors, threads. Read from /proc, of a process and all it started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import psutil


class HeldByProcesses(NamedTuple):
    """Sums over some processes."""

    memory_bytes: int  # proportional set size: shared pages, shared memory's too, are counted once
    descriptors: int
    threads: int
    processes: int

    @classmethod
    def least(cls, looks: Iterable[HeldByProcesses]) -> HeldByProcesses:
        """The least of each, in several looks."""
        return cls(*map(min, zip(*looks, strict=True)))


def family(pid: int) -> list[psutil.Process]:
    """A process and its descendants, the eldest first; empty if it is gone."""
    try:
        first = psutil.Process(pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def held(processes: Iterable[psutil.Process]) -> HeldByProcesses:
    """What they hold together; those that end meanwhile are left out."""
    sums = [0, 0, 0, 0]
    for process in processes:
        try:
            with process.oneshot():
                found = (process.memory_full_info().pss, process.num_fds(), process.num_threads(), 1)
        except psutil.Error:
            continue
        sums = [total + value for total, value in zip(sums, found, strict=True)]
    return HeldByProcesses(*sums)
