"""Shared memory that one process writes and another reads, growing as batches do.

An arena is an anonymous memory file (`memfd`): it has no name, is reachable only by the two processes
that hold its descriptor, and is gone with them. Either side grows it by extending the file; the other
side maps it anew when it is told of a larger capacity. Whoever writes to it gives back, now and then, the
memory that only an unusually large batch needed.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol

import numpy as np

from serving_adapter.codecs import CODECS

ALIGNMENT_BYTES = 64
INITIAL_BYTES = 1 << 20
BATCHES_TO_LOOK_BACK = 256  # What none of so many needed is given back.


class Placed(NamedTuple):
    """Where a tensor lies in an arena; travels between the processes as a JSON list."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def place(tensors: Iterable[tuple[str, str, tuple[int, ...], int]]) -> tuple[list[Placed], int]:
    """Lays tensors (name, datatype, shape, bytes) out one behind the other; returns them and all bytes."""
    placed, offset = [], 0
    for name, datatype, shape, size_bytes in tensors:
        placed.append(Placed(name, datatype, shape, offset, size_bytes))
        offset += -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return placed, offset


def end_of(placed: Iterable[Placed]) -> int:
    """All bytes that tensors take, from the beginning of their arena on."""
    return max((tensor.offset + tensor.size_bytes for tensor in placed), default=0)


class Arena:
    """A growable mapping of a memory file; `view` is writable bytes."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.capacity_bytes = 0
        self._map: mmap.mmap | None = None
        self._batches = self._needed_lately = self._written_bytes = 0
        self.ensure(INITIAL_BYTES)

    @classmethod
    def create(cls, name: str) -> Arena:
        fd = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            return cls(fd)
        except BaseException:
            os.close(fd)
            raise

    def ensure(self, needed_bytes: int) -> None:
        """Makes at least `needed_bytes` reachable: extends the file if it is smaller, and maps all of it."""
        if needed_bytes <= self.capacity_bytes:
            return
        size = os.fstat(self.fd).st_size
        if size < needed_bytes:
            size = max(needed_bytes, 2 * size, INITIAL_BYTES)
            os.ftruncate(self.fd, size)
        # The old mapping goes when the last view of it does.
        self._map = mmap.mmap(self.fd, size)
        self.view = memoryview(self._map)
        self.capacity_bytes = size

    def ensure_for_batch(self, needed_bytes: int) -> None:
        """`ensure`, by whoever is about to write a batch of so many bytes: what was there before is gone."""
        self.ensure(needed_bytes)
        self._batches += 1
        self._needed_lately = max(self._needed_lately, needed_bytes)
        self._written_bytes = max(self._written_bytes, needed_bytes)
        if self._batches == BATCHES_TO_LOOK_BACK:
            if 2 * self._needed_lately < self._written_bytes:
                self._give_back_beyond(self._needed_lately)
            self._batches = self._needed_lately = 0

    def _give_back_beyond(self, kept_bytes: int) -> None:
        """Frees the pages, which stay reachable: they are zero, and there again once they are written to."""
        start = max(INITIAL_BYTES, -(-kept_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        if self._map is not None and start < self.capacity_bytes:
            with suppress(OSError):  # where the kernel cannot, they are kept
                self._map.madvise(mmap.MADV_REMOVE, start, self.capacity_bytes - start)
        self._written_bytes = kept_bytes

    def array(self, tensor: Placed) -> np.ndarray:
        """A tensor in the arena, a view where that can be."""
        return CODECS[tensor.datatype].array(self.bytes_of(tensor), tensor.shape)

    def bytes_of(self, tensor: Placed) -> memoryview:
        """The bytes of a tensor, to be read or written."""
        return self.view[tensor.offset : tensor.offset + tensor.size_bytes]

    def close(self) -> None:
        os.close(self.fd)


class Memory(Protocol):
    """Where the outputs of a batch lie."""

    def array(self, tensor: Placed) -> np.ndarray: ...


class CopiedOutputs:
    """The outputs of a batch, out of its worker's arena, which may be used again at once.

    numpy copies them without the interpreter's lock, so a thread can do it beside the event loop.
    """

    def __init__(self, placed: Iterable[Placed], arena: Arena) -> None:
        self._arrays = {tensor.name: arena.array(tensor).copy() for tensor in placed}

    def array(self, tensor: Placed) -> np.ndarray:
        return self._arrays[tensor.name]


def lasting(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A worker's outputs for longer than its next batch: copied, but for those that are copies."""
    return {name: array if array.base is None else array.copy() for name, array in outputs.items()}


def read_outputs(placed: Iterable[Placed], memory: Memory) -> dict[str, np.ndarray]:
    """A worker's outputs by name. Views of its arena are valid until it runs its next batch."""
    return {tensor.name: memory.array(tensor) for tensor in placed}
