"""What a client may hand to a model store as a file of weights: sound ones, and everything else."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from scripts.robustness.fuzz.mutation import mutated

TENSOR_BYTES = 4096
TENSORS = 3
SPARSE_BYTES = 4 << 20  # of a file without blocks whose header tells of them all
BEYOND_MEMORY_BYTES = 1 << 40


def header(entries: Any, length: int | None = None) -> bytes:
    """The beginning of a safetensors file; `length` where it lies about its own."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def weights(filler: int, name: str = "weight") -> bytes:
    """A sound file whose tensors are full of one byte."""
    size = TENSOR_BYTES
    entries = {
        f"{name}{i}": {"dtype": "U8", "shape": [size], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(TENSORS)
    }
    return header(entries) + bytes([filler]) * (size * TENSORS)


def one_tensor(size_bytes: int, name: str = "x") -> bytes:
    return header({name: {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}})


class StoreFiles:
    """A folder of files, from which descriptors are opened."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self._rng = folder, Random(seed)
        for i, kind in enumerate(SOUND):
            self.path(kind).write_bytes(weights(i + 1))
        self._write("sparse", one_tensor(SPARSE_BYTES), SPARSE_BYTES)
        self._write("beyond memory", one_tensor(BEYOND_MEMORY_BYTES), BEYOND_MEMORY_BYTES)
        self._write("sparse that lies", one_tensor(1 << 62), SPARSE_BYTES)
        self._write("long header", header(b"{}", 1 << 63))
        self._write("sparse header", header(b"{}", 90 << 20), 90 << 20)
        self._write("torn", weights(9)[:-1])
        self._write("name of half a character", one_tensor(8, "\ud800"), 8)
        self._write("nested", header(b"[" * 5000))
        self._write("no tensors", header({}))
        self._write("empty", b"")

    def path(self, kind: str) -> Path:
        return self.folder / kind.replace(" ", "-")

    def open(self, kind: str) -> int:
        """A new descriptor, which is the caller's to close."""
        return KINDS[kind](self, kind)

    def _write(self, kind: str, data: bytes, hole_bytes: int = 0) -> None:
        with self.path(kind).open("wb") as file:
            file.write(data)
            file.truncate(len(data) + hole_bytes)

    def read_only(self, kind: str) -> int:
        return os.open(self.path(kind), os.O_RDONLY | os.O_CLOEXEC)

    def write_only(self, kind: str) -> int:
        return os.open(self.path(SOUND[0]), os.O_WRONLY | os.O_CLOEXEC)

    def path_only(self, kind: str) -> int:
        return os.open(self.path(SOUND[0]), os.O_PATH | os.O_CLOEXEC)

    def system(self, kind: str) -> int:
        return os.open(kind, os.O_RDONLY | os.O_CLOEXEC)

    def memory(self, kind: str) -> int:
        """An unsealed memory file, whose weights are sound, damaged, or about to be cut off."""
        data = weights(self._rng.randrange(256))
        fd = os.memfd_create("fuzz")
        os.write(fd, mutated(data, self._rng) if kind == "damaged memory" else data)
        if kind == "shrinking memory":
            os.ftruncate(fd, self._rng.randrange(len(data)))
        return fd

    def reading_pipe(self, kind: str) -> int:
        reading, writing = os.pipe()
        os.write(writing, weights(7)[:100])
        os.close(writing)
        return reading

    def writing_pipe(self, kind: str) -> int:
        reading, writing = os.pipe()
        os.close(reading)
        return writing

    def connection(self, kind: str) -> int:
        """A socket that lies in a queue of its own: the kernel alone can collect it."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine, other, contextlib.suppress(OSError):
            socket.send_fds(mine, [b"x"], [other.fileno()])
            return other.detach()
        raise AssertionError("a pair of sockets holds one descriptor")

    def events(self, kind: str) -> int:
        return os.eventfd(0)


SOUND = tuple(f"sound {i}" for i in range(4))
KINDS: dict[str, Callable[[StoreFiles, str], int]] = {
    **dict.fromkeys(SOUND, StoreFiles.read_only),
    **dict.fromkeys(("sparse", "beyond memory", "sparse that lies", "long header"), StoreFiles.read_only),
    **dict.fromkeys(("sparse header", "torn", "name of half a character", "nested"), StoreFiles.read_only),
    **dict.fromkeys(("no tensors", "empty"), StoreFiles.read_only),
    **dict.fromkeys(("/dev/zero", "/dev/null", "/proc/self/mem", "/proc/self/status"), StoreFiles.system),
    **dict.fromkeys(("sound memory", "damaged memory", "shrinking memory"), StoreFiles.memory),
    "/": StoreFiles.system,
    "write-only": StoreFiles.write_only,
    "path only": StoreFiles.path_only,
    "reading pipe": StoreFiles.reading_pipe,
    "writing pipe": StoreFiles.writing_pipe,
    "connection": StoreFiles.connection,
    "events": StoreFiles.events,
}  # fmt: skip
"""By kind, what opens it."""
