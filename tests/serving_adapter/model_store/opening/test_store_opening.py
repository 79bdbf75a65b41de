"""Who has a model, who refers to it, and whom that keeps."""

from __future__ import annotations

import asyncio
import gc
import io
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.tiers import repositories
from serving_adapter.model_store.tiers.host_memory import tensor_bytes
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import Gated, account, address, counters, value_of
from tests.support.waiting import eventually


class FailsAtItsEnd(io.BytesIO):
    """A stream that gives all its bytes and then fails, as a connection that is cut does."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data:
            raise ConnectionResetError("cut")
        return data


# --- the state diagram -----------------------------------------------------------------------------


def test_a_miss_fills_every_tier_and_the_highest_that_has_it_answers(make_store, repository, pages):
    repository.add("a", pages(3, value=7))
    size = len(save(pages(3)))

    async def session():
        async with make_store([repository.url]) as store:
            client = account()

            async def opened_and_closed() -> str:
                opened = await store.open(client, address("a"))
                assert value_of(opened) == 7
                assert opened.version == "1"
                store.close(client, opened.lease)
                await store.settled()
                return opened.found_in

            assert await opened_and_closed() == "remote"
            assert counters(store) == {"host": (0, 1), "disk": (0, 1), "remote": (1, 0)}
            assert (store.host.used_bytes, store.disk.used_bytes) == (3 * PAGE, size)
            assert await opened_and_closed() == "host"
            assert counters(store) == {"host": (1, 1), "disk": (0, 1), "remote": (1, 0)}
            store.evict(address("a"), "host")
            assert (store.host.used_bytes, store.disk.used_bytes) == (0, size)
            assert await opened_and_closed() == "disk"
            assert counters(store) == {"host": (1, 2), "disk": (1, 1), "remote": (1, 0)}
            store.evict(address("a"))
            assert (store.host.used_bytes, store.disk.used_bytes) == (0, 0)
            assert await opened_and_closed() == "remote"
            assert counters(store) == {"host": (1, 3), "disk": (1, 2), "remote": (2, 0)}
            with pytest.raises(UnknownModel):
                await store.open(client, address("absent"))
            assert counters(store) == {"host": (1, 4), "disk": (1, 3), "remote": (2, 1)}
            assert store.references == client.leases == client.held_bytes == 0

    asyncio.run(session())


def test_a_stream_that_fails_behind_its_last_tensor_leaves_nothing(
    make_store, repository, pages, monkeypatch, open_descriptors
):
    async def session():
        async with make_store([repository.url]) as store:
            (remote,) = store.repositories.remotes
            monkeypatch.setattr(remote, "open", lambda _: FailsAtItsEnd(save(pages(3))))
            descriptors = []
            for _ in range(2):
                with pytest.raises(StoreError, match="cut"):
                    await store.open(account(), address("a"))
                descriptors.append(open_descriptors())
            assert descriptors[0] == descriptors[1]
            assert (store.host.used_bytes, store.host.reserved_bytes) == (0, 0)

    asyncio.run(session())


def test_the_next_store_over_the_same_cache_needs_no_remote(make_store, repository, pages):
    for version, value in (("1", 1), ("2", 2), ("10", 10)):
        repository.add("a", pages(value=value), version)

    async def session():
        async with make_store([repository.url]) as store:
            for version in ("1", "2", "10"):
                await store.open(account(), address("a", version))
        async with make_store() as store:
            opened = await store.open(account(), address("a", "2"))
            assert (opened.found_in, value_of(opened)) == ("disk", 2)
            newest = await store.open(account(), address("a", ""))
            assert (newest.version, value_of(newest)) == ("10", 10)
            assert store.repositories.misses == 0

    asyncio.run(session())


def test_a_new_version_becomes_the_newest(make_store, repository, pages, monkeypatch):
    monkeypatch.setattr(repositories, "NEWEST_VERSION_KEPT_S", 0.0)

    async def session():
        async with make_store([repository.url]) as store:
            for version in ("1", "2"):
                repository.add("a", pages(value=int(version)), version)
                opened = await store.open(account(), address("a", ""))
                assert (opened.version, value_of(opened)) == (version, int(version))

    asyncio.run(session())


def test_concurrent_opens_of_a_missing_model_read_it_once(make_store, repository, pages):
    repository.add("a", pages(value=7))

    async def session():
        async with make_store() as store:
            remote = Gated(repository.url)
            store.repositories.remotes = [remote]
            clients = [account() for _ in range(20)]
            opening = [asyncio.ensure_future(store.open(client, address("a"))) for client in clients]
            await eventually(lambda: remote.opened == ["a"])
            late = asyncio.ensure_future(store.open(clients[0], address("a")))
            remote.gate.set()
            opened = await asyncio.gather(*opening, late)
            assert remote.opened == ["a"]
            assert len({one.lease for one in opened}) == 21
            assert len({id(one.model) for one in opened}) == 1
            assert {one.found_in for one in opened} == {"remote"}
            assert store.host.entries[address("a")].references >= 21
            assert (store.references, store.repositories.hits) == (21, 1)

    asyncio.run(session())


def test_a_failed_reading_is_told_to_all_who_wait_and_tried_again_by_the_next(make_store, repository, pages):
    async def session():
        async with make_store() as store:
            remote = Gated(repository.url)
            store.repositories.remotes = [remote]
            opening = [asyncio.ensure_future(store.open(account(), address("a"))) for _ in range(3)]
            await eventually(lambda: remote.opened == ["a"])
            remote.gate.set()
            refused = await asyncio.gather(*opening, return_exceptions=True)
            assert [type(error) for error in refused] == [UnknownModel] * 3
            repository.add("a", pages(value=7))
            assert value_of(await store.open(account(), address("a"))) == 7

    asyncio.run(session())


def test_an_open_that_is_given_up_leaves_no_reference_and_what_was_read_is_kept(
    make_store, repository, pages
):
    repository.add("a", pages())

    async def session():
        async with make_store() as store:
            remote, client = Gated(repository.url), account()
            store.repositories.remotes = [remote]
            opening = asyncio.ensure_future(store.open(client, address("a")))
            await eventually(lambda: remote.opened == ["a"])
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            remote.gate.set()
            await eventually(lambda: address("a") in store.disk.entries)
            assert (store.references, client.leases) == (0, 0)
            assert (await store.open(client, address("a"))).found_in == "host"

    asyncio.run(session())


def test_many_models_load_at_once_for_one_client(make_store, repository, pages):
    names = [f"m{i}" for i in range(12)]
    for i, name in enumerate(names):
        repository.add(name, pages(value=i))

    async def session():
        async with make_store([repository.url]) as store:
            client = account()
            opened = await asyncio.gather(*(store.open(client, address(name)) for name in names))
            assert [value_of(one) for one in opened] == list(range(12))

    asyncio.run(session())


# --- references ------------------------------------------------------------------------------------


def test_models_in_use_are_never_evicted(make_store, repository, pages):
    for i, name in enumerate("abcd"):
        repository.add(name, pages(value=i))

    async def session():
        async with make_store([repository.url], host_bytes=2 * PAGE) as store:
            client = account()
            held = await store.open(client, address("a"))
            store.close(client, (await store.open(client, address("b"))).lease)
            await store.settled()
            third = await store.open(client, address("c"))
            assert set(store.host.entries) == {address("a"), address("c")}
            await store.settled()
            with pytest.raises(NoRoom, match=r"of the host tier's 8,192 8,192 are in use"):
                await store.open(client, address("d"))
            assert (value_of(held), value_of(third)) == (0, 2)
            store.close(client, held.lease)
            assert value_of(await store.open(client, address("d"))) == 3
            assert store.host.evictions == 2

    asyncio.run(session())


@pytest.mark.parametrize(
    ("policy", "granularity"), [("lru", "model"), ("lcu", "tensor"), ("reload-cost", "auto")]
)
def test_random_opens_and_closes_never_overfill_nor_show_a_wrong_byte(
    make_store, repository, open_descriptors, policy, granularity
):
    random = np.random.default_rng(0)
    frozen = random.integers(0, 255, 20 * PAGE, np.uint8)
    models = {}
    for i in range(8):
        models[f"m{i}"] = {"head": random.integers(0, 255, 700 * (i + 1), np.uint8)}
        models[f"m{i}"] |= {"body": frozen} if i % 2 else {"own": random.integers(0, 255, 9 * PAGE, np.uint8)}
        repository.add(f"m{i}", models[f"m{i}"])

    async def session():
        async with make_store(
            [repository.url],
            host_bytes=60 * PAGE,
            disk_bytes=70 * PAGE,
            policy=policy,
            granularity=granularity,
        ) as store:
            held: list[Any] = []
            clients = [account(40 * PAGE) for _ in range(3)]
            for _ in range(80):
                if random.random() < 0.25 * len(held):
                    client, opened = held.pop(random.integers(len(held)))
                    store.close(client, opened.lease)
                    continue
                client, name = clients[random.integers(3)], f"m{random.integers(8)}"
                try:
                    opened = await store.open(client, address(name))
                except NoRoom:
                    continue
                await store.settled()
                held.append((client, opened))
                assert client.held_bytes <= 40 * PAGE
                for placement, data in tensor_bytes(opened.model):
                    assert bytes(data) == models[name][placement.tensor.name].tobytes()
                for tier in store.tiers:
                    assert tier.used_bytes <= tier.capacity_bytes
            for client, opened in held:
                store.close(client, opened.lease)
            await store.settled()
            assert store.host.evictions > 0
            assert (store.references, sum(client.leases for client in clients)) == (0, 0)
            assert [client.held_bytes for client in clients] == [0, 0, 0]
            for name in {a.name for a in store.host.entries}:
                store.evict(address(name), "host")
            assert (store.host.used_bytes, store.host.segments) == (0, {})

    async def measured():
        before = open_descriptors()
        await session()
        gc.collect()  # maps of what was looked at
        assert open_descriptors() == before

    asyncio.run(measured())


def test_a_lease_belongs_to_its_client_and_ends_once(make_store, repository, pages):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url]) as store:
            client, other = account(), account()
            opened = await store.open(client, address("a"))
            for who, lease in ((other, opened.lease), (client, "nonsense"), (client, "")):
                with pytest.raises(StoreError, match="no lease"):
                    store.close(who, lease)
            assert store.references == 1
            store.close(client, opened.lease)
            with pytest.raises(StoreError, match="no lease"):
                store.close(client, opened.lease)
            assert store.references == 0

    asyncio.run(session())


def test_what_a_client_held_that_is_gone_is_given_back(make_store, repository, pages):
    for name in "ab":
        repository.add(name, pages())

    async def session():
        async with make_store([repository.url]) as store:
            client, other = account(), account()
            leases = [(await store.open(client, address(name))).lease for name in "aab"]
            kept = await store.open(other, address("a"))
            store.forget([*leases, "never given"])
            assert (store.references, client.leases, client.held_bytes) == (1, 0, 0)
            await store.settled()
            store.evict(address("b"))
            with pytest.raises(NoRoom):
                store.evict(address("a"))
            store.close(other, kept.lease)
            store.evict(address("a"))

    asyncio.run(session())
