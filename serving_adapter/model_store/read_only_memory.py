"""Memory files of other processes, mapped read-only side by side as one piece of memory.

Python's own `mmap` would keep a descriptor for each map, and a process has few of them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

PROT_NONE = 0
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class ReadOnlyMemory:
    """Room for files of the given sizes (bytes), each at a page's start (`starts`), mapped one by one.

    `buffer` is the whole; it is unmapped when nobody refers to it or to a part of it any more. It calls
    itself writable, as torch wants it, but writing to it ends the process. OSError where there is no room.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.starts: list[int] = []
        end = 0
        for size in sizes:
            self.starts.append(end)
            end += -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._sizes = list(sizes)
        size_bytes = max(end, mmap.PAGESIZE)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        self._address = _mapped(None, size_bytes, PROT_NONE, flags, -1)
        self.buffer: Any = (ctypes.c_char * size_bytes).from_address(self._address)
        weakref.finalize(self.buffer, _libc.munmap, self._address, size_bytes).atexit = False

    def map(self, i: int, descriptor: int) -> None:
        """Maps file `i`; its descriptor may be closed then."""
        if self._sizes[i]:
            place = self._address + self.starts[i]
            _mapped(place, self._sizes[i], mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, descriptor)


def _mapped(place: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
    address = _libc.mmap(place, size_bytes, protection, flags, descriptor, 0)
    if address is None or address == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size_bytes:,} bytes: {os.strerror(number)}")
    return int(address)
