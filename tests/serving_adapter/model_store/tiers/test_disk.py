"""The cache folder survives its store, notices damage, and holds each content once."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import save

from serving_adapter.model_store.errors import NoRoom, UnknownModel
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.tiers.disk import Disk, content_hash
from serving_adapter.model_store.tiers.eviction import LeastRecentlyUsed
from serving_adapter.model_store.tiers.host_memory import Weights, fill, place, tensor_bytes
from serving_adapter.model_store.tiers.remote import MAX_NAME_CHARACTERS, check_name
from serving_adapter.model_store.weights_file import read_safetensors_header
from tests.support.stores.store_in_process import PLENTY, address


def read(data: bytes) -> Weights:
    stream = io.BytesIO(data)
    header = read_safetensors_header(stream)
    return fill(stream, header, place(header.tensors, None))


def file_of(weights: Weights) -> bytes:
    return weights.header.raw + b"".join(bytes(data) for _, data in tensor_bytes(weights))


def model(value: int = 1, size: int = 1000) -> bytes:
    return save({"weight": np.full(size, value, np.uint8), "scale": np.array([value], np.float32)})


def put(disk: Disk, name: str, data: bytes, version: str = "1"):
    """Writes a model as the store does: room first, then the file, then the entry."""
    weights = read(data)
    disk.reserve(len(data))
    try:
        blob = content_hash(weights)
        with disk.kept(blob):
            return disk.admit(address(name, version), disk.write(address(name, version), weights, blob), 1.0)
    finally:
        disk.unreserve(len(data))
        weights.close()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "cache"


def disk_of(folder, capacity_bytes: int = PLENTY) -> Disk:
    return Disk(folder, capacity_bytes, LeastRecentlyUsed())


def files(folder) -> list[str]:
    """Everything in the folder but its folders."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def blob_of(folder):
    (blob,) = (folder / "blobs").iterdir()
    return blob


# --- what a store leaves to the next ---------------------------------------------------------------


def test_the_next_store_finds_what_an_earlier_one_left(folder):
    first = disk_of(folder)
    written = {("a", "1"): model(1), ("a", "2"): model(2), ("team/b.x-y_z", "v1.2"): model(3)}
    for (name, version), data in written.items():
        put(first, name, data, version)
    second = disk_of(folder)
    assert set(second.entries) == {address(*key) for key in written}
    assert second.used_bytes == first.used_bytes == sum(map(len, written.values()))
    for key, data in written.items():
        entry = second.entries[address(*key)]
        assert entry.content == first.entries[address(*key)].content
        with second.open(entry) as stream:
            assert stream.read() == data


def test_the_cached_file_is_a_plain_weight_file_as_it_came(folder):
    put(disk_of(folder), "a", model())
    assert blob_of(folder).read_bytes() == model()


def test_only_this_user_can_enter_the_cache(folder):
    put(disk_of(folder), "a", model())
    assert {path.stat().st_mode & 0o077 for path in [*folder.iterdir(), *folder.rglob("*.json")]} == {0}


def test_half_written_files_are_gone_at_the_next_start(folder):
    put(disk_of(folder), "a", model())
    complete = files(folder)
    (folder / "blobs" / f".{'ab' * 32}.{'0' * 16}.part").write_bytes(b"half")
    (folder / "models" / "safetensors" / f".a@1.json.{'f' * 16}.part").write_bytes(b"half")
    (folder / "blobs" / ("ab" * 32)).write_bytes(model(9))  # killed between the file and its manifest
    disk = disk_of(folder)
    assert files(folder) == complete
    assert list(disk.entries) == [address("a")]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"blob": "../secret", "size_bytes": 6}',
        b'{"blob": "", "size_bytes": 6}',
        b'{"blob": "absent", "size_bytes": 6}',
        b'{"blob": "absent", "size_bytes": null}',
        b'{"blob": "absent"}',
    ],
)
def test_a_manifest_that_makes_no_sense_is_removed(folder, content):
    put(disk_of(folder), "a", model())
    complete = files(folder)
    (folder / "secret").write_bytes(b"secret")
    (folder / "models" / "safetensors" / "b@1.json").write_bytes(content)
    assert list(disk_of(folder).entries) == [address("a")]
    assert files(folder) == sorted([*complete, "secret"])


def test_a_manifest_of_an_earlier_store_which_knew_every_tensors_hash_is_read(folder):
    put(disk_of(folder), "a", model())
    (path,) = folder.rglob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"blake3": {"weight": "ab" * 32}}))
    disk = disk_of(folder)
    with disk.open(disk.entries[address("a")]) as stream:
        assert stream.read() == model()


def test_a_manifest_under_another_spelling_of_its_models_name_is_removed(folder):
    put(disk_of(folder), "a", model())
    (path,) = folder.rglob("*.json")
    complete = files(folder)
    shutil.copy(path, path.with_name("%61@1.json"))
    disk = disk_of(folder)
    assert (files(folder), disk.used_bytes) == (complete, len(model()))


def test_files_that_no_store_wrote_are_left_alone(folder):
    put(disk_of(folder), "a", model())
    complete = files(folder)
    others = [
        "blobs/sha256-weights",
        "blobs/film.mkv.part",
        f"downloads/.w.{'0' * 16}.part",
        "models/x/notes.txt",
    ]
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("precious")
    (folder / "blobs" / ("cd" * 32)).mkdir()  # a folder is no weight file, whatever it is called
    assert list(disk_of(folder).entries) == [address("a")]
    assert files(folder) == sorted([*complete, *others])


@pytest.mark.parametrize("damage", ["cut", "longer", "deleted"])
def test_a_file_of_another_size_is_not_found_again(folder, damage):
    put(disk_of(folder), "a", model())
    blob = blob_of(folder)
    if damage == "deleted":
        blob.unlink()
    else:
        os.truncate(blob, len(model()) + (1 if damage == "longer" else -1))
    disk = disk_of(folder)
    assert (disk.entries, disk.used_bytes, files(folder)) == ({}, 0, [])


def test_a_smaller_capacity_holds_from_the_start(folder):
    first = disk_of(folder)
    for name in "abc":
        put(first, name, model(ord(name)))
    size = len(model())
    second = disk_of(folder, 2 * size)
    assert second.used_bytes <= 2 * size
    assert disk_of(folder).used_bytes == second.used_bytes  # the files went too


# --- one file for one content ----------------------------------------------------------------------


def test_models_of_the_same_content_share_one_file_to_the_last(folder):
    disk = disk_of(folder)
    a, b = put(disk, "a", model()), put(disk, "b", model())
    assert disk.used_bytes == len(model())
    blob = blob_of(folder)
    disk.evict(a)
    assert blob.read_bytes() == model()
    assert disk.used_bytes == len(model())
    assert list(disk_of(folder).entries) == [address("b")]
    disk.evict(b)
    assert (disk.used_bytes, files(folder)) == (0, [])


def test_another_header_over_the_same_tensors_is_another_file(folder):
    tensors = {"weight": np.zeros(8, np.uint8)}
    disk = disk_of(folder)
    put(disk, "a", save(tensors))
    put(disk, "b", save(tensors, {"format": "pt"}))
    put(disk, "c", save({"weight": np.zeros((2, 4), np.uint8)}))
    assert len(list((folder / "blobs").iterdir())) == 3


def test_a_file_stays_while_a_model_of_its_content_is_written(folder):
    """The last model in it may be evicted by the event loop while a thread writes the next one's manifest."""
    disk = disk_of(folder)
    first = put(disk, "a", model())
    weights = read(model())
    blob = content_hash(weights)
    with disk.kept(blob):
        disk.evict(first)
        assert blob_of(folder).read_bytes() == model()
        second = disk.admit(address("b"), disk.write(address("b"), weights, blob), 1.0)
    weights.close()
    assert list(disk_of(folder).entries) == [address("b")]
    disk.evict(second)
    assert files(folder) == []


# --- capacity --------------------------------------------------------------------------------------


def test_a_full_disk_evicts_files_and_manifests(folder):
    size = len(model())
    disk = disk_of(folder, 2 * size)
    put(disk, "a", model(1))
    put(disk, "b", model(2))
    disk.look_up(address("a"))
    put(disk, "c", model(3))
    assert set(disk.entries) == {address("a"), address("c")}
    assert (disk.used_bytes, disk.evictions, len(files(folder))) == (2 * size, 1, 4)
    with pytest.raises(NoRoom, match=f"the disk tier holds {2 * size:,} in all"):
        disk.reserve(2 * size + 1)
    assert len(disk.entries) == 2


def test_a_write_that_fails_leaves_nothing(folder, monkeypatch):
    disk = disk_of(folder)
    put(disk, "a", model(1))
    complete = files(folder)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        put(disk, "b", model(2))
    assert (files(folder), disk.used_bytes) == (complete, len(model()))


def test_a_name_of_the_greatest_length_is_kept_and_leaves_no_stray_file(folder):
    """A name becomes a file's, where the system allows 255 bytes and a '/' takes three."""
    name = ("name/" * MAX_NAME_CHARACTERS)[: MAX_NAME_CHARACTERS - 1]
    check_name(address(name))
    disk = disk_of(folder)
    try:
        put(disk, name, model())
    except OSError:
        assert files(folder) == []
        raise
    assert list(disk_of(folder).entries) == [address(name)]


# --- damage that is noticed when the model is read -------------------------------------------------


def damaged_after_caching(make_store, remotes, cache, damage):
    """Caches model `a`, damages its file, and opens it with a new store: what that gives, and from where."""

    async def session():
        async with make_store(remotes) as store:
            await store.open(Account(PLENTY), address("a"))
        damage(blob_of(cache))
        async with make_store(remotes) as store:
            opened = await store.open(Account(PLENTY), address("a"))
            await store.settled()
            return file_of(opened.model), opened.found_in, len(store.disk.entries)

    return asyncio.run(session())


def flip(position: int):
    def damage(blob) -> None:
        data = bytearray(blob.read_bytes())
        data[position] ^= 1
        blob.write_bytes(data)

    return damage


def test_a_flipped_bit_anywhere_in_the_tensors_is_noticed_and_the_model_fetched_again(
    make_store, repository, tmp_path
):
    data = repository.add("a", {"weight": np.arange(600, dtype=np.uint8)}).read_bytes()
    for position in (-1, -300, -600):
        restored = damaged_after_caching(make_store, [repository.url], tmp_path / "cache", flip(position))
        assert restored == (data, "remote", 1)
        assert blob_of(tmp_path / "cache").read_bytes() == data


def test_a_flipped_bit_anywhere_in_the_header_is_noticed_and_the_model_fetched_again(
    make_store, repository, tmp_path
):
    """Also one that leaves it a header: F32 to F33 is none, but 2 x 3 to 3 x 2, or U8 to I8, are."""
    file = repository.add("a", {"weight": np.arange(6, dtype=np.uint8).reshape(2, 3)})
    data = file.read_bytes()

    def swap(old: bytes, new: bytes):
        def damage(blob) -> None:
            assert old in blob.read_bytes()
            blob.write_bytes(blob.read_bytes().replace(old, new))

        return damage

    damages = [flip(position) for position in (0, 8, 12, 20)]
    damages += [swap(b'"U8"', b'"I8"'), swap(b"[2,3]", b"[3,2]")]
    for damage in damages:
        restored = damaged_after_caching(make_store, [repository.url], tmp_path / "cache", damage)
        assert restored == (data, "remote", 1)


@pytest.mark.parametrize("damage", [lambda blob: os.truncate(blob, 500), lambda blob: blob.unlink()])
def test_a_file_cut_or_deleted_under_a_running_store_is_fetched_again(
    make_store, repository, tmp_path, damage
):
    data = repository.add("a", {"weight": np.arange(600, dtype=np.uint8)}).read_bytes()

    async def session():
        async with make_store([repository.url]) as store:
            account = Account(PLENTY)
            first = await store.open(account, address("a"))
            await store.settled()
            store.close(account, first.lease)
            store.evict(address("a"), "host")
            damage(blob_of(tmp_path / "cache"))
            again = await store.open(account, address("a"))
            await store.settled()
            assert (again.found_in, file_of(again.model)) == ("remote", data)
            assert store.host.reserved_bytes == store.disk.reserved_bytes == 0

    asyncio.run(session())
    assert blob_of(tmp_path / "cache").read_bytes() == data


def test_every_model_that_shares_a_damaged_file_is_fetched_again(make_store, repository, tmp_path):
    tensors = {"weight": np.arange(600, dtype=np.uint8)}
    data = repository.add("a", tensors).read_bytes()
    repository.add("b", tensors)

    async def session():
        async with make_store([repository.url]) as store:
            for name in "ab":
                await store.open(Account(PLENTY), address(name))
        flip(-1)(blob_of(tmp_path / "cache"))
        async with make_store([repository.url]) as store:
            for name in "ab":
                opened = await store.open(Account(PLENTY), address(name))
                assert (opened.found_in, file_of(opened.model)) == ("remote", data)

    asyncio.run(session())


def test_a_damaged_model_that_no_remote_has_any_more_is_unknown(make_store, repository, tmp_path):
    repository.add("a", {"weight": np.arange(600, dtype=np.uint8)})
    with pytest.raises(UnknownModel, match="no tier has the model safetensors/a/1"):
        damaged_after_caching(
            lambda remotes: make_store([repository.url] if not blobs(tmp_path) else []),
            [],
            tmp_path / "cache",
            flip(-1),
        )
    assert files(tmp_path / "cache") == []


def blobs(tmp_path) -> list:
    return list((tmp_path / "cache").glob("blobs/*"))
