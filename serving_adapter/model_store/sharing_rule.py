"""When sharing pays (TrIMS, section 5.2), with costs measured when a store starts.

| symbol | meaning |
|---|---|
| b | bytes of the model, or of a tensor |
| q | objects to share: 1 for a whole model, else those with a descriptor of their own |
| o | seconds to hand one object over: its descriptor through a socket |
| s | seconds to make a pointer of it: mapping it, and unmapping it later |
| B | bytes/s at which a private copy is loaded from disk |

Sharing gains b / B - q (o + s) seconds; it pays where that is positive.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import socket
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from serving_adapter.json_text import parsed

log = logging.getLogger(__name__)

OBJECTS = 32
SAMPLE_BYTES = 32 << 20
ROUNDS = 5
OVERHEAD_SHARE = 0.05  # what an object of its own may cost at most, of the time to load its tensor
ASSUMED_DISK_BYTES_PER_S = 1e9  # where none can be written to and measured
FILE_NAME = "sharing_costs.json"


class SharingCosts(NamedTuple):
    """The constants of this machine; `overhead_s` is o + s, `open_s` what asking the store takes."""

    overhead_s: float
    disk_bytes_per_s: float
    open_s: float = 0.0
    is_disk_measured: bool = True

    def gain_s(self, size_bytes: int, objects: int = 1) -> float:
        """b / B - q (o + s), less the question to the store, which the paper counts in o."""
        return size_bytes / self.disk_bytes_per_s - objects * self.overhead_s - self.open_s

    def smallest_object_bytes(self) -> int:
        """The size from which a tensor gains an object of its own: handing it over costs next to nothing.

        That is when o + s is at most `OVERHEAD_SHARE` of b / B. Smaller tensors share one object.
        """
        return int(self.overhead_s * self.disk_bytes_per_s / OVERHEAD_SHARE)

    @classmethod
    def read(cls, folder: Path) -> SharingCosts | None:
        """What the store that listens in `folder` has measured; None before there was one."""
        try:
            costs = cls(**parsed((folder / FILE_NAME).read_bytes()))
            return costs if costs.overhead_s > 0 and costs.disk_bytes_per_s > 0 else None
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        """Keeps them for the next store, if they were measured and there is room for them."""
        if self.is_disk_measured:
            try:
                (folder / FILE_NAME).write_text(json.dumps(self._asdict()), encoding="utf-8")
            except OSError as error:
                log.warning("the next store will measure again: %s", error)


def measure(folder: Path) -> SharingCosts:
    """Takes about a tenth of a second; `folder` is on the disk that models are loaded from.

    A full disk does not keep a store from starting: host memory needs none.
    """
    overhead_s = _overhead_s()
    try:
        return SharingCosts(overhead_s, _disk_bytes_per_s(folder))
    except OSError as error:
        assumed = f"{ASSUMED_DISK_BYTES_PER_S / 1e6:.0f} MB/s are assumed"
        log.warning("the speed of the disk cannot be measured, so %s: %s", assumed, error)
        return SharingCosts(overhead_s, ASSUMED_DISK_BYTES_PER_S, is_disk_measured=False)


def _overhead_s() -> float:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptors = [os.memfd_create("rrl-measure", os.MFD_CLOEXEC) for _ in range(OBJECTS)]
    try:
        for descriptor in descriptors:
            os.ftruncate(descriptor, mmap.PAGESIZE)
        return median(_hand_over_s(ours, theirs, descriptors) for _ in range(ROUNDS)) / OBJECTS
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        ours.close()
        theirs.close()


def _hand_over_s(ours: socket.socket, theirs: socket.socket, descriptors: list[int]) -> float:
    start_s = time.perf_counter()
    socket.send_fds(ours, [b"x"], descriptors)
    received = socket.recv_fds(theirs, 1, len(descriptors))[1]
    maps = [mmap.mmap(fd, mmap.PAGESIZE, prot=mmap.PROT_READ) for fd in received]
    for fd, map_ in zip(received, maps, strict=True):
        os.close(fd)
        map_.close()
    return time.perf_counter() - start_s


def _disk_bytes_per_s(folder: Path) -> float:
    """Reading a file that the page cache has been asked to forget."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        left = memoryview(os.urandom(SAMPLE_BYTES))
        while left:  # a disk that is nearly full takes a part
            left = left[file.write(left) :]
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        buffer = bytearray(1 << 20)
        start_s = time.perf_counter()
        while file.readinto(buffer):
            pass
        return SAMPLE_BYTES / (time.perf_counter() - start_s)
