"""GPU memory that others use too, intermediate results beside the weights, and several devices."""

from __future__ import annotations

import asyncio

import pytest

from serving_adapter.model_store.errors import NoRoom, StoreError
from serving_adapter.model_store.opening.account import Account
from tests.support.stores.fake_cuda import FakeCuda
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import PLENTY, address

GPU, SECOND = "cuda:0", "cuda:1"


@pytest.fixture
def abc(repository, pages):
    for i, name in enumerate("abc"):
        repository.add(name, pages(value=i))
    return repository


async def opened_and_closed(store, client: Account, name: str, device: str = GPU) -> str:
    opened = await store.open(client, address(name), device)
    store.close(client, opened.lease)
    await store.settled()
    return opened.found_in


# --- memory that others use ------------------------------------------------------------------------


def test_a_device_that_is_really_full_loses_what_nobody_uses_and_is_tried_again(make_store, abc):
    device = FakeCuda(size_bytes=3 * PAGE)

    async def session():
        async with make_store([abc.url], device=device) as store:
            client = Account(PLENTY)
            held = await store.open(client, address("a"), GPU)
            await opened_and_closed(store, client, "b")
            device.others_bytes = PAGE  # another program takes what the tier has not
            opened = await store.open(client, address("c"), GPU)
            assert device.read(opened.model) == {"weight": bytes([2]) * PAGE}
            assert device.read(held.model) == {"weight": bytes(PAGE)}
            assert set(store.gpus[GPU].entries) == {address("a"), address("c")}
            assert store.gpus[GPU].evictions == 1

    asyncio.run(session())


def test_a_device_that_is_full_of_what_is_in_use_is_an_error(make_store, abc):
    device = FakeCuda(size_bytes=PAGE)

    async def session():
        async with make_store([abc.url], device=device) as store:
            held = await store.open(Account(PLENTY), address("a"), GPU)
            with pytest.raises(StoreError, match="CUDA error 2"):
                await store.open(Account(PLENTY), address("b"), GPU)
            assert device.read(held.model) == {"weight": bytes(PAGE)}
            assert store.gpus[GPU].reserved_bytes == 0

    asyncio.run(session())


# --- intermediate results --------------------------------------------------------------------------


def test_a_hit_makes_room_for_what_its_client_computes(make_store, abc):
    """As the paper has it: a model may be there, and its intermediate results need what others hold."""
    device = FakeCuda()

    async def session():
        async with make_store([abc.url], device=device, gpu_bytes=3 * PAGE) as store:
            client, gpu = Account(PLENTY), store.gpus[GPU]
            for name in "bca":
                await opened_and_closed(store, client, name)
            opened = await store.open(client, address("a"), GPU, 2 * PAGE)
            assert opened.found_in == "gpu"
            assert set(gpu.entries) == {address("a")}
            assert (gpu.used_bytes, client.held_bytes) == (3 * PAGE, 3 * PAGE)
            with pytest.raises(NoRoom):
                await store.open(client, address("b"), GPU)
            store.close(client, opened.lease)
            assert (gpu.used_bytes, client.held_bytes) == (PAGE, 0)

    asyncio.run(session())


@pytest.mark.parametrize(("gpu_pages", "quota_pages"), [(2, 9), (9, 2)], ids=["the tier", "the quota"])
def test_intermediate_results_for_which_there_is_no_room_are_refused(make_store, abc, gpu_pages, quota_pages):
    device = FakeCuda()

    async def session():
        async with make_store([abc.url], device=device, gpu_bytes=gpu_pages * PAGE) as store:
            client, gpu = Account(quota_pages * PAGE), store.gpus[GPU]
            with pytest.raises(NoRoom, match="not the 8,192 bytes of intermediate results"):
                await store.open(client, address("a"), GPU, 2 * PAGE)
            assert (gpu.reserved_bytes, client.held_bytes, store.references) == (0, 0, 0)
            assert gpu.entries[address("a")].references == 0

    asyncio.run(session())


def test_memory_that_others_took_is_made_up_for(make_store, abc):
    device = FakeCuda(size_bytes=4 * PAGE)

    async def session():
        async with make_store([abc.url], device=device) as store:
            client = Account(PLENTY)
            for name in "bca":
                await opened_and_closed(store, client, name)
            device.others_bytes = PAGE
            await store.open(client, address("a"), GPU, 2 * PAGE)
            assert device.free_bytes() == 2 * PAGE
            assert set(store.gpus[GPU].entries) == {address("a")}

    asyncio.run(session())


def test_in_host_memory_they_are_the_clients_own_affair(make_store, abc):
    async def session():
        async with make_store([abc.url], host_bytes=PAGE) as store:
            await store.open(Account(PAGE), address("a"), "cpu", 5 * PAGE)
            assert store.host.used_bytes == PAGE

    asyncio.run(session())


# --- contents and devices --------------------------------------------------------------------------


def test_two_models_of_one_content_are_one_allocation(make_store, repository, pages):
    for name in "ab":
        repository.add(name, pages(value=7))
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device, gpu_bytes=PAGE) as store:
            client, gpu = Account(PLENTY), store.gpus[GPU]
            first, second = [await store.open(client, address(name), GPU) for name in "ab"]
            assert (len(device.memory), gpu.used_bytes) == (1, PAGE)
            assert first.model.handle == second.model.handle
            await store.settled()
            store.close(client, first.lease)
            store.evict(address("a"))
            assert device.read(second.model) == {"weight": b"\7" * PAGE}
            store.close(client, second.lease)
            store.evict(address("b"))
            assert (device.memory, gpu.used_bytes) == ({}, 0)

    asyncio.run(session())


def test_each_device_has_a_tier_of_its_own_and_copies_from_its_peer(make_store, abc):
    devices = [FakeCuda(), FakeCuda()]

    async def session():
        async with make_store([abc.url], devices=devices) as store:
            assert [tier.name for tier in store.tiers] == ["gpu", "gpu1", "host", "disk"]
            client = Account(PLENTY)
            first = await store.open(client, address("b"), GPU)
            second = await store.open(client, address("b"), SECOND)
            assert (first.found_in, second.found_in) == ("remote", "gpu")
            assert devices[1].copied_bytes == {"locked": 0, "pageable": 0, "peer": PAGE}
            assert devices[1].read(second.model) == devices[0].read(first.model)
            await store.settled()
            assert await opened_and_closed(store, client, "c", SECOND) == "remote"
            store.close(client, first.lease)
            store.evict(address("b"), "gpu")
            assert (len(devices[0].memory), len(devices[1].memory)) == (0, 2)
            with pytest.raises(StoreError, match="it can on 'cpu' or 'cuda:0' or 'cuda:1'"):
                await store.open(client, address("b"), "cuda:2")

    asyncio.run(session())


def test_a_content_that_a_device_has_is_not_copied_from_its_peer_under_another_name(
    make_store, repository, pages
):
    for name in "ab":
        repository.add(name, pages(value=7))
    devices = [FakeCuda(), FakeCuda()]

    async def session():
        async with make_store([repository.url], devices=devices, gpu_bytes=PAGE) as store:
            client = Account(PLENTY)
            await store.open(client, address("a"), SECOND)
            await store.open(client, address("b"), GPU)
            opened = await store.open(client, address("b"), SECOND)
            assert devices[1].read(opened.model) == {"weight": b"\7" * PAGE}
            assert (devices[1].copied_bytes["peer"], len(devices[1].memory)) == (0, 1)

    asyncio.run(session())
