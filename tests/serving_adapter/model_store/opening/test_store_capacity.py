"""Who may open what, what goes when, and what an operator keeps."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.tiers.tier import Address
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import PLENTY, Gated, account, address, hold_writing, value_of
from tests.support.waiting import eventually

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


def test_who_joins_a_filling_is_bound_by_his_own_quota_and_not_by_that_of_who_began_it(
    make_store, repository, pages
):
    repository.add("a", pages(2))

    async def session():
        async with make_store() as store:
            remote = Gated(repository.url)
            store.repositories.remotes = [remote]
            quotas = (PAGE, PLENTY, PAGE + 1, PLENTY)
            opening = [asyncio.ensure_future(store.open(account(quota), address("a"))) for quota in quotas]
            await eventually(lambda: remote.opened == ["a"])
            remote.gate.set()
            first, second, third, fourth = await asyncio.gather(*opening, return_exceptions=True)
            for refused, quota in ((first, "4,096"), (third, "4,097")):
                assert isinstance(refused, NoRoom)
                assert f"this client refers to 0 bytes and may refer to {quota}" in str(refused)
            assert not isinstance(second, BaseException)
            assert not isinstance(fourth, BaseException)
            assert value_of(second) == value_of(fourth) == 1
            assert second.model is fourth.model
            assert (store.references, store.host.reserved_bytes, remote.opened) == (2, 0, ["a", "a"])

    asyncio.run(session())


def test_who_joins_his_own_filling_is_refused_once_for_all(make_store, repository, pages):
    repository.add("a", pages(2))

    async def session():
        async with make_store() as store:
            remote, client = Gated(repository.url), account(PAGE)
            store.repositories.remotes = [remote]
            opening = [asyncio.ensure_future(store.open(client, address("a"))) for _ in range(3)]
            await eventually(lambda: remote.opened == ["a"])
            remote.gate.set()
            refused = await asyncio.gather(*opening, return_exceptions=True)
            assert [type(error).__base__ for error in refused] == [NoRoom] * 3
            assert (remote.opened, client.leases) == (["a"], 0)

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
            store.repositories.remotes = [remote]
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


def test_unpinning_without_a_version_unpins_the_newest_that_is_pinned(make_store, repository, pages):
    for version in ("2", "9", "10"):
        repository.add("a", pages(), version)

    async def session():
        async with make_store([repository.url]) as store:
            operator = account()
            for version in ("2", "9", ""):
                await store.pin(operator, address("a", version), True)
            repository.add("a", pages(), "11")
            for left in (["2", "9"], ["2"], []):
                await store.pin(operator, address("a", ""), False)
                pinned = [a.version for a, entry in store.host.entries.items() if entry.pinned]
                assert sorted(pinned) == left
                assert operator.held_bytes == len(left) * PAGE

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
