"""Host memory is locked for copies to a device, by a thread that nobody waits for in the event loop."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import numpy as np
import pytest

from serving_adapter.model_store.opening.account import Account
from tests.support.stores.fake_cuda import FakeCuda
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import PLENTY, address
from tests.support.waiting import eventually

GPU = "cuda:0"


def of_two_segments(value: int) -> dict[str, np.ndarray]:
    """Tensors that are large enough to lie alone, of which the first is the same in all models."""
    return {"first": np.full(1 << 17, 9, np.uint8), "second": np.full(1 << 17, value, np.uint8)}


def test_a_device_copies_from_the_locked_pages_themselves(make_store, repository):
    """The driver knows locked memory by its address: another map of the same pages is pageable to it."""
    repository.add("a", of_two_segments(1))
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device, granularity="tensor") as store:
            await store.open(Account(PLENTY), address("a"), GPU)
            assert device.copied_bytes == {"locked": 2 << 17, "pageable": 0, "peer": 0}
            assert sorted(device.locked.values()) == [1 << 17, 1 << 17]

    asyncio.run(session())


def test_no_page_is_locked_or_unlocked_by_the_event_loop(make_store, repository, pages):
    repository.add("a", pages())
    device = FakeCuda()

    async def session():
        async with make_store([repository.url], device=device) as store:
            await store.open(Account(PLENTY), address("a"))
            assert device.locked == {}  # only what goes to a device
            opened = await store.open(Account(PLENTY), address("a"), GPU)
            assert device.locked
            store.forget([opened.lease])

    asyncio.run(session())
    assert device.locked == {}
    assert len(device.threads) == 1
    assert threading.main_thread() not in device.threads


def test_a_segment_is_locked_once_and_unlocked_when_its_last_model_goes(make_store, repository):
    for i, name in enumerate("ab"):
        repository.add(name, of_two_segments(i))
    device = FakeCuda()

    def locks_are(number: int) -> bool:
        return len(device.locked) == number

    async def session():
        async with make_store([repository.url], device=device, granularity="tensor") as store:
            client = Account(PLENTY)
            leases = [(await store.open(client, address(name), GPU)).lease for name in "ab"]
            assert len(device.locked) == 3  # of which both models have one
            await store.settled()
            for i, name in enumerate("ab"):
                store.close(client, leases[i])
                store.evict(address(name), "host")
                await eventually(partial(locks_are, 2 * (1 - i)))

    asyncio.run(session())


@pytest.mark.parametrize("failing", ["lock_pages", "unlock_pages"])
def test_pages_that_cannot_be_locked_are_copied_all_the_same(
    make_store, repository, pages, monkeypatch, failing
):
    def fail(data: memoryview) -> None:
        raise RuntimeError("cuMemHostRegister_v2 failed with CUDA error 801")

    repository.add("a", pages(value=7))
    device = FakeCuda()
    monkeypatch.setattr(device, failing, fail)

    async def session():
        async with make_store([repository.url], device=device) as store:
            opened = await store.open(Account(PLENTY), address("a"), GPU)
            assert device.read(opened.model) == {"weight": b"\7" * PAGE}

    asyncio.run(session())
