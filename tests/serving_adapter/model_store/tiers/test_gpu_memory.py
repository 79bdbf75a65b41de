"""The GPU tier, over a device that is only pretended, and over a real one where there is one."""

from __future__ import annotations

import asyncio
import os

import numpy as np
import pytest
import torch
from safetensors.numpy import save

from serving_adapter.model_store.cuda import CudaError
from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.store import ModelStore
from serving_adapter.model_store.torch_side import tensors
from tests.support.stores.fake_cuda import FakeCuda
from tests.support.stores.running_store import PAGE, stores
from tests.support.stores.store_in_process import PLENTY, Gated, address, counters
from tests.support.waiting import eventually

GPU = "cuda:0"


async def opened_and_closed(store: ModelStore, client: Account, name: str) -> str:
    opened = await store.open(client, address(name), GPU)
    store.close(client, opened.lease)
    await store.settled()
    return opened.found_in


def test_a_miss_fills_every_tier_and_the_highest_that_has_it_answers(make_store, repository, pages):
    repository.add("a", pages(3, value=7))

    async def session():
        async with make_store([repository.url], device=FakeCuda()) as store:
            client = Account(PLENTY)
            assert [tier.name for tier in store.tiers] == ["gpu", "host", "disk"]
            assert await opened_and_closed(store, client, "a") == "remote"
            assert counters(store) == {"gpu": (0, 1), "host": (0, 1), "disk": (0, 1), "remote": (1, 0)}
            assert (store.gpus[GPU].used_bytes, store.host.used_bytes) == (3 * PAGE, 3 * PAGE)
            assert await opened_and_closed(store, client, "a") == "gpu"
            assert counters(store) == {"gpu": (1, 1), "host": (0, 1), "disk": (0, 1), "remote": (1, 0)}
            store.evict(address("a"), "gpu")
            assert await opened_and_closed(store, client, "a") == "host"
            assert counters(store) == {"gpu": (1, 2), "host": (1, 1), "disk": (0, 1), "remote": (1, 0)}
            store.evict(address("a"), "gpu")
            store.evict(address("a"), "host")
            assert await opened_and_closed(store, client, "a") == "disk"
            assert counters(store) == {"gpu": (1, 3), "host": (1, 2), "disk": (1, 1), "remote": (1, 0)}
            store.evict(address("a"))
            assert [tier.used_bytes for tier in store.tiers] == [0, 0, 0]
            assert await opened_and_closed(store, client, "a") == "remote"

    asyncio.run(session())


@pytest.mark.parametrize("granularity", ["model", "tensor"])
def test_a_model_is_one_allocation_with_every_tensor_aligned(make_store, repository, granularity):
    random = np.random.default_rng(0)
    model = {
        "large": random.integers(0, 255, 1 << 17, np.uint8),
        "odd": random.integers(0, 255, 13, np.uint8),
        "half": random.random(7).astype(np.float16),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), np.float32),
    }
    repository.add("a", model)
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device, granularity=granularity) as store:
            opened = await store.open(Account(PLENTY), address("a"), GPU)
            assert device.read(opened.model) == {name: t.tobytes() for name, t in model.items()}
            assert len(device.memory) == 1
            assert {placement.segment for placement in opened.model.placements} == {0}
            assert all(p.offset_bytes % 64 == 0 for p in opened.model.placements)
            assert store.gpus[GPU].used_bytes == opened.model.size_bytes == len(*device.memory.values())

    asyncio.run(session())


def test_a_model_without_bytes_opens_too(make_store, repository):
    repository.add("empty", {"nothing": np.zeros(0, np.float32)})
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device) as store:
            opened = await store.open(Account(PLENTY), address("empty"), GPU)
            assert device.read(opened.model) == {"nothing": b""}
            store.forget([opened.lease])
            await store.settled()
            store.evict(address("empty"))
            assert device.memory == {}

    asyncio.run(session())


def test_a_full_gpu_evicts_what_is_not_in_use_and_frees_its_memory(make_store, repository, pages):
    for i, name in enumerate("abcd"):
        repository.add(name, pages(value=i))
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device, gpu_bytes=2 * PAGE) as store:
            client = Account(PLENTY)
            held = await store.open(client, address("a"), GPU)
            for name in "bc":
                assert await opened_and_closed(store, client, name) == "remote"
            assert set(store.gpus[GPU].entries) == {address("a"), address("c")}
            assert (store.gpus[GPU].evictions, len(device.memory)) == (1, 2)
            assert device.read(held.model) == {"weight": bytes(PAGE)}
            kept = await store.open(client, address("c"), GPU)
            assert kept.found_in == "gpu"
            with pytest.raises(NoRoom, match="models in use are never evicted"):
                await store.open(client, address("d"), GPU)
            assert (store.gpus[GPU].reserved_bytes, len(device.memory)) == (0, 2)
            store.close(client, kept.lease)
            assert await opened_and_closed(store, client, "d") == "host"
            assert set(store.gpus[GPU].entries) == {address("a"), address("d")}

    asyncio.run(session())


def test_a_model_in_both_tiers_counts_in_both(make_store, repository, pages):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url], device=FakeCuda()) as store:
            client = Account(2 * PAGE - 1)
            held = await store.open(client, address("a"), GPU)
            with pytest.raises(NoRoom, match="may refer to 8,191"):
                await store.open(client, address("a"))
            store.close(client, held.lease)
            assert client.held_bytes == 0
            await store.open(client, address("a"))
            assert client.held_bytes == PAGE

    asyncio.run(session())


def test_a_model_larger_than_the_gpu_tier_is_refused(make_store, repository, pages):
    repository.add("a", pages(2))

    async def session():
        async with make_store([repository.url], device=FakeCuda(), gpu_bytes=PAGE) as store:
            with pytest.raises(NoRoom, match="the gpu tier holds 4,096 in all"):
                await store.open(Account(PLENTY), address("a"), GPU)
            await store.settled()
            assert store.host.entries[address("a")].references == 0
            assert (await store.open(Account(PLENTY), address("a"))).found_in == "host"

    asyncio.run(session())


def test_the_host_copy_of_a_model_on_the_gpu_can_go(make_store, repository, pages):
    """So that the GPU holds more models than host memory does."""
    for i, name in enumerate("abc"):
        repository.add(name, pages(value=i))
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device, host_bytes=PAGE) as store:
            client, models = Account(PLENTY), []
            for name in "abc":
                models.append((await store.open(client, address(name), GPU)).model)
                await store.settled()
            assert len(store.gpus[GPU].entries) == 3
            assert set(store.host.entries) == {address("c")}
            assert [device.read(m) for m in models] == [{"weight": bytes([i]) * PAGE} for i in range(3)]

    asyncio.run(session())


def test_eager_reclaim_drops_the_host_copy_at_once_and_the_gpus_with_its_last_reference(
    make_store, repository, pages
):
    repository.add("a", pages())
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device, eager_reclaim=True) as store:
            client = Account(PLENTY)
            first, second = [await store.open(client, address("a"), GPU) for _ in range(2)]
            await store.settled()
            assert (store.host.used_bytes, store.gpus[GPU].used_bytes) == (0, PAGE)
            store.close(client, first.lease)
            assert len(device.memory) == 1
            store.close(client, second.lease)
            assert (store.gpus[GPU].used_bytes, device.memory) == (0, {})

    asyncio.run(session())


def test_concurrent_opens_copy_it_once(make_store, repository, pages):
    repository.add("a", pages())
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device) as store:
            opening = [store.open(Account(PLENTY), address("a"), GPU) for _ in range(10)]
            opening += [store.open(Account(PLENTY), address("a")) for _ in range(10)]
            opened = await asyncio.gather(*opening)
            assert len({id(one.model) for one in opened}) == 2
            assert (store.repositories.hits, len(device.memory)) == (1, 1)
            assert store.gpus[GPU].entries[address("a")].references == 10

    asyncio.run(session())


def test_many_models_load_at_once_for_one_client(make_store, repository, pages):
    for i in range(8):
        repository.add(f"m{i}", pages(value=i))
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device) as store:
            client = Account(PLENTY)
            opened = await asyncio.gather(*(store.open(client, address(f"m{i}"), GPU) for i in range(8)))
            assert [device.read(one.model)["weight"][0] for one in opened] == list(range(8))

    asyncio.run(session())


def test_who_joins_a_copying_is_bound_by_his_own_quota(make_store, repository, pages):
    repository.add("a", pages(2))

    async def session():
        async with make_store(device=FakeCuda()) as store:
            remote = Gated(repository.url)
            store.repositories.remotes = [remote]
            opening = [
                asyncio.ensure_future(store.open(Account(quota), address("a"), GPU))
                for quota in (PAGE, PLENTY)
            ]
            await eventually(lambda: remote.opened == ["a"])
            remote.gate.set()
            refused, opened = await asyncio.gather(*opening, return_exceptions=True)
            assert isinstance(refused, NoRoom)
            assert not isinstance(opened, BaseException)
            assert opened.model is store.gpus[GPU].entries[address("a")].content

    asyncio.run(session())


class Broken(FakeCuda):
    """A device that takes no bytes."""

    def copy_in(self, pointer: int, data: memoryview) -> None:
        raise CudaError("cuMemcpyHtoD_v2 failed with CUDA error 700")


def failure_of(make_store, repository, device: FakeCuda) -> Exception:
    async def session():
        async with make_store([repository.url], device=device) as store:
            with pytest.raises((StoreError, CudaError)) as refused:
                await store.open(Account(PLENTY), address("a"), GPU)
            await store.settled()
            assert (store.gpus[GPU].used_bytes, store.host.entries[address("a")].references) == (0, 0)
            return refused.value

    return asyncio.run(session())


def test_a_copy_that_fails_frees_its_memory(make_store, repository, pages):
    repository.add("a", pages())
    device = Broken()
    failure_of(make_store, repository, device)
    assert device.memory == {}


@pytest.mark.parametrize(
    ("device", "number"), [(Broken(), 700), (FakeCuda(size_bytes=1), 2)], ids=["broken", "full"]
)
def test_a_device_that_fails_is_told_as_an_error_of_the_store(make_store, repository, pages, device, number):
    repository.add("a", pages())
    error = failure_of(make_store, repository, device)
    assert isinstance(error, StoreError)
    assert f"CUDA error {number}" in str(error)


def test_an_unnamed_file_leaves_the_gpu_with_its_last_reference(make_store, pages):
    device = FakeCuda()

    async def session():
        async with make_store(device=device) as store:
            client = Account(PLENTY)
            with os.fdopen(os.memfd_create("weights", os.MFD_CLOEXEC), "w+b") as file:
                file.write(save(pages(value=7)))
                file.flush()
                opened = await store.open_file(client, "safetensors", "label", os.dup(file.fileno()), GPU)
            assert device.read(opened.model) == {"weight": b"\7" * PAGE}
            store.close(client, opened.lease)
            assert [tier.used_bytes for tier in store.tiers] == [0, 0, 0]
            assert device.memory == {}

    asyncio.run(session())


def test_only_the_gpu_that_there_is_can_be_asked_for(make_store, repository, pages):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url], device=FakeCuda()) as store:
            for device in ("cuda:1", "tpu", ""):
                with pytest.raises(StoreError, match="cannot open models on"):
                    await store.open(Account(PLENTY), address("a"), device)
            with pytest.raises(UnknownModel):
                await store.open(Account(PLENTY), address("absent"), GPU)

    asyncio.run(session())


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and there is none")
def test_a_process_maps_the_gpu_memory_of_the_stores_process(tmp_path, repository):
    """The store's process allocates and fills it; this one opens it by its CUDA IPC handle."""
    random = np.random.default_rng(0)
    model = {
        "weight": random.random((512, 1000)).astype(np.float32),
        "steps": np.arange(7),
        "empty": np.zeros((0, 3), np.float32),
    }
    repository.add("a", model)
    with (
        stores(tmp_path) as start,
        start("--remote", repository.url, "--gpu-bytes", "1G").client() as client,
    ):
        for found_in in ("remote", "gpu"):
            opened = client.open("a", "1", device=GPU)
            assert opened.found_in == found_in
            on_gpu = tensors.state_dict(opened)
            assert {t.device.type for t in on_gpu.values() if t.numel()} == {"cuda"}
            for name, expected in model.items():
                np.testing.assert_array_equal(on_gpu[name].cpu().numpy(), expected)
            del opened, on_gpu
        from_host = tensors.state_dict(client.open("a", "1"))
        np.testing.assert_array_equal(from_host["weight"].numpy(), model["weight"])
