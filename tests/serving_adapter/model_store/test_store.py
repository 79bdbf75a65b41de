"""Models through the tiers: who had them, who refers to them, who may, and what goes when."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from safetensors.numpy import save

from serving_adapter.model_store import store as store_module
from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.host_memory import tensor_bytes
from serving_adapter.model_store.remote import Remote
from serving_adapter.model_store.store import FILE_NAME, Account, ModelStore
from serving_adapter.model_store.tier import Address

PAGE = 4096
PLENTY = 1 << 30
PATIENCE_S = 20.0  # for what would otherwise hang


def address(name: str, version: str = "1") -> Address:
    return Address("safetensors", name, version)


def account(quota_bytes: int = PLENTY, **limits: int) -> Account:
    return Account(quota_bytes, **limits)


def value_of(opened) -> int:
    """The one value that a model of `pages` is filled with."""
    ((_, data),) = tensor_bytes(opened.model)
    (value,) = set(bytes(data))
    return value


def counters(store: ModelStore) -> dict[str, tuple[int, int]]:
    """Hits and misses by tier."""
    counted = {tier.name: (tier.hits, tier.misses) for tier in store.tiers}
    return counted | {"remote": (store.remote_hits, store.remote_misses)}


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(0.001)


class Gated(Remote):
    """A repository that gives nothing before it is told to, and counts how often it was asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gate = threading.Event()
        self.opened: list[str] = []

    def open(self, address: Address):
        self.opened.append(address.name)
        assert len(self.opened) < 100, "asked for ever"
        assert self.gate.wait(PATIENCE_S)
        return super().open(address)


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
            assert store.remote_misses == 0

    asyncio.run(session())


def test_a_new_version_becomes_the_newest(make_store, repository, pages, monkeypatch):
    monkeypatch.setattr(store_module, "NEWEST_VERSION_KEPT_S", 0.0)

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
            store.remotes = [remote]
            clients = [account() for _ in range(20)]
            opening = [asyncio.ensure_future(store.open(client, address("a"))) for client in clients]
            await until(lambda: remote.opened == ["a"])
            late = asyncio.ensure_future(store.open(clients[0], address("a")))
            remote.gate.set()
            opened = await asyncio.gather(*opening, late)
            assert remote.opened == ["a"]
            assert len({one.lease for one in opened}) == 21
            assert len({id(one.model) for one in opened}) == 1
            assert {one.found_in for one in opened} == {"remote"}
            assert store.host.entries[address("a")].references >= 21
            assert (store.references, store.remote_hits) == (21, 1)

    asyncio.run(session())


def test_a_failed_reading_is_told_to_all_who_wait_and_tried_again_by_the_next(make_store, repository, pages):
    async def session():
        async with make_store() as store:
            remote = Gated(repository.url)
            store.remotes = [remote]
            opening = [asyncio.ensure_future(store.open(account(), address("a"))) for _ in range(3)]
            await until(lambda: remote.opened == ["a"])
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
            store.remotes = [remote]
            opening = asyncio.ensure_future(store.open(client, address("a")))
            await until(lambda: remote.opened == ["a"])
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            remote.gate.set()
            await until(lambda: address("a") in store.disk.entries)
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
            clients, held = [account(40 * PAGE) for _ in range(3)], []
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


# --- capacity --------------------------------------------------------------------------------------


def test_a_model_larger_than_host_memory_is_refused_and_evicts_nobody(make_store, repository, pages):
    repository.add("small", pages(2))
    repository.add("large", pages(5))

    async def session():
        async with make_store([repository.url], host_bytes=4 * PAGE) as store:
            client = account()
            store.close(client, (await store.open(client, address("small"))).lease)
            await store.settled()
            with pytest.raises(NoRoom) as refused:
                await store.open(client, address("large"))
            assert str(refused.value) == (
                "the model has 20,480 bytes, the host tier holds 16,384 in all; start the store with more"
            )
            assert list(store.host.entries) == [address("small")]
            assert (store.host.reserved_bytes, client.leases) == (0, 0)

    asyncio.run(session())


def test_a_model_larger_than_the_disk_is_served_and_not_kept_there(make_store, repository, pages, caplog):
    repository.add("a", pages(value=7))

    async def session():
        async with make_store([repository.url], disk_bytes=PAGE) as store:
            client = account()
            opened = await store.open(client, address("a"))
            await store.settled()
            assert value_of(opened) == 7
            assert (store.disk.entries, store.disk.used_bytes) == ({}, 0)
            store.close(client, opened.lease)
            assert (await store.open(client, address("a"))).found_in == "host"

    with caplog.at_level(logging.WARNING):
        asyncio.run(session())
    assert "safetensors/a/1 is not kept on disk" in caplog.text


def test_a_quota_bounds_what_one_client_refers_to_each_model_once(make_store, repository, pages):
    for name in "ab":
        repository.add(name, pages(2))

    async def session():
        async with make_store([repository.url]) as store:
            client, other = account(3 * PAGE), account(3 * PAGE)
            first, again = [await store.open(client, address("a")) for _ in range(2)]
            assert (client.held_bytes, client.leases) == (2 * PAGE, 2)
            with pytest.raises(NoRoom, match=r"refers to 8,192 bytes and may refer to 12,288; .* has 8,192"):
                await store.open(client, address("b"))
            assert (client.leases, store.references) == (2, 2)
            await store.open(other, address("b"))
            store.close(client, first.lease)
            assert client.held_bytes == 2 * PAGE
            with pytest.raises(NoRoom):
                await store.open(client, address("b"))
            store.close(client, again.lease)
            assert client.held_bytes == 0
            await store.open(client, address("b"))

    asyncio.run(session())


def test_a_client_may_have_only_so_many_models_open(make_store, repository, pages):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url]) as store:
            client = account(max_leases=3)
            leases = [(await store.open(client, address("a"))).lease for _ in range(3)]
            with pytest.raises(NoRoom, match="3 models open, the most it may"):
                await store.open(client, address("a"))
            store.close(client, leases[0])
            await store.open(client, address("a"))

    asyncio.run(session())


def test_a_model_over_a_clients_quota_evicts_nobody_elses(make_store, repository, pages):
    repository.add("a", pages(2))
    repository.add("b", pages(3))

    async def session():
        async with make_store([repository.url], host_bytes=4 * PAGE) as store:
            client = account()
            store.close(client, (await store.open(client, address("a"))).lease)
            await store.settled()
            with pytest.raises(NoRoom, match="client"):
                await store.open(account(PAGE), address("b"))
            assert address("a") in store.host.entries

    asyncio.run(session())


# --- eager reclaim ---------------------------------------------------------------------------------


def test_eager_reclaim_frees_a_model_with_its_last_reference(make_store, repository, pages, open_descriptors):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url], eager_reclaim=True) as store:
            client = account()
            before = open_descriptors()
            first, second = [await store.open(client, address("a")) for _ in range(2)]
            await store.settled()
            store.close(client, first.lease)
            assert store.host.used_bytes == PAGE
            store.close(client, second.lease)
            assert (store.host.used_bytes, store.host.evictions) == (0, 0)
            assert open_descriptors() == before
            assert (await store.open(client, address("a"))).found_in == "disk"

    asyncio.run(session())


def test_eager_reclaim_waits_for_the_disk(make_store, repository, pages, monkeypatch):
    repository.add("a", pages(value=7))
    gate = threading.Event()

    async def session():
        async with make_store([repository.url], eager_reclaim=True) as store:
            hold_writing(store, gate, monkeypatch)
            client = account()
            store.close(client, (await store.open(client, address("a"))).lease)
            assert store.host.used_bytes == PAGE
            gate.set()
            await store.settled()
            assert store.host.used_bytes == 0
            opened = await store.open(client, address("a"))
            assert (opened.found_in, value_of(opened)) == ("disk", 7)

    asyncio.run(session())


def test_eager_reclaim_of_what_the_disk_does_not_take_still_opens(make_store, repository, pages):
    repository.add("a", pages(value=7))

    async def session():
        async with make_store(eager_reclaim=True, disk_bytes=0) as store:
            remote, client = Gated(repository.url), account()
            remote.gate.set()
            store.remotes = [remote]
            opened = await store.open(client, address("a"))
            assert (value_of(opened), remote.opened) == (7, ["a"])
            store.close(client, opened.lease)
            await store.settled()
            assert store.host.used_bytes == 0

    asyncio.run(session())


def test_an_open_over_its_quota_leaves_nothing_where_reclaim_is_eager(make_store, repository, pages):
    repository.add("a", pages(2))

    async def session():
        async with make_store([repository.url], eager_reclaim=True) as store:
            with pytest.raises(NoRoom):
                await store.open(account(PAGE), address("a"))
            await store.settled()
            assert store.host.used_bytes == 0

    asyncio.run(session())


# --- what an operator does -------------------------------------------------------------------------


def test_a_pinned_model_stays_until_it_is_unpinned(make_store, repository, pages):
    for i, name in enumerate("abc"):
        repository.add(name, pages(value=i))

    async def session():
        async with make_store([repository.url], host_bytes=2 * PAGE) as store:
            operator, client = account(), account()
            await store.pin(operator, address("a", ""), True)
            assert (store.references, operator.held_bytes) == (0, PAGE)
            await store.settled()
            for name in "bcb":
                store.close(client, (await store.open(client, address(name))).lease)
                await store.settled()
            assert address("a") in store.host.entries
            with pytest.raises(NoRoom, match="in use or pinned"):
                store.evict(address("a"))
            await store.pin(operator, address("a"), False)
            store.evict(address("a"))
            assert address("a") not in store.host.entries

    asyncio.run(session())


def test_pins_count_against_the_operators_account_once_a_model(make_store, repository, pages):
    for name in "ab":
        repository.add(name, pages(2))

    async def session():
        async with make_store([repository.url]) as store:
            operator = account(3 * PAGE)
            for _ in range(2):
                await store.pin(operator, address("a"), True)
                assert (operator.held_bytes, store.references) == (2 * PAGE, 0)
            with pytest.raises(NoRoom):
                await store.pin(operator, address("b"), True)
            assert not any(entry.pinned for a, entry in store.host.entries.items() if a.name == "b")
            for _ in range(2):
                await store.pin(operator, address("a"), False)
                assert (operator.held_bytes, operator.leases) == (0, 0)
            await store.pin(operator, address("b"), True)

    asyncio.run(session())


def test_pinning_what_nobody_has_is_refused(make_store):
    async def session():
        async with make_store() as store:
            with pytest.raises(UnknownModel):
                await store.pin(account(), address("absent"), True)

    asyncio.run(session())


def test_an_unpinned_model_goes_at_once_where_reclaim_is_eager(make_store, repository, pages):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url], eager_reclaim=True) as store:
            operator = account()
            await store.pin(operator, address("a"), True)
            await store.settled()
            assert store.host.used_bytes == PAGE
            await store.pin(operator, address("a"), False)
            assert store.host.used_bytes == 0

    asyncio.run(session())


def test_evicting_a_model_in_use_is_refused_and_takes_it_from_no_tier(make_store, repository, pages):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url]) as store:
            opened = await store.open(account(), address("a"))
            await store.settled()
            with pytest.raises(NoRoom, match="safetensors/a/1 is in use"):
                store.evict(address("a"))
            assert address("a") in store.disk.entries
            store.evict(address("a"), "disk")
            assert (store.disk.entries, set(store.host.entries)) == ({}, {address("a")})
            assert value_of(opened) == 1

    asyncio.run(session())


def test_evicting_names_what_it_cannot_find(make_store, repository, pages):
    repository.add("a", pages(value=1), "1")
    repository.add("a", pages(value=2), "2")

    async def session():
        async with make_store([repository.url]) as store:
            client = account()
            for version in ("1", "2"):
                store.close(client, (await store.open(client, address("a", version))).lease)
            await store.settled()
            with pytest.raises(StoreError, match="no tier 'attic'; there are host, disk"):
                store.evict(address("a"), "attic")
            for absent in (address("b"), address("a", "3"), Address("other", "a", "1")):
                with pytest.raises(UnknownModel, match="no such model is resident"):
                    store.evict(absent)
            store.evict(address("a", "1"))
            assert {a.version for a in store.host.entries} == {"2"}
            store.evict(address("a", ""))
            assert (store.host.entries, store.disk.entries) == ({}, {})

    asyncio.run(session())


# --- the disk is filled after the answer -----------------------------------------------------------


def hold_writing(store: ModelStore, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store.disk.write

    def held(*arguments):
        assert gate.wait(PATIENCE_S)
        return write(*arguments)

    monkeypatch.setattr(store.disk, "write", held)


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
            assert store.remote_hits == 1

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


# --- files that clients have opened ----------------------------------------------------------------


@pytest.fixture
def weights_file(tmp_path, pages):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save(pages(value=7)))
    return path


async def open_path(store: ModelStore, client: Account, path, device: str = "cpu"):
    with open(path, "rb") as file:
        return await store.open_file(client, "safetensors", str(path), file.fileno(), device)


def test_a_file_is_known_by_what_it_is_not_by_its_descriptor_or_path(make_store, weights_file, tmp_path):
    async def session():
        async with make_store() as store:
            client, other = account(), account()
            first = await open_path(store, client, weights_file)
            os.symlink(weights_file, tmp_path / "link")
            again = await open_path(store, other, tmp_path / "link")
            assert (first.found_in, again.found_in) == ("disk", "host")
            assert (first.version, value_of(again)) == (again.version, 7)
            assert first.model is again.model
            copy = tmp_path / "copy.safetensors"
            copy.write_bytes(weights_file.read_bytes())
            copied = await open_path(store, other, copy)
            assert copied.version != first.version
            assert store.host.used_bytes == PAGE  # the same content all the same
            assert store.label(address(FILE_NAME, first.version)) == str(weights_file)
            assert (store.disk.entries, store.disk.misses) == ({}, 0)

    asyncio.run(session())


def test_a_file_that_changed_is_another_model(make_store, weights_file, pages):
    async def session():
        async with make_store() as store:
            client = account()
            old = await open_path(store, client, weights_file)
            before = os.stat(weights_file)
            with weights_file.open("r+b") as file:
                file.write(save(pages(value=8)))
            os.utime(weights_file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
            new = await open_path(store, client, weights_file)
            assert (new.found_in, value_of(new), value_of(old)) == ("disk", 8, 7)
            assert old.version != new.version
            weights_file.unlink()
            weights_file.write_bytes(save(pages(value=9)))
            assert value_of(await open_path(store, client, weights_file)) == 9

    asyncio.run(session())


def test_the_clients_file_offset_is_neither_used_nor_moved(make_store, weights_file, monkeypatch):
    """The client shares the offset of the descriptor that it hands over, and may move it at any time."""

    async def session():
        async with make_store() as store:
            with open(weights_file, "rb") as file:
                file.seek(1000)
                shared = os.dup(file.fileno())
                fill = store_module.fill

                def moved_meanwhile(*arguments):
                    os.lseek(shared, 3, os.SEEK_SET)
                    return fill(*arguments)

                monkeypatch.setattr(store_module, "fill", moved_meanwhile)
                opened = await store.open_file(account(), "safetensors", "label", file.fileno())
                assert value_of(opened) == 7
                assert os.lseek(shared, 0, os.SEEK_CUR) == 3
                os.close(shared)

    asyncio.run(session())


def test_a_file_that_changes_while_it_is_read_is_refused(
    make_store, weights_file, monkeypatch, open_descriptors
):
    async def session():
        async with make_store() as store:
            fill = store_module.fill

            def written_meanwhile(*arguments):
                os.truncate(weights_file, os.path.getsize(weights_file) + 1)
                return fill(*arguments)

            monkeypatch.setattr(store_module, "fill", written_meanwhile)
            before = open_descriptors()
            with pytest.raises(StoreError, match="changed while it was read"):
                await open_path(store, account(), weights_file)
            await until(lambda: open_descriptors() == before)
            assert (store.host.used_bytes, store.references) == (0, 0)

    asyncio.run(session())


def unnamed(data: bytes):
    file = os.fdopen(os.memfd_create("weights", os.MFD_CLOEXEC), "w+b")
    file.write(data)
    file.flush()
    return file


@pytest.mark.parametrize("kind", ["memory file", "unlinked"])
def test_a_file_without_a_name_goes_with_its_last_reference(make_store, weights_file, kind, open_descriptors):
    async def session():
        async with make_store() as store:
            client = account()
            if kind == "unlinked":
                file = open(weights_file, "rb")  # noqa: SIM115 - two openings below
                weights_file.unlink()
            else:
                file = unnamed(weights_file.read_bytes())
            with file:
                first, second = [
                    await store.open_file(client, "safetensors", "x", file.fileno()) for _ in range(2)
                ]
            assert (first.found_in, second.found_in) == ("disk", "host")
            store.close(client, first.lease)
            assert value_of(second) == 7
            assert store.host.used_bytes == PAGE
            store.close(client, second.lease)
            assert (store.host.used_bytes, store.host.entries) == (0, {})

    before = open_descriptors()
    asyncio.run(session())
    assert open_descriptors() == before


def test_a_named_file_stays_for_the_next_who_opens_it(make_store, weights_file):
    async def session():
        async with make_store() as store:
            client = account()
            store.close(client, (await open_path(store, client, weights_file)).lease)
            assert (await open_path(store, client, weights_file)).found_in == "host"

    asyncio.run(session())


@pytest.mark.parametrize("kind", ["named", "memory file"])
def test_a_client_that_goes_while_its_file_is_read_leaves_nothing_open(
    make_store, weights_file, kind, monkeypatch, open_descriptors
):
    gate, reading = threading.Event(), threading.Event()
    fill = store_module.fill

    def held(*arguments):
        reading.set()
        assert gate.wait(PATIENCE_S)
        return fill(*arguments)

    async def session():
        async with make_store() as store:
            before, client = open_descriptors(), account()
            monkeypatch.setattr(store_module, "fill", held)
            file = open(weights_file, "rb") if kind == "named" else unnamed(weights_file.read_bytes())  # noqa: SIM115
            opening = asyncio.ensure_future(store.open_file(client, "safetensors", "label", file.fileno()))
            await until(reading.is_set)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            file.close()  # as the service does
            gate.set()
            await until(lambda: not store._fills)
            if kind == "named":
                opened = await open_path(store, client, weights_file)
                assert (opened.found_in, value_of(opened)) == ("host", 7)
                store.close(client, opened.lease)
                store.evict(address(FILE_NAME, opened.version))
            await until(lambda: open_descriptors() == before)
            assert (store.host.used_bytes, store.host.reserved_bytes, client.leases) == (0, 0, 0)

    asyncio.run(session())


def test_only_regular_files_with_weights_are_read(make_store, tmp_path, open_descriptors):
    (tmp_path / "bad").write_bytes(b"no weights")

    async def session():
        async with make_store() as store:
            reading, writing = os.pipe()
            with os.fdopen(reading, "rb") as pipe, open("/dev/zero", "rb") as device:
                for file in (pipe, device):
                    with pytest.raises(StoreError, match="regular file"):
                        await store.open_file(account(), "safetensors", "label", file.fileno())
            os.close(writing)
            before = open_descriptors()
            with pytest.raises(ValueError, match="no safetensors file"):
                await open_path(store, account(), tmp_path / "bad")
            await until(lambda: open_descriptors() == before)
            with open(tmp_path / "bad", "rb") as file, pytest.raises(ValueError, match="unknown namespace"):
                await store.open_file(account(), "pickle", "label", file.fileno())
            assert store.host.used_bytes == store.host.reserved_bytes == 0

    asyncio.run(session())


def test_a_file_cannot_be_opened_by_guessing_what_fstat_says_of_it(make_store, weights_file):
    """Whoever may not read a file may often still ask for its size and times; `ls` tells them too."""

    async def session():
        async with make_store() as store:
            opened = await open_path(store, account(), weights_file)
            with pytest.raises(UnknownModel):
                await store.open(account(), address(FILE_NAME, opened.version))
            with pytest.raises(UnknownModel):
                await store.open(account(), address(str(weights_file), opened.version))

    asyncio.run(session())


def test_files_are_evicted_and_pinned_by_the_name_that_the_list_shows(make_store, weights_file):
    async def session():
        async with make_store() as store:
            client, operator = account(), account()
            opened = await open_path(store, client, weights_file)
            store.close(client, opened.lease)
            shown = address(store.label(address(FILE_NAME, opened.version)), opened.version)
            await store.pin(operator, shown, True)
            with pytest.raises(NoRoom):
                store.evict(shown)
            await store.pin(operator, shown, False)
            store.evict(shown)
            assert store.host.used_bytes == 0

    asyncio.run(session())


def test_models_on_a_gpu_are_refused_where_there_is_no_gpu_tier(make_store, repository, pages, weights_file):
    repository.add("a", pages())

    async def session():
        async with make_store([repository.url]) as store:
            for device in ("cuda:0", "gpu", ""):
                with pytest.raises(StoreError, match="cannot open models on"):
                    await store.open(account(), address("a"), device)
                with pytest.raises(StoreError, match="cannot open models on"):
                    await open_path(store, account(), weights_file, device)
            assert store.host.used_bytes == 0

    asyncio.run(session())
