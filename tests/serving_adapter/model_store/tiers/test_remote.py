"""A repository behind any URL: versions, files that are not there, and names that are none."""

from __future__ import annotations

import asyncio
from typing import Any

import fsspec
import numpy as np
import pytest
from safetensors.numpy import save

from serving_adapter.model_store.errors import StoreError, UnknownModel
from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.tiers.host_memory import tensor_bytes
from serving_adapter.model_store.tiers.remote import MAX_NAME_CHARACTERS, Remote, check_name
from serving_adapter.model_store.tiers.tier import Address

PLENTY = 1 << 30
TENSORS = {"weight": np.arange(1000, dtype=np.uint8)}


def address(name: str, version: str = "1") -> Address:
    return Address("safetensors", name, version)


@pytest.fixture
def in_memory():
    """The files of a `memory://` repository, which last as long as the process."""
    system = fsspec.filesystem("memory")
    yield system
    for folder in system.ls("/", detail=False):
        system.rm(folder, recursive=True)


@pytest.fixture(params=["file", "memory", "http"])
def filled(request, repository, in_memory):
    """A repository's URL for each driver: `bert` in versions 2, 9, 10 and draft, `team/gpt` in version 1."""
    for version in ("2", "9", "10", "draft"):
        repository.add("bert", TENSORS | {"version": np.frombuffer(version.encode(), np.uint8)}, version)
    repository.add("team/gpt", TENSORS)
    (repository.folder / "bert" / "11").mkdir()  # without a file, as while one is being copied there
    if request.param == "http":
        return request.getfixturevalue("http_repository")
    if request.param == "memory":
        in_memory.put(str(repository.folder) + "/", "/models/", recursive=True)
        return "memory://models"
    return repository.url


def read_all(url: str, *key: str) -> bytes | None:
    stream = Remote(url).open(address(*key))
    if stream is None:
        return None
    with stream:
        return stream.read()


def test_a_models_file_is_read_from_its_beginning_each_time(filled):
    expected = save(TENSORS | {"version": np.frombuffer(b"9", np.uint8)})
    remote = Remote(filled)
    for _ in range(2):
        opened: Any = remote.open(address("bert", "9"))
        with opened as stream:
            assert stream.read(8) == expected[:8]
            rest = bytearray(len(expected))
            assert stream.readinto(memoryview(rest)) == len(expected) - 8
            assert rest[:-8] == expected[8:]
            assert stream.read(1) == b""
    assert read_all(filled, "team/gpt") == save(TENSORS)


def test_what_is_not_there_is_none(filled):
    for key in (("bert", "3"), ("bert", "11"), ("gpt", "1"), ("team", "1"), ("absent", "1")):
        assert read_all(filled, *key) is None


def test_the_newest_version_is_the_highest_number_that_has_a_file(filled):
    remote = Remote(filled)
    assert remote.newest_version("safetensors", "bert") == "10"
    assert remote.newest_version("safetensors", "team/gpt") == "1"
    assert remote.newest_version("safetensors", "team") is None
    assert remote.newest_version("safetensors", "absent") is None


def test_a_version_that_was_added_later_is_found(repository):
    remote = Remote(repository.url)
    for version in ("1", "2"):
        repository.add("bert", TENSORS, version)
        assert remote.newest_version("safetensors", "bert") == version


def test_a_store_loads_from_every_kind_of_url(make_store, filled):
    async def session():
        async with make_store([filled]) as store:
            opened = await store.open(Account(PLENTY), address("bert", ""))
            assert (opened.found_in, opened.version) == ("remote", "10")
            content = {p.tensor.name: bytes(data) for p, data in tensor_bytes(opened.model)}
            assert content == {"weight": TENSORS["weight"].tobytes(), "version": b"10"}

    asyncio.run(session())


def test_repositories_are_asked_in_turn(make_store, repository, in_memory, pages):
    repository.add("both", pages(value=1))
    in_memory.pipe("/second/both/1/model.safetensors", save(pages(value=2)))
    in_memory.pipe("/second/other/3/model.safetensors", save(pages(value=3)))

    async def session():
        async with make_store([repository.url, "memory://second"]) as store:
            account = Account(PLENTY)
            for name, value in (("both", 1), ("other", 3)):
                opened = await store.open(account, address(name, ""))
                ((_, data),) = tensor_bytes(opened.model)
                assert set(bytes(data)) == {value}
            assert (store.repositories.hits, store.repositories.misses) == (2, 0)

    asyncio.run(session())


def test_a_file_larger_than_a_block_comes_from_a_server_without_byte_ranges(
    make_store, repository, http_repository
):
    large = {"weight": np.random.default_rng(0).integers(0, 255, 9 << 20, np.uint8)}
    repository.add("large", large)

    async def session():
        async with make_store([http_repository]) as store:
            opened = await store.open(Account(PLENTY), address("large"))
            ((_, data),) = tensor_bytes(opened.model)
            assert bytes(data) == large["weight"].tobytes()

    asyncio.run(session())


def refusal(make_store, urls, name, version="1") -> StoreError:
    async def session():
        async with make_store(urls) as store:
            with pytest.raises(StoreError) as refused:
                await store.open(Account(PLENTY), address(name, version))
            assert store.host.used_bytes == store.disk.used_bytes == 0
            return refused.value

    return asyncio.run(session())


@pytest.mark.parametrize("version", ["1", ""])
def test_a_server_that_fails_is_told_in_one_sentence(make_store, http_repository, version):
    assert "broken" in str(refusal(make_store, [http_repository], "broken", version))


def test_a_server_that_fails_leaves_the_others_to_be_asked(make_store, repository, http_repository):
    repository.add("broken", TENSORS)

    async def session():
        async with make_store([http_repository, repository.url]) as store:
            assert (await store.open(Account(PLENTY), address("broken", ""))).version == "1"

    asyncio.run(session())


def test_a_download_that_is_cut_off_is_told_in_one_sentence(make_store, repository, http_repository):
    repository.add("cut", {"weight": np.zeros(1 << 20, np.uint8)})
    error = refusal(make_store, [http_repository], "cut")
    assert str(error).startswith(f"safetensors/cut/1 cannot be read from {http_repository}: ")


def test_a_server_that_is_gone_is_told_in_one_sentence(make_store):
    """Port 9 of this machine, where nobody listens."""
    error = refusal(make_store, ["http://127.0.0.1:9"], "bert")
    assert "http://127.0.0.1:9" in str(error)


@pytest.mark.parametrize(
    "data", [b"", b"no safetensors file", save(TENSORS)[:-1], save(TENSORS)[:20], save(TENSORS) + b"x"]
)
def test_a_file_that_is_none_is_told_with_its_repository(make_store, repository, open_descriptors, data):
    repository.add("bad", TENSORS).write_bytes(data)
    before = open_descriptors()
    error = refusal(make_store, [repository.url], "bad")
    assert str(error).startswith(f"safetensors/bad/1 cannot be read from {repository.url}: ")
    assert open_descriptors() == before


def test_what_nobody_has_is_unknown_and_says_who_was_asked(make_store, repository):
    error = refusal(make_store, [repository.url, "memory://"], "absent")
    assert type(error) is UnknownModel
    assert str(error) == (
        f"no tier has the model safetensors/absent/1 (remote repositories: {repository.url}, memory://)"
    )
    assert "there is no --remote" in str(refusal(make_store, [], "absent"))
    assert "name the version" in str(refusal(make_store, [repository.url], "absent", ""))


def test_a_url_without_a_driver_is_told_in_one_sentence(make_store):
    error = refusal(make_store, ["nonsense://host/models"], "bert")
    assert str(error).startswith("the remote nonsense://host/models cannot be used: ")


HOSTILE = [
    "",
    ".",
    "..",
    "../x",
    "a/../../x",
    "a/..",
    "a/./b",
    "/etc/passwd",
    "/",
    "a/",
    "a//b",
    ".hidden",
    "a/.hidden",
    "-flag",
    "a b",
    "a\nb",
    "a\n",
    "a\0b",
    "a\\b",
    "a:b",
    "a@1",
    "a%2e%2e",
    "https://elsewhere",
    "a?query",
    "a#part",
    "a*",
    "ä",
    "𝟏",
    "a" * (MAX_NAME_CHARACTERS + 1),
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_name_that_is_no_plain_name_reaches_no_repository(make_store, name):
    class Untouchable(Remote):
        def _opened(self):
            raise AssertionError("the repository was asked")

    async def session():
        async with make_store() as store:
            store.repositories.remotes = [Untouchable("file:///")]
            for key in (address(name), address("a", name), address(name, name), address(name, "")):
                if key == address("a", ""):
                    continue  # the newest version
                with pytest.raises(UnknownModel) as refused:
                    await store.open(Account(PLENTY), key)
                assert "cannot be a model's name" in str(refused.value)
                assert len(str(refused.value)) < 1000

    asyncio.run(session())


def test_a_name_outside_the_repository_is_not_read_though_it_exists(make_store, repository):
    repository.add("inside", TENSORS)
    (repository.folder.parent / "secret" / "1").mkdir(parents=True)
    (repository.folder.parent / "secret" / "1" / "model.safetensors").write_bytes(save(TENSORS))
    for name in ("../secret", "inside/../../secret", str(repository.folder.parent / "secret")):
        assert "cannot be a model's name" in str(refusal(make_store, [repository.url], name))


@pytest.mark.parametrize("name", ["a", "A.b_c-d", "7b", "_x", "team/model", "a/b/c", "a..b", "n" * 100])
def test_plain_names_are_names(name):
    check_name(address(name))
    check_name(address("a", name.replace("/", ".")))


def test_an_unknown_namespace_is_refused(make_store, repository):
    async def session():
        async with make_store([repository.url]) as store:
            for namespace in ("pickle", "", "../safetensors"):
                with pytest.raises(UnknownModel, match="unknown namespace"):
                    await store.open(Account(PLENTY), Address(namespace, "bert", "1"))

    asyncio.run(session())
