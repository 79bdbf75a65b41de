"""A resident model's memory is on huge pages where the kernel can, and just as good where it cannot."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from serving_adapter.model_store import mapped_memory
from serving_adapter.model_store.mapped_memory import HUGE_PAGE_BYTES, MappedMemory
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.tiers.host_memory import (
    JOINED_BYTES,
    place,
    segment_sizes,
    tensor_bytes,
)
from serving_adapter.model_store.tiers.huge_pages import collapse
from serving_adapter.model_store.weights_file import StoredTensor
from tests.support.stores.store_in_process import PLENTY, address

HEADER = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S{4} ")


def in_huge_pages(memory: MappedMemory) -> int:
    """The bytes of it that this process has mapped by huge pages."""
    start = memory._address
    end, found, is_inside = start + len(memory.buffer), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if header := HEADER.match(line):
            is_inside = start <= int(header[1], 16) < end
        elif is_inside and line.startswith("ShmemPmdMapped:"):
            found += 1024 * int(line.split()[1])
    return found


def touch(memory: MappedMemory) -> None:
    np.frombuffer(memory.buffer, np.uint8)[:: 1 << 12].sum()


def memory_file(size_bytes: int) -> int:
    descriptor = os.memfd_create("rrl-test", os.MFD_CLOEXEC)
    for start in range(0, size_bytes, 1 << 20):
        os.pwrite(descriptor, b"\1" * min(1 << 20, size_bytes - start), start)
    return descriptor


@pytest.fixture(scope="module")
def can_collapse():
    """Skips where the kernel cannot, and says why."""
    descriptor = memory_file(HUGE_PAGE_BYTES)
    try:
        collapse(descriptor, HUGE_PAGE_BYTES)
    except OSError as error:
        pytest.skip(f"this kernel puts no pages of memory files together: {error}")
    finally:
        os.close(descriptor)


def weights_of(size_bytes: int) -> dict[str, np.ndarray]:
    return {"weight": np.arange(size_bytes // 8), "bias": np.arange(7)}


async def mapped_by_a_reader(store, name: str, **settings) -> tuple[MappedMemory, bytes]:
    """A model as a client maps it, and the bytes of its first segment."""
    segments = (await store.open(Account(PLENTY), address(name))).model.segments
    await store.settled()
    memory = MappedMemory([segment.size_bytes for segment in segments], **settings)
    for i, segment in enumerate(segments):
        memory.map(i, segment.fd)
    touch(memory)
    start = memory.starts[0]
    return memory, bytes(memory.buffer[start : start + segments[0].size_bytes])


@pytest.mark.parametrize("copies_on_write", [False, True])
def test_a_reader_of_a_resident_model_has_it_on_huge_pages(
    make_store, repository, can_collapse, copies_on_write
):
    weights = weights_of(2 * HUGE_PAGE_BYTES + 4096)
    repository.add("a", weights)

    async def session():
        async with make_store([repository.url], granularity="auto") as store:
            memory, data = await mapped_by_a_reader(store, "a", copies_on_write=copies_on_write)
            assert in_huge_pages(memory) == 2 * HUGE_PAGE_BYTES
            assert data == weights["weight"].tobytes()

    asyncio.run(session())


def test_a_map_that_is_there_already_gets_huge_pages_too(make_store, repository, can_collapse):
    repository.add("a", weights_of(2 * HUGE_PAGE_BYTES))

    async def session():
        async with make_store([repository.url]) as store:
            opened = await store.open(Account(PLENTY), address("a"))
            memory = MappedMemory([opened.model.segments[0].size_bytes])
            memory.map(0, opened.model.segments[0].fd)
            touch(memory)
            await store.settled()
            touch(memory)
            assert in_huge_pages(memory) == 2 * HUGE_PAGE_BYTES

    asyncio.run(session())


def test_a_kernel_that_cannot_leaves_everything_as_it_was(make_store, repository, monkeypatch):
    monkeypatch.setattr(mapped_memory, "MADV_COLLAPSE", 9_999)  # as an older one, which knows no such advice
    weights = weights_of(2 * HUGE_PAGE_BYTES)
    repository.add("a", weights)
    descriptor = memory_file(HUGE_PAGE_BYTES)

    async def session():
        async with make_store([repository.url], granularity="auto") as store:
            with pytest.raises(OSError, match="cannot put"):
                collapse(descriptor, HUGE_PAGE_BYTES)
            _, data = await mapped_by_a_reader(store, "a")
            assert data == weights["weight"].tobytes()

    asyncio.run(session())
    os.close(descriptor)


def test_a_model_that_goes_meanwhile_leaves_nothing(make_store, repository, open_descriptors):
    repository.add("a", weights_of(2 * HUGE_PAGE_BYTES))
    before = open_descriptors()

    async def session():
        async with make_store([repository.url], disk_bytes=1) as store:
            client = Account(PLENTY)
            opened = await store.open(client, address("a"))
            store.close(client, opened.lease)
            store.evict(address("a"))
            await store.settled()
            assert store.host.segments == {}

    asyncio.run(session())
    assert open_descriptors() == before


# --- where tensors lie -----------------------------------------------------------------------------


def tensors_of(sizes: list[int]) -> list[StoredTensor]:
    return [StoredTensor(str(i), "U8", (size,), sum(sizes[:i]), size) for i, size in enumerate(sizes)]


def test_small_tensors_lie_together_until_they_fill_huge_pages():
    third = HUGE_PAGE_BYTES // 3
    placements = place(tensors_of([third] * 20), HUGE_PAGE_BYTES, joins=True)
    sizes = segment_sizes(placements)
    assert len(sizes) == 7  # three of them fill a page, and little is left over
    assert all(HUGE_PAGE_BYTES <= size <= JOINED_BYTES + third for size in sizes[:-1])
    assert [p.segment for p in placements] == sorted(p.segment for p in placements)


def test_a_large_tensor_lies_alone_between_small_ones():
    placements = place(tensors_of([64, 2 * HUGE_PAGE_BYTES, 64]), HUGE_PAGE_BYTES, joins=True)
    assert [(p.segment, p.offset_bytes) for p in placements] == [(1, 0), (0, 0), (1, 64)]


def test_models_with_the_same_first_layers_share_them_although_their_tensors_are_small(
    make_store, repository
):
    layers, width = 16, 1 << 19

    def model(frozen: int, seed: int) -> dict[str, np.ndarray]:
        rng = [np.random.default_rng([i, 0 if i < frozen else seed]) for i in range(layers)]
        return {f"{i:02}": rng[i].integers(0, 255, width, np.uint8) for i in range(layers)}

    for seed in (1, 2):
        repository.add(str(seed), model(12, seed))

    async def session():
        async with make_store([repository.url], granularity="auto") as store:
            for seed in (1, 2):
                await store.open(Account(PLENTY), address(str(seed)))
            shared_bytes = store.host.deduplicated_bytes()
            assert 12 * width - JOINED_BYTES <= shared_bytes <= 12 * width

    asyncio.run(session())


# --- maps ------------------------------------------------------------------------------------------


def test_large_files_begin_at_huge_pages_and_small_ones_beside_them():
    sizes = [100, HUGE_PAGE_BYTES, 5000, 3 * HUGE_PAGE_BYTES + 1, 0, 1]
    memory = MappedMemory(sizes)
    for start, size in zip(memory.starts, sizes, strict=True):
        assert (memory._address + start) % (HUGE_PAGE_BYTES if size >= HUGE_PAGE_BYTES else 4096) == 0
    ends = [start + size for start, size in zip(memory.starts, sizes, strict=True)]
    assert all(end <= start for end, start in zip(ends, memory.starts[1:], strict=False))
    assert len(memory.buffer) >= ends[-1]


def test_what_is_written_to_a_copy_stays_in_it():
    descriptor = memory_file(HUGE_PAGE_BYTES)
    first, second = (MappedMemory([HUGE_PAGE_BYTES], copies_on_write=True) for _ in range(2))
    for memory in (first, second):
        memory.map(0, descriptor)
    os.close(descriptor)
    first.buffer[0:3] = b"new"
    assert (bytes(first.buffer[:4]), bytes(second.buffer[:4])) == (b"new\1", b"\1\1\1\1")


def test_files_that_come_back_whole_whatever_their_sizes(make_store, repository):
    rng = np.random.default_rng(0)
    model = {str(i): rng.integers(0, 255, size, np.uint8) for i, size in enumerate((5, 1 << 21, 1 << 20, 7))}
    path = repository.add("a", model)

    async def session():
        async with make_store([repository.url], granularity="auto") as store:
            weights = (await store.open(Account(PLENTY), address("a"))).model
            data = weights.header.raw + b"".join(bytes(data) for _, data in tensor_bytes(weights))
            assert data == path.read_bytes() == save(model)

    asyncio.run(session())
