"""Files that clients have opened: what they are known by, and how long they are kept."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from safetensors.numpy import save

from serving_adapter.model_store.errors import NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.opening import loader
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.client_file import FILE_MODEL_NAME
from serving_adapter.model_store.opening.store import ModelStore
from tests.support.stores.running_store import PAGE
from tests.support.stores.store_in_process import account, address, value_of
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def weights_file(tmp_path, pages):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save(pages(value=7)))
    return path


async def open_path(store: ModelStore, client: Account, path, device: str = "cpu"):
    with open(path, "rb") as file:
        return await store.open_file(client, "safetensors", str(path), os.dup(file.fileno()), device)


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
            assert store.label(address(FILE_MODEL_NAME, first.version)) == str(weights_file)
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
                fill = loader.fill

                def moved_meanwhile(*arguments):
                    os.lseek(shared, 3, os.SEEK_SET)
                    return fill(*arguments)

                monkeypatch.setattr(loader, "fill", moved_meanwhile)
                opened = await store.open_file(account(), "safetensors", "label", os.dup(file.fileno()))
                assert value_of(opened) == 7
                assert os.lseek(shared, 0, os.SEEK_CUR) == 3
                os.close(shared)

    asyncio.run(session())


def test_a_file_that_changes_while_it_is_read_is_refused(
    make_store, weights_file, monkeypatch, open_descriptors
):
    async def session():
        async with make_store() as store:
            fill = loader.fill

            def written_meanwhile(*arguments):
                os.truncate(weights_file, os.path.getsize(weights_file) + 1)
                return fill(*arguments)

            monkeypatch.setattr(loader, "fill", written_meanwhile)
            before = open_descriptors()
            with pytest.raises(StoreError, match="changed while it was read"):
                await open_path(store, account(), weights_file)
            await eventually(lambda: open_descriptors() == before)
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
            before, client = open_descriptors(), account()
            if kind == "unlinked":
                file = open(weights_file, "rb")  # noqa: SIM115 - two openings below
                weights_file.unlink()
            else:
                file = unnamed(weights_file.read_bytes())
            with file:
                first, second = [
                    await store.open_file(client, "safetensors", "x", os.dup(file.fileno())) for _ in range(2)
                ]
            assert (first.found_in, second.found_in) == ("disk", "host")
            store.close(client, first.lease)
            assert value_of(second) == 7
            assert store.host.used_bytes == PAGE
            store.close(client, second.lease)
            assert (store.host.used_bytes, store.host.entries) == (0, {})

            await eventually(lambda: open_descriptors() == before)

    asyncio.run(session())


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
    fill = loader.fill

    def held(*arguments):
        reading.set()
        assert gate.wait(PATIENCE_S)
        return fill(*arguments)

    async def session():
        async with make_store() as store:
            before, client = open_descriptors(), account()
            monkeypatch.setattr(loader, "fill", held)
            file = open(weights_file, "rb") if kind == "named" else unnamed(weights_file.read_bytes())  # noqa: SIM115
            descriptor = os.dup(file.fileno())
            opening = asyncio.ensure_future(store.open_file(client, "safetensors", "label", descriptor))
            await eventually(reading.is_set)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            file.close()
            gate.set()
            await eventually(lambda: store.loads.is_idle)
            if kind == "named":
                opened = await open_path(store, client, weights_file)
                assert (opened.found_in, value_of(opened)) == ("host", 7)
                store.close(client, opened.lease)
                store.evict(address(FILE_MODEL_NAME, opened.version))
            await eventually(lambda: open_descriptors() == before)
            assert (store.host.used_bytes, store.host.reserved_bytes, client.leases) == (0, 0, 0)

    asyncio.run(session())


def test_only_regular_files_with_weights_are_read(make_store, tmp_path, open_descriptors):
    (tmp_path / "bad").write_bytes(b"no weights")

    async def session():
        async with make_store() as store:
            before = open_descriptors()
            reading, writing = os.pipe()
            with os.fdopen(reading, "rb") as pipe, open("/dev/zero", "rb") as device:
                for file in (pipe, device):
                    with pytest.raises(StoreError, match="regular file"):
                        await store.open_file(account(), "safetensors", "label", os.dup(file.fileno()))
            os.close(writing)
            with pytest.raises(ValueError, match="no safetensors file"):
                await open_path(store, account(), tmp_path / "bad")
            await eventually(lambda: open_descriptors() == before)
            with open(tmp_path / "bad", "rb") as file, pytest.raises(ValueError, match="unknown namespace"):
                await store.open_file(account(), "pickle", "label", os.dup(file.fileno()))
            assert store.host.used_bytes == store.host.reserved_bytes == 0

    asyncio.run(session())


def test_a_file_cannot_be_opened_by_guessing_what_fstat_says_of_it(make_store, weights_file):
    """Whoever may not read a file may often still ask for its size and times; `ls` tells them too."""

    async def session():
        async with make_store() as store:
            opened = await open_path(store, account(), weights_file)
            with pytest.raises(UnknownModel):
                await store.open(account(), address(FILE_MODEL_NAME, opened.version))
            with pytest.raises(UnknownModel):
                await store.open(account(), address(str(weights_file), opened.version))

    asyncio.run(session())


def test_files_are_evicted_and_pinned_by_the_name_that_the_list_shows(make_store, weights_file):
    async def session():
        async with make_store() as store:
            client, operator = account(), account()
            opened = await open_path(store, client, weights_file)
            store.close(client, opened.lease)
            shown = address(store.label(address(FILE_MODEL_NAME, opened.version)), opened.version)
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


@pytest.mark.parametrize("call", ["fstat", "close"])
def test_a_file_system_that_does_not_answer_holds_up_nobody_elses_files(
    make_store, weights_file, tmp_path, pages, monkeypatch, call
):
    stuck = tmp_path / "stuck.safetensors"
    stuck.write_bytes(save(pages(value=8)))
    answering, asked, gate = getattr(os, call), threading.Event(), threading.Event()

    def answering_late(descriptor: int):
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(stuck):
            asked.set()
            assert gate.wait(PATIENCE_S)
        return answering(descriptor)

    async def session():
        async with make_store() as store:
            opening = asyncio.ensure_future(open_path(store, account(), stuck))
            await eventually(asked.is_set)
            for _ in range(2):
                assert value_of(await open_path(store, account(), weights_file)) == 7
            assert opening.done() == (call == "close")
            gate.set()
            assert value_of(await opening) == 8

    monkeypatch.setattr(os, call, answering_late)
    asyncio.run(session())


def test_many_clients_whose_files_hang_hold_up_nobody_elses_reading(
    make_store, weights_file, tmp_path, pages, monkeypatch
):
    """More of them than a pool of threads has places."""
    clients, gate, reading, hung = 40, threading.Event(), os.preadv, set()
    for i in range(2 * clients):
        (tmp_path / f"stuck{i}").write_bytes(save(pages(value=8)))

    def hanging(descriptor: int, *arguments):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if "/stuck" in name:
            hung.add(name)
            assert gate.wait(PATIENCE_S)
        return reading(descriptor, *arguments)

    async def session():
        async with make_store() as store:
            accounts = [account() for _ in range(clients)]
            opening = [
                asyncio.ensure_future(open_path(store, accounts[i // 2], tmp_path / f"stuck{i}"))
                for i in range(2 * clients)
            ]
            await eventually(lambda: len(hung) == 2 * clients)
            assert value_of(await open_path(store, account(), weights_file)) == 7
            assert not any(one.done() for one in opening)
            gate.set()
            assert {value_of(one) for one in await asyncio.gather(*opening)} == {8}

    monkeypatch.setattr(os, "preadv", hanging)
    asyncio.run(session())
