"""A file that is not as long as its header tells evicts nobody: it is refused before room is made for it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from serving_adapter.model_store.errors import StoreError, UnknownModel
from serving_adapter.model_store.opening.store import ModelStore
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import account, address
from tests.support.stores.weights_files import with_header

PAGES = 3  # of which the header tells


@pytest.fixture(params=[0, PAGES * PAGE - 1, PAGES * PAGE + 1], ids=["hollow", "cut", "longer"])
def data_bytes(request) -> int:
    return request.param


@pytest.fixture
def full_store(make_store, repository, pages):
    """A store whose host memory is full of models that nobody uses."""
    for i, name in enumerate("abc"):
        repository.add(name, pages(value=i))

    async def fill(store: ModelStore) -> None:
        client = account()
        for name in "abc":
            store.close(client, (await store.open(client, address(name))).lease)
        await store.settled()

    return lambda: make_store([repository.url], host_bytes=PAGES * PAGE), fill


def written(path: Path, data_bytes: int) -> Path:
    size = PAGES * PAGE
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    return with_header(path, {"w": entry}, data_bytes)


def evicted_nobody(store: ModelStore) -> bool:
    is_full = set(store.host.entries) == {address(name) for name in "abc"}
    return is_full and (store.host.evictions, store.host.reserved_bytes) == (0, 0)


def test_a_clients_file(full_store, tmp_path, data_bytes):
    store_of, fill = full_store
    written(tmp_path / "w", data_bytes)

    async def session():
        async with store_of() as store:
            await fill(store)
            descriptor = os.open(tmp_path / "w", os.O_RDONLY)
            with pytest.raises(ValueError, match="its header tells of"):
                await store.open_file(account(), "safetensors", "w", descriptor)
            assert evicted_nobody(store)

    asyncio.run(session())


def test_a_file_of_a_repository(full_store, repository, pages, data_bytes):
    store_of, fill = full_store
    written(repository.add("hollow", pages()), data_bytes)

    async def session():
        async with store_of() as store:
            await fill(store)
            with pytest.raises(StoreError, match=r"cannot be read from file:.*its header tells of"):
                await store.open(account(), address("hollow"))
            assert evicted_nobody(store)

    asyncio.run(session())


def test_a_file_of_the_cache_that_was_damaged_under_the_store(
    full_store, repository, pages, tmp_path, data_bytes
):
    store_of, fill = full_store
    origin = written(repository.add("hollow", pages()), PAGES * PAGE)

    async def session():
        async with store_of() as store:
            store.close(client := account(), (await store.open(client, address("hollow"))).lease)
            await store.settled()
            store.evict(address("hollow"), "host")
            origin.unlink()
            (blob,) = (tmp_path / "cache" / "blobs").iterdir()
            os.truncate(blob, blob.stat().st_size - PAGES * PAGE + data_bytes)
            await fill(store)
            with pytest.raises(UnknownModel):
                await store.open(account(), address("hollow"))
            assert evicted_nobody(store)
            assert not blob.exists()

    asyncio.run(session())
