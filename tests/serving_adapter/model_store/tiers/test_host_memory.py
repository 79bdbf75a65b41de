"""Host memory: sealed against its readers, each content once, and given back to the last byte."""

from __future__ import annotations

import ctypes
import fcntl
import io
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from serving_adapter.model_store.errors import NoRoom
from serving_adapter.model_store.tiers import host_memory
from serving_adapter.model_store.tiers.eviction import LeastRecentlyUsed
from serving_adapter.model_store.tiers.host_memory import (
    ALIGNMENT_BYTES,
    HostMemory,
    Weights,
    fill,
    in_pages,
    place,
    resident_bytes,
    segment_sizes,
    tensor_bytes,
)
from serving_adapter.model_store.tiers.tier import Address
from serving_adapter.model_store.weights_file import StoredTensor, read_safetensors_header

PAGE = mmap.PAGESIZE
WHOLE = None  # granularity "model"


def read(data: bytes, smallest_object_bytes: int | None = WHOLE) -> Weights:
    stream = io.BytesIO(data)
    header = read_safetensors_header(stream)
    return fill(stream, header, place(header.tensors, smallest_object_bytes))


def weights_of(smallest_object_bytes: int | None = WHOLE, **tensors: object) -> Weights:
    return read(save({name: np.asarray(t) for name, t in tensors.items()}), smallest_object_bytes)


def file_of(weights: Weights) -> bytes:
    return weights.header.raw + b"".join(bytes(data) for _, data in tensor_bytes(weights))


def address(key: object) -> Address:
    return Address("safetensors", str(key), "1")


def tier(capacity_bytes: int = 1 << 30) -> HostMemory:
    return HostMemory(capacity_bytes, LeastRecentlyUsed())


def page(value: int, count: int = 1) -> np.ndarray:
    return np.full(count * PAGE, value, np.uint8)


# --- where tensors lie -----------------------------------------------------------------------------

stored = st.lists(st.integers(0, 200), max_size=12).map(
    lambda sizes: [StoredTensor(str(i), "U8", (s,), sum(sizes[:i]), s) for i, s in enumerate(sizes)]
)


@given(stored, st.none() | st.integers(0, 200))
def test_every_tensor_is_placed_once_aligned_and_beside_the_others(tensors, smallest):
    placements = place(tensors, smallest)
    assert [placement.tensor for placement in placements] == tensors
    assert {p.segment for p in placements} == set(range(len(segment_sizes(placements))))
    taken: dict[int, int] = {}  # segment -> its end so far
    for tensor, segment, offset_bytes in placements:
        assert offset_bytes % ALIGNMENT_BYTES == 0
        assert offset_bytes >= taken.get(segment, 0)
        taken[segment] = offset_bytes + tensor.size_bytes
    assert segment_sizes(placements) == [taken[segment] for segment in sorted(taken)]
    alone = {
        p.segment for p in placements if smallest is not None and p.tensor.size_bytes >= max(1, smallest)
    }
    assert len(taken) - len(alone) == (len(alone) < len(tensors))  # the rest has one segment together


def test_granularity_model_is_one_segment_and_tensor_is_one_for_each_large_one():
    sizes = [10, 5000, 20, 6000, 0]
    tensors = [StoredTensor(str(i), "U8", (s,), 0, s) for i, s in enumerate(sizes)]
    assert {p.segment for p in place(tensors, WHOLE)} == {0}
    assert [p.segment for p in place(tensors, 5000)] == [2, 0, 2, 1, 2]
    assert [p.offset_bytes for p in place(tensors, 5000)] == [0, 0, 64, 0, 128]
    assert [p.segment for p in place(tensors, 0)] == [0, 1, 2, 3, 4]
    assert segment_sizes(place(tensors, 5000)) == [5000, 6000, 128]
    assert resident_bytes(place(tensors, 5000)) == 5 * PAGE


# --- reading ---------------------------------------------------------------------------------------

arrays = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from([np.float32, np.int64, np.uint8, np.bool_, np.float16]),
    st.lists(st.integers(0, 40), max_size=3),
    st.integers(0, 3),
)


@settings(deadline=None)
@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=3), arrays, max_size=5),
    st.none() | st.sampled_from([0, 64, 4000]),
    st.integers(1, 300),
)
def test_the_file_comes_back_byte_for_byte_whatever_the_granularity(model, smallest, step):
    class InSmallSteps(io.BytesIO):
        def readinto(self, buffer):
            return super().readinto(memoryview(buffer)[:step])

    data = save(model)
    stream = InSmallSteps(data)
    header = read_safetensors_header(stream)
    weights = fill(stream, header, place(header.tensors, smallest))
    assert file_of(weights) == data
    assert {n: t.tolist() for n, t in load(file_of(weights)).items()} == {
        n: t.tolist() for n, t in model.items()
    }
    weights.close()


def test_a_tensor_larger_than_a_chunk_is_read_whole(monkeypatch):
    monkeypatch.setattr(host_memory, "CHUNK_BYTES", 1000)
    data = save({"a": np.random.default_rng(0).random(12_345), "b": np.arange(7)})
    weights = read(data)
    assert file_of(weights) == data
    weights.close()


def test_a_file_that_ends_within_a_tensor_is_refused_and_leaves_nothing(open_descriptors):
    data = save({"first": page(1), "second": page(2)})
    before = open_descriptors()
    with pytest.raises(ValueError, match="the file ends within tensor 'second'"):
        read(data[:-1], smallest_object_bytes=1)
    with pytest.raises(ValueError, match="the file ends within tensor 'first'"):
        read(data[: -2 * PAGE])
    assert open_descriptors() == before


def test_a_store_out_of_descriptors_leaves_none_behind(monkeypatch, open_descriptors):
    made: list[int] = []

    def third_fails(*arguments):
        if len(made) == 2:
            raise OSError(24, "Too many open files")
        made.append(create(*arguments))
        return made[-1]

    create = os.memfd_create
    monkeypatch.setattr(os, "memfd_create", third_fails)
    before = open_descriptors()
    with pytest.raises(OSError, match="Too many"):
        weights_of(1, a=page(1), b=page(2), c=page(3))
    assert open_descriptors() == before


@pytest.mark.parametrize("fails", ["open", "dup2"])
def test_a_copy_to_be_handed_over_that_fails_leaves_no_descriptor(monkeypatch, open_descriptors, fails):
    def refuse(*_: object, **__: object) -> int:
        raise OSError(24, "Too many open files")

    before = open_descriptors()
    with monkeypatch.context() as full:
        full.setattr(os, fails, refuse)
        with pytest.raises(OSError, match="Too many"):
            host_memory.sealed_copy(b"a layout")
    assert open_descriptors() == before


# --- what a client can do with a descriptor --------------------------------------------------------


@pytest.fixture
def descriptor():
    """A client's own duplicate of a segment's descriptor, as a socket hands it over."""
    weights = weights_of(a=page(7))
    fd = os.dup(weights.segments[0].fd)
    yield fd
    assert file_of(weights) == save({"a": page(7)})
    os.close(fd)
    weights.close()


def reopen_and_write(fd: int) -> None:
    with Path(f"/proc/self/fd/{fd}").open("r+b", buffering=0) as file:
        file.write(b"x")


@pytest.mark.parametrize(
    "attempt",
    [
        lambda fd: mmap.mmap(fd, PAGE),
        lambda fd: mmap.mmap(fd, PAGE, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE),
        lambda fd: os.write(fd, b"x"),
        lambda fd: os.pwrite(fd, b"x", 10),
        lambda fd: os.ftruncate(fd, 0),
        lambda fd: os.ftruncate(fd, 1 << 30),
        lambda fd: os.posix_fallocate(fd, 0, 2 * PAGE),
        lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        reopen_and_write,
        lambda fd: os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC),
    ],
    ids=[
        "map",
        "map-to-write",
        "write",
        "pwrite",
        "shrink",
        "grow",
        "allocate",
        "seal",
        "reopen",
        "truncate",
    ],
)
def test_a_client_can_change_nothing(descriptor, attempt):
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    with pytest.raises(OSError, match=r"not permitted|Bad file descriptor|Invalid argument|denied"):
        attempt(descriptor)
    assert os.fstat(descriptor).st_size == PAGE
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) == seals


def test_a_client_that_makes_its_map_writable_changes_at_most_a_copy_of_its_own(descriptor):
    """mprotect is refused, or what is written stays private to whoever wrote it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    for kind in (mmap.MAP_SHARED, mmap.MAP_PRIVATE):
        start = libc.mmap(None, PAGE, mmap.PROT_READ, kind, descriptor, 0)
        if libc.mprotect(start, PAGE, mmap.PROT_READ | mmap.PROT_WRITE) == 0:
            assert kind == mmap.MAP_PRIVATE
            ctypes.memset(start, 0, PAGE)
        libc.munmap(start, PAGE)
    assert os.pread(descriptor, PAGE, 0) == bytes(page(7))


def test_what_a_client_has_mapped_outlives_its_eviction():
    host = tier()
    entry = host.admit(address("a"), weights_of(a=page(7)), 1.0)
    fd = os.dup(entry.content.segments[0].fd)
    with mmap.mmap(fd, PAGE, prot=mmap.PROT_READ) as view:
        os.close(fd)
        host.evict(entry)
        assert host.used_bytes == 0
        assert view[:] == bytes(page(7))


# --- each content once -----------------------------------------------------------------------------


def test_models_that_were_fine_tuned_from_one_share_what_stayed_frozen(open_descriptors):
    before, host = open_descriptors(), tier()
    base = host.admit(address("base"), weights_of(1, body=page(1, 10), head=page(2)), 1.0)
    assert host.used_bytes == 11 * PAGE
    tuned = host.admit(address("tuned"), weights_of(1, body=page(1, 10), head=page(3)), 1.0)
    assert host.used_bytes == 12 * PAGE
    assert host.deduplicated_bytes() == 10 * PAGE
    assert tuned.usage.size_bytes == 11 * PAGE
    assert open_descriptors() == before + 3
    host.evict(base)
    assert (host.used_bytes, host.deduplicated_bytes()) == (11 * PAGE, 0)
    assert file_of(tuned.content) == save({"body": page(1, 10), "head": page(3)})
    host.evict(tuned)
    assert (host.used_bytes, open_descriptors()) == (0, before)


def test_names_types_and_shapes_do_not_matter_to_what_is_shared():
    host, values = tier(), np.arange(PAGE // 4, dtype=np.int32)
    host.admit(address(1), weights_of(1, a=values), 1.0)
    other = host.admit(address(2), weights_of(1, b=values.view(np.float32).reshape(2, -1)), 1.0)
    assert (host.used_bytes, host.deduplicated_bytes()) == (PAGE, PAGE)
    assert [t.dtype for t in other.content.header.tensors] == ["F32"]


def test_the_same_content_twice_in_one_model_is_there_once(open_descriptors):
    before, host = open_descriptors(), tier()
    entry = host.admit(address("tied"), weights_of(1, embedding=page(5, 3), output=page(5, 3)), 1.0)
    assert (host.used_bytes, entry.usage.size_bytes) == (3 * PAGE, 3 * PAGE)
    assert open_descriptors() == before + 1
    assert host.deduplicated_bytes() == 0  # of the models, not within one
    assert file_of(entry.content) == save({"embedding": page(5, 3), "output": page(5, 3)})
    host.evict(entry)
    assert (host.used_bytes, open_descriptors()) == (0, before)


def test_a_whole_model_is_shared_only_if_all_of_it_is_the_same():
    host = tier()
    host.admit(address(1), weights_of(a=page(1), b=page(2)), 1.0)
    host.admit(address(2), weights_of(a=page(1), b=page(2)), 1.0)
    assert host.used_bytes == 2 * PAGE
    host.admit(address(3), weights_of(a=page(1), b=page(3)), 1.0)
    assert host.used_bytes == 4 * PAGE


def test_the_same_bytes_at_other_places_are_another_content():
    """Two tensors of 64 and 128 bytes: swapped, the segment holds other bytes, though no hash is new."""
    host = tier()
    a, b = np.full(64, 1, np.uint8), np.full(128, 2, np.uint8)
    first = host.admit(address(1), read(save({"a": a, "b": b})), 1.0)
    second = host.admit(address(2), read(save({"a": b, "b": a})), 1.0)
    assert host.used_bytes == 2 * PAGE
    for entry, model in ((first, {"a": a, "b": b}), (second, {"a": b, "b": a})):
        assert file_of(entry.content) == save(model)


def test_empty_tensors_and_scalars_are_tensors_too(open_descriptors):
    before, host = open_descriptors(), tier()
    model = {"empty": np.zeros((0, 3), np.float32), "scalar": np.float64(2.5), "one": np.ones(1, np.int8)}
    for smallest in (WHOLE, 0, 1):
        entry = host.admit(address(smallest), weights_of(smallest, **model), 1.0)
        assert file_of(entry.content) == save({n: np.asarray(t) for n, t in model.items()})
    only_empty = host.admit(address("only"), weights_of(empty=model["empty"]), 1.0)
    assert only_empty.usage.size_bytes == PAGE  # a segment takes a page at least
    nothing = host.admit(address("nothing"), weights_of(), 1.0)
    assert (nothing.content.segments, nothing.usage.size_bytes) == ((), 0)
    for entry in list(host.entries.values()):
        host.evict(entry)
    assert (host.used_bytes, open_descriptors()) == (0, before)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=3), max_size=12),
    st.sampled_from([WHOLE, 1]),
    st.lists(st.booleans(), min_size=12, max_size=12),
)
def test_bytes_and_descriptors_are_those_of_the_distinct_contents(open_descriptors, models, smallest, leaves):
    """Models of a few one-page tensors each, of five contents in all; some are let go at once."""
    before, host, files = open_descriptors(), tier(12 * PAGE), {}
    for key, (contents, goes) in enumerate(zip(models, leaves, strict=False)):
        data = save({f"t{i}": page(value) for i, value in enumerate(contents)})
        weights = read(data, smallest)
        try:
            host.reserve(resident_bytes(weights.placements))
        except NoRoom:
            weights.close()
            continue
        host.unreserve(resident_bytes(weights.placements))
        entry = host.admit(address(key), weights, 1.0)
        entry.references = 0 if goes else 1
        files[str(key)] = data
        assert host.used_bytes <= 12 * PAGE
        resident = [e.content for e in host.entries.values()]
        segments = {s.digest for w in resident for s in w.segments}
        assert open_descriptors() == before + len(segments)
        assert host.held_bytes == sum(in_pages(s.size_bytes) for s in host.segments.values())
        if smallest == 1:
            values = {bytes(data) for w in resident for _, data in tensor_bytes(w)}
            assert host.used_bytes == len(values) * PAGE
        assert {key.name: file_of(e.content) for key, e in host.entries.items()} == files
        if goes:
            host.evict(entry)
            del files[str(key)]
    for entry in list(host.entries.values()):
        entry.references = 0
        host.evict(entry)
    assert (host.used_bytes, host.segments, open_descriptors()) == (0, {}, before)


def test_closing_the_tier_gives_every_descriptor_back(open_descriptors):
    before, host = open_descriptors(), tier()
    for key in range(5):
        host.admit(address(key), weights_of(1, a=page(key), b=page(9)), 1.0)
    host.close()
    assert (open_descriptors(), host.used_bytes) == (before, 0)


def test_memory_is_counted_in_whole_pages():
    assert [in_pages(size) for size in (0, 1, PAGE, PAGE + 1)] == [PAGE, PAGE, PAGE, 2 * PAGE]
