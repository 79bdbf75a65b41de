"""Plain weight files as the store reads them: which tensors there are and where, checked before use.

The one format so far is safetensors: eight bytes with the header's length, a JSON header, then the tensors'
bytes without gaps. A namespace names a format; another one is another function in `FORMATS`. Pickle is
none, and never will be: unpickling runs the author's code.

A tensor's type is for its reader to know. The store needs its bytes only, so it serves types that came after
it, too. Where it knows a type it checks that shape and bytes fit each other.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from serving_adapter.json_text import parsed

MAX_DIMENSIONS = 64  # as torch has it
# Some 100,000 tensors. Reading as much as JSON takes a second, in which nobody else is served.
MAX_HEADER_BYTES = 16 << 20

ITEM_BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8"), 8),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
TYPE_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}")


class StoredTensor(NamedTuple):
    """A tensor of a weight file; `offset_bytes` counts from the first tensor's first byte."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


class WeightsHeader(NamedTuple):
    """What stands before the tensors: its bytes as they are, and the tensors in the order of theirs."""

    raw: bytes
    tensors: tuple[StoredTensor, ...]

    @property
    def data_bytes(self) -> int:
        return sum(tensor.size_bytes for tensor in self.tensors)

    def check_size(self, size_bytes: int) -> None:
        """ValueError unless a file of that size holds the tensors, and nothing else."""
        expected = len(self.raw) + self.data_bytes
        if size_bytes != expected:
            where = "ends within its tensors" if size_bytes < expected else "goes on behind its last tensor"
            raise ValueError(
                f"the file {where}: it has {size_bytes:,} bytes, its header tells of {expected:,}"
            )


class ReadableStream(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def read_safetensors_header(stream: ReadableStream) -> WeightsHeader:
    """Reads up to the first tensor; ValueError with one sentence where the file is not what it should be."""
    length = int.from_bytes(_exactly(stream, 8), "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ValueError(f"it is no safetensors file: its header would have {length} bytes")
    text = _exactly(stream, length)
    try:
        entries = parsed(text, _unique)
    except ValueError as error:
        raise ValueError(f"it is no safetensors file: its header is no JSON ({error})") from None
    if not isinstance(entries, dict):
        raise ValueError("it is no safetensors file: its header is no JSON object")
    entries.pop("__metadata__", None)
    tensors = sorted(
        (_tensor(name, entry) for name, entry in entries.items()),
        key=lambda t: (t.offset_bytes, t.size_bytes),
    )
    end = 0
    for tensor in tensors:
        if tensor.offset_bytes != end:
            raise ValueError(f"the bytes of tensor {tensor.name!r} overlap others or leave a gap")
        end += tensor.size_bytes
    return WeightsHeader(length.to_bytes(8, "little") + text, tuple(tensors))


FORMATS: dict[str, Callable[[ReadableStream], WeightsHeader]] = {"safetensors": read_safetensors_header}


def header_reader(namespace: str) -> Callable[[ReadableStream], WeightsHeader]:
    try:
        return FORMATS[namespace]
    except KeyError:
        raise ValueError(f"unknown namespace {namespace[:40]!r}; known are {', '.join(FORMATS)}") from None


def _exactly(stream: ReadableStream, size: int) -> bytes:
    data = stream.read(size) or b""
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise ValueError(f"the file ends after {len(data)} of {size} bytes of its header")
        data += more
    return bytes(data)


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for name, value in pairs:
        if name in entries:
            raise ValueError(f"{name!r} stands there twice")
        entries[name] = value
    return entries


def _tensor(name: str, entry: Any) -> StoredTensor:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"the name of tensor {name[:200]!r} has half a character in it") from None
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not TYPE_NAME.fullmatch(dtype):
            raise ValueError(dtype)
        few = isinstance(shape, list) and len(shape) <= MAX_DIMENSIONS
        whole = few and all(type(value) is int and 0 <= value < 1 << 63 for value in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"the header's entry for tensor {name[:200]!r} cannot be read: {reprlib.repr(entry)}"
        ) from None
    if not whole or end < begin or not _fits(dtype, shape, end - begin):
        raise ValueError(f"the bytes of tensor {name[:200]!r} do not fit its entry {reprlib.repr(entry)}")
    return StoredTensor(name, dtype, tuple(shape), begin, end - begin)


def _fits(dtype: str, shape: list[int], size_bytes: int) -> bool:
    """Whether a tensor takes those bytes, as far as its type is known."""
    return dtype not in ITEM_BITS or math.prod(shape) * ITEM_BITS[dtype] == 8 * size_bytes
