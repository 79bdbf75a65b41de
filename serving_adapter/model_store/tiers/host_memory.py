"""The host memory tier: tensors in sealed memory files, each content once, whoever's model it is in.

A segment is an anonymous memory file (`memfd`) that is sealed against writing, growing and shrinking once it
is full. Its descriptor is handed to clients. They can map it read-only, and can neither change it nor free
what others use. The kernel keeps the pages until the store and the last client have let go.

The sharing granularity says which tensors share a segment. With "model" it is all tensors of a model. With
"tensor" each tensor that is large enough has a segment of its own, and the rest of the model shares one. With
"auto" those of a huge page or more have, and the rest lies in segments that fill a few.

Segments are addressed by the BLAKE3 hash of their content, so models that were fine-tuned from one share what
stayed frozen.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from blake3 import blake3

from serving_adapter.model_store.mapped_memory import HUGE_PAGE_BYTES
from serving_adapter.model_store.tiers.eviction import EvictionPolicy
from serving_adapter.model_store.tiers.tier import Address, Tier, TierEntry
from serving_adapter.model_store.weights_file import StoredTensor, WeightsHeader

ALIGNMENT_BYTES = 64
CHUNK_BYTES = 1 << 18  # stays in the processor's cache between reading, hashing and writing
BUFFERS = 4
JOINED_BYTES = 2 * HUGE_PAGE_BYTES  # of small tensors in one segment: little is lost where models differ
MAX_LEFT_OVER_BYTES = HUGE_PAGE_BYTES // 8  # behind a segment's huge pages, on small ones
SMALL_CHUNK_BYTES = 1 << 16  # below, handing it to the other thread takes longer than writing it
SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

Digest = bytes


class ReadableInto(Protocol):
    def readinto(self, buffer: memoryview, /) -> int | None: ...


class Placement(NamedTuple):
    """Where a tensor lies: in which of its model's segments, and how far into it."""

    tensor: StoredTensor
    segment: int
    offset_bytes: int


@dataclass
class Segment:
    """A sealed memory file; `users` counts the resident models that lie in it."""

    digest: Digest
    fd: int
    size_bytes: int
    users: int = 0
    is_collapsed: bool = False  # its pages have been put together, or that was tried

    def map(self) -> mmap.mmap:
        return mmap.mmap(self.fd, self.size_bytes, prot=mmap.PROT_READ)

    def close(self) -> None:
        os.close(self.fd)


@dataclass(frozen=True, eq=False)
class Weights:
    """A model in host memory: its tensors, the segments they lie in, and the hash of each tensor's bytes.

    `label` is what the client calls a file that it opened itself.
    """

    header: WeightsHeader
    placements: tuple[Placement, ...]
    segments: tuple[Segment, ...]
    digests: tuple[Digest, ...]
    label: str = ""
    transient: bool = False  # cannot be asked for again, so not worth keeping without a reference

    def close(self) -> None:
        """Frees segments that no tier has admitted."""
        for segment in self.segments:
            segment.close()


def place(
    tensors: Sequence[StoredTensor], smallest_object_bytes: int | None, *, joins: bool = False
) -> tuple[Placement, ...]:
    """Gives every tensor of at least that size a segment of its own; None: one segment for all.

    The others lie together: in one segment, or where it `joins` in several, in the order of their file. Each
    of those ends at `JOINED_BYTES`, or before where it nearly fills huge pages. Models of one architecture
    are divided alike, so they still share what is the same.
    """
    placements: list[Placement] = []
    together: list[list[int]] = [[]]  # the placements in each segment of several tensors
    own, end = 0, 0
    for tensor in tensors:
        if smallest_object_bytes is not None and tensor.size_bytes >= max(1, smallest_object_bytes):
            placements.append(Placement(tensor, own, 0))
            own += 1
            continue
        if joins and _is_full(end):
            together.append([])
            end = 0
        together[-1].append(len(placements))
        placements.append(Placement(tensor, -1, end))
        end += -(-tensor.size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    for segment, members in enumerate(together, own):
        for i in members:
            placements[i] = placements[i]._replace(segment=segment)
    return tuple(placements)


def _is_full(end: int) -> bool:
    """Whether a segment of several tensors ends here."""
    fills_huge_pages = end >= HUGE_PAGE_BYTES and end % HUGE_PAGE_BYTES <= MAX_LEFT_OVER_BYTES
    return end >= JOINED_BYTES or fills_huge_pages


def segment_sizes(placements: Iterable[Placement]) -> list[int]:
    """Bytes of each segment; segments are counted from 0 without gaps."""
    sizes: dict[int, int] = {}
    for tensor, segment, offset_bytes in placements:
        sizes[segment] = max(sizes.get(segment, 0), offset_bytes + tensor.size_bytes)
    return [sizes[segment] for segment in range(len(sizes))]


def resident_bytes(placements: Iterable[Placement]) -> int:
    """Memory that the segments take: whole pages."""
    return sum(in_pages(size) for size in segment_sizes(placements))


def in_pages(size_bytes: int) -> int:
    return max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE


def fill(stream: ReadableInto, header: WeightsHeader, placements: tuple[Placement, ...]) -> Weights:
    """Reads all tensors into new sealed segments and hashes them on the way; takes as long as the reading.

    ValueError if the stream ends early. Nothing is left behind if it fails.
    """
    sizes = segment_sizes(placements)
    descriptors: list[int] = []
    try:
        for size_bytes in sizes:
            descriptors.append(os.memfd_create("rrl-weights", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC))
            os.ftruncate(descriptors[-1], size_bytes)
        with _Writing() as writing:
            digests = tuple(_copy(stream, descriptors[p.segment], p, writing) for p in placements)
        descriptors = [_sealed(fd) for fd in descriptors]
    except BaseException:
        for fd in descriptors:
            os.close(fd)
        raise
    contents = _segment_digests(placements, digests, len(sizes))
    segments = tuple(map(Segment, contents, descriptors, sizes))
    return Weights(header, placements, segments, digests)


def sealed_copy(data: bytes) -> int:
    """A memory file with these bytes, to be handed over; its descriptor. Nothing is left where it fails."""
    fd = os.memfd_create("rrl-layout", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        _write_all(fd, memoryview(data), 0)
        return _sealed(fd)
    except BaseException:
        os.close(fd)
        raise


def _sealed(fd: int) -> int:
    """Seals a memory file for good and exchanges its descriptor for one that can only read.

    Linux before 6.7 refuses shared maps of a sealed file through a descriptor that could write.
    """
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    read_only = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.dup2(read_only, fd, inheritable=False)
    finally:
        os.close(read_only)
    return fd


class _Writing:
    """Writes one chunk in a second thread while the next is read and hashed."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._buffers = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(BUFFERS)]
        self._written: list[Future[None] | None] = [None] * len(self._buffers)
        self._next = 0

    def buffer(self) -> memoryview:
        """One that is not being written; an error of its last writing is raised here."""
        written = self._written[self._next]
        if written is not None:
            written.result()
        return self._buffers[self._next]

    def write(self, fd: int, chunk: memoryview, position: int) -> None:
        """Writes the beginning of the buffer that `buffer` gave last."""
        if len(chunk) < SMALL_CHUNK_BYTES:
            _write_all(fd, chunk, position)
            return
        self._written[self._next] = self._thread.submit(_write_all, fd, chunk, position)
        self._next = (self._next + 1) % len(self._buffers)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if failed is None:
            for written in self._written:
                if written is not None:
                    written.result()


def _copy(stream: ReadableInto, fd: int, placement: Placement, writing: _Writing) -> Digest:
    tensor, _, position = placement
    hasher, left = blake3(), tensor.size_bytes
    while left:
        buffer = writing.buffer()
        count = stream.readinto(buffer[: min(left, len(buffer))])
        if not count:
            raise ValueError(f"the file ends within tensor {tensor.name!r}")
        hasher.update(buffer[:count])
        writing.write(fd, buffer[:count], position)
        position += count
        left -= count
    return hasher.digest()


def _write_all(fd: int, data: memoryview, position: int) -> None:
    while data:
        written = os.pwrite(fd, data, position)
        data, position = data[written:], position + written


def _segment_digests(placements: Iterable[Placement], digests: Iterable[Digest], count: int) -> list[Digest]:
    """A segment's address: the hash of what lies where in it."""
    hashers = [blake3() for _ in range(count)]
    for placement, digest in zip(placements, digests, strict=True):
        size_bytes = placement.tensor.size_bytes
        hashers[placement.segment].update(
            digest + size_bytes.to_bytes(8, "little") + placement.offset_bytes.to_bytes(8, "little")
        )
    return [hasher.digest() for hasher in hashers]


class HostMemory(Tier[Weights]):
    """Models whose segments are in memory, each distinct segment once."""

    name = "host"

    def __init__(self, capacity_bytes: int, policy: EvictionPolicy) -> None:
        super().__init__(capacity_bytes, policy)
        self.segments: dict[Digest, Segment] = {}
        self.on_segment_freed: Callable[[Segment], object] = lambda segment: None

    def own_bytes(self, entry: TierEntry[Weights]) -> int:
        own = (segment for segment in set_of(entry.content.segments) if segment.users == 1)
        return sum(in_pages(segment.size_bytes) for segment in own)

    def lasting_bytes(self) -> int:
        used = (s for entry in self.entries.values() if entry.in_use for s in entry.content.segments)
        return sum(in_pages(segment.size_bytes) for segment in set_of(used))

    def deduplicated_bytes(self) -> int:
        """Memory that the resident models would take more if each had segments of its own."""
        return sum(in_pages(s.size_bytes) * (s.users - 1) for s in self.segments.values())

    def admit(self, address: Address, weights: Weights, reload_s: float) -> TierEntry[Weights]:
        """Adds a model; segments whose content is here already are closed and the present ones used."""
        shared = tuple(self._shared(segment) for segment in weights.segments)
        for segment in set_of(shared):
            segment.users += 1
        size_bytes = sum(in_pages(segment.size_bytes) for segment in set_of(shared))
        return self.add(address, size_bytes, reload_s, replace(weights, segments=shared))

    def _shared(self, segment: Segment) -> Segment:
        present = self.segments.setdefault(segment.digest, segment)
        if present is not segment:
            segment.close()
        return present

    def _free(self, entry: TierEntry[Weights]) -> None:
        for segment in set_of(entry.content.segments):
            segment.users -= 1
            if segment.users == 0:
                del self.segments[segment.digest]
                self._close(segment)

    def _close(self, segment: Segment) -> None:
        self.on_segment_freed(segment)
        segment.close()

    def close(self) -> None:
        for segment in self.segments.values():
            self._close(segment)
        self.segments.clear()
        self.entries.clear()
        self.held_bytes = 0


def set_of(segments: Iterable[Segment]) -> list[Segment]:
    """Each segment once: a model may hold the same content several times."""
    return list({id(segment): segment for segment in segments}.values())


def tensor_bytes(
    weights: Weights, mapped: Mapping[int, mmap.mmap] | None = None
) -> Iterator[tuple[Placement, memoryview]]:
    """The tensors' bytes in the order of their file, mapped read-only.

    Segments that are `mapped` already, by their numbers, are read there.
    """
    maps = dict(mapped or {})
    try:
        for placement in weights.placements:
            size_bytes = placement.tensor.size_bytes
            if not size_bytes:
                yield placement, memoryview(b"")
                continue
            if placement.segment not in maps:
                maps[placement.segment] = weights.segments[placement.segment].map()
            with memoryview(maps[placement.segment]) as whole:
                yield placement, whole[placement.offset_bytes : placement.offset_bytes + size_bytes]
    finally:
        maps.clear()
