"""Memory files mapped side by side as one piece of memory, on huge pages where they have some.

Python's own `mmap` would keep a descriptor for each map, and a process has few of them. It also chooses no
addresses, and a huge page is mapped as one only where its address is a multiple of its size.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from typing import Any

HUGE_PAGE_BYTES = 2 << 20  # as x86 has them, and ARM with pages of 4 KB; elsewhere there are just none
MADV_COLLAPSE = 25  # Linux 6.1
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
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class MappedMemory:
    """Room for files of the given sizes (bytes), mapped one by one.

    A file begins at a page (`starts`), one of a huge page or more at a huge page. `buffer` is the whole. It
    is unmapped when nobody refers to it or to a part of it any more. It calls itself writable, as torch wants
    it. Writing to it ends the process, unless it `copies_on_write`: then what is written stays in this
    process. OSError where there is no room.
    """

    def __init__(self, sizes: Sequence[int], *, copies_on_write: bool = False) -> None:
        self.starts: list[int] = []
        end = 0
        for size in sizes:
            self.starts.append(_up_to(end, _alignment_of(size)))
            end = _up_to(self.starts[-1] + size, mmap.PAGESIZE)
        self._sizes, self._copies_on_write = list(sizes), copies_on_write
        size_bytes = max(end, mmap.PAGESIZE)
        alignment = max(map(_alignment_of, sizes), default=mmap.PAGESIZE)
        reserved_bytes = size_bytes + alignment - mmap.PAGESIZE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        reserved = _mapped(None, reserved_bytes, PROT_NONE, flags, -1)
        self._address = _up_to(reserved, alignment)
        self.buffer: Any = (ctypes.c_char * size_bytes).from_address(self._address)
        weakref.finalize(self.buffer, _libc.munmap, reserved, reserved_bytes).atexit = False

    def map(self, i: int, descriptor: int) -> None:
        """Maps file `i`; its descriptor may be closed then."""
        if not self._sizes[i]:
            return
        protection, flags = mmap.PROT_READ, mmap.MAP_SHARED
        if self._copies_on_write:
            protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_NORESERVE
        _mapped(self._address + self.starts[i], self._sizes[i], protection, flags | MAP_FIXED, descriptor)

    def collapse(self, i: int) -> None:
        """Has the kernel put the pages of file `i` together as huge ones, for all who map it (blocking).

        What is left over at the file's end stays as it is. OSError where the kernel cannot: before Linux 6.1,
        where it is told to deny it, and without free memory of that size.
        """
        if _libc.madvise(self._address + self.starts[i], self._sizes[i], MADV_COLLAPSE):
            number = ctypes.get_errno()
            raise OSError(number, f"cannot put {self._sizes[i]:,} bytes together: {os.strerror(number)}")


def _alignment_of(size_bytes: int) -> int:
    return HUGE_PAGE_BYTES if size_bytes >= HUGE_PAGE_BYTES else mmap.PAGESIZE


def _up_to(value: int, multiple_of: int) -> int:
    return -(-value // multiple_of) * multiple_of


def _mapped(place: int | None, size_bytes: int, protection: int, flags: int, descriptor: int) -> int:
    address = _libc.mmap(place, size_bytes, protection, flags, descriptor, 0)
    if address is None or address == FAILED:
        number = ctypes.get_errno()
        raise OSError(number, f"cannot map {size_bytes:,} bytes: {os.strerror(number)}")
    return int(address)
