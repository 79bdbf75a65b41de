"""The disk is filled after the answer, and costs nobody the model."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from serving_adapter.model_store.errors import NoRoom
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import account, address, hold_writing, value_of


def test_the_client_is_answered_before_the_disk_has_it(make_store, repository, pages, monkeypatch):
    for i, name in enumerate("ab"):
        repository.add(name, pages(value=i))
    gate = threading.Event()

    async def session():
        async with make_store([repository.url], host_bytes=PAGE) as store:
            hold_writing(store, gate, monkeypatch)
            client = account()
            store.close(client, (await store.open(client, address("a"))).lease)
            assert store.disk.entries == {}
            assert store.disk.used_bytes > 0  # its room is kept
            with pytest.raises(NoRoom):  # what is being written cannot be evicted for another
                await store.open(client, address("b"))
            with pytest.raises(NoRoom):
                store.evict(address("a"))
            gate.set()
            await store.settled()
            assert set(store.disk.entries) == {address("a")}
            assert value_of(await store.open(client, address("b"))) == 1

    asyncio.run(session())


def test_a_model_cannot_be_evicted_between_its_arrival_and_its_writing(make_store, repository, pages):
    """The very next thing that the event loop does after a model has arrived may be to make room."""
    repository.add("a", pages(value=7))

    async def session():
        async with make_store([repository.url], host_bytes=PAGE) as store:
            admit, room_made = store.host.admit, []

            def make_room() -> None:
                try:
                    store.host.reserve(PAGE)
                except NoRoom:
                    return
                room_made.append(True)
                store.host.unreserve(PAGE)

            def admitted(*arguments):
                store.host.admit, entry = admit, admit(*arguments)
                asyncio.get_running_loop().call_soon(make_room)
                return entry

            store.host.admit = admitted
            opened = await store.open(account(), address("a"))
            await store.settled()
            assert (value_of(opened), room_made) == (7, [])
            assert store.repositories.hits == 1

    asyncio.run(session())


def test_a_disk_that_fails_costs_nobody_the_model(make_store, repository, pages, monkeypatch, caplog):
    repository.add("a", pages(value=7))

    async def session():
        async with make_store([repository.url]) as store:

            def failing(*_):
                raise OSError(28, "No space left on device")

            monkeypatch.setattr(store.disk, "write", failing)
            client = account()
            opened = await store.open(client, address("a"))
            await store.settled()
            assert value_of(opened) == 7
            store.close(client, opened.lease)
            store.evict(address("a"))
            assert (store.disk.used_bytes, store.host.used_bytes) == (0, 0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(session())
    assert "No space left" in caplog.text
