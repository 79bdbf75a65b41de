"""Strings as the Open Inference Protocol sends them (BYTES): each with its length in four bytes before it.

In arrays they are Python bytes. What they say is the model's business: the protocol does not ask for UTF-8.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import numpy as np

LENGTH = struct.Struct("<I")
MAX_STRINGS = 1 << 16
"""Of a tensor, and of a JSON document. The event loop goes through so many in some 10 ms."""


def packed(strings: np.ndarray) -> bytes:
    """The strings of an array in row-major order. ValueError, in a part of a sentence, for other values."""
    return b"".join(_packed(string) for string in strings.ravel().tolist())


def _packed(string: object) -> bytes:
    data = string.encode() if isinstance(string, str) else string
    if not isinstance(data, bytes):
        raise ValueError(f"BYTES takes strings, got {type(string).__name__}")
    return LENGTH.pack(len(data)) + data


def packed_bytes(strings: np.ndarray) -> int:
    """The length of what `packed` gives for an array of bytes."""
    return sum(LENGTH.size + len(string) for string in strings.ravel().tolist())


def unpacked(data: bytes | memoryview, shape: Sequence[int]) -> np.ndarray:
    """The array of bytes of such a shape, which `data` was packed from."""
    array = np.empty(math.prod(shape), object)
    for i, string in enumerate(each(data)):
        array[i] = string
    return array.reshape(shape)


def each(data: bytes | memoryview) -> Iterator[bytes]:
    """The strings that were packed."""
    view = memoryview(data)
    for start, end in _places(view):
        yield bytes(view[start:end])


def check_count(count: int) -> None:
    """ValueError, in a part of a sentence, where so many strings are too many to go through."""
    if count > MAX_STRINGS:
        raise ValueError(f"at most {MAX_STRINGS} strings are taken at once, got {count}")


def check(data: bytes | memoryview, count: int) -> None:
    """ValueError, in a part of a sentence, where `data` is not `count` strings."""
    check_count(count)
    if len(data) < LENGTH.size * count:
        raise ValueError(f"{count} strings take {LENGTH.size * count} bytes or more, got {len(data)}")
    found, end = 0, 0
    for found, (_, end) in enumerate(_places(memoryview(data)), start=1):
        if found > count or end > len(data):
            break
    if found != count or end != len(data):
        raise ValueError(f"its bytes are not {count} strings, each with its length in four bytes before it")


def _places(view: memoryview) -> Iterator[tuple[int, int]]:
    """Where each string begins and ends."""
    at = 0
    while at < len(view):
        if at + LENGTH.size > len(view):
            yield at, len(view) + 1
            return
        (length,) = LENGTH.unpack_from(view, at)
        at += LENGTH.size
        yield at, at + length
        at += length
