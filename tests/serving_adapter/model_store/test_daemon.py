"""The store as a process: who may connect, and when it ends by itself."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import signal
import stat
import subprocess

import grpc
import pytest
import torch

from serving_adapter import messages
from serving_adapter.model_store import Client, NoRoom, StoreError, UnknownModel
from serving_adapter.model_store.endpoint import Endpoint, make_folder
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.sharing_rule import ASSUMED_DISK_BYTES_PER_S, SharingCosts
from tests.support.stores.running_store import Seen, rrl_store, short_folder, stores, stub_of
from tests.support.stores.weights_files import in_repository, saved, some_weights
from tests.support.waiting import until


@pytest.fixture
def start_store(tmp_path):
    with stores(tmp_path) as start:
        yield start


@pytest.fixture
def path(tmp_path):
    return saved(some_weights(), tmp_path / "w")


def opened_by(client, path):
    with path.open("rb") as file:
        return client.open_file(file, path.name)


# --- who may connect -------------------------------------------------------------------------------


@pytest.mark.parametrize(("flags", "mode"), [((), 0o600), (("--group-access",), 0o660)])
def test_the_sockets_are_for_the_user_or_the_group(start_store, flags, mode):
    before = os.umask(0)  # whatever it is
    try:
        store = start_store(*flags)
    finally:
        os.umask(before)
    for path in (store.endpoint.rpc, store.endpoint.descriptors):
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_folder_that_is_made_is_for_the_user_only(start_store):
    with short_folder() as folder:
        store = start_store(folder=folder / "new")
        assert stat.S_IMODE((folder / "new").stat().st_mode) == 0o700
        store.stop()


def test_a_folder_that_everyone_may_write_to_is_used_by_neither_side(start_store, path):
    store = start_store()
    store.folder.chmod(0o777)
    for starts_store in (False, True):
        with pytest.raises(StoreError, match="everyone may write to it"):
            opened_by(store.client(starts_store=starts_store), path)
    ended = rrl_store("serve", "--folder", store.folder)
    assert ended.returncode in (1, 2)
    assert "everyone may write to it" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_folder_that_its_group_may_write_to_is_used_by_nobody(start_store, path):
    store = start_store()
    store.folder.chmod(0o770)
    with pytest.raises(StoreError, match=r"its group or everyone may write to it.*chmod go-w"):
        opened_by(store.client(), path)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a link away")
def test_another_users_link_into_a_folder_of_ones_own_is_not_followed(start_store, path):
    store = start_store()
    with short_folder() as folder:
        link = folder / "link"
        link.symlink_to(store.folder)
        os.chown(link, 4242, 4242, follow_symlinks=False)
        for endpoint in (Endpoint(link, is_chosen=False), Endpoint(link)):
            with pytest.raises(StoreError, match="belongs to another user"):
                make_folder(endpoint)
        with pytest.raises(StoreError, match="belongs to another user"):
            opened_by(Client(Endpoint(link, is_chosen=False), starts_store=False), path)
        os.chown(link, os.getuid(), -1, follow_symlinks=False)
        with Client(Endpoint(link, is_chosen=False), starts_store=False) as client:
            assert opened_by(client, path).tensors


def no_file_beyond(size_bytes: int):
    """As on a full disk, every longer file fails to be written."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


def test_a_disk_that_cannot_be_written_to_does_not_keep_a_store_from_starting(start_store, path):
    with short_folder() as folder:
        store = start_store(folder=folder / "new", preexec_fn=no_file_beyond(1 << 20), stderr=subprocess.PIPE)
        with store.client() as client:
            assert opened_by(client, path).tensors
            assert Seen(client).stats().disk_bytes_per_s == ASSUMED_DISK_BYTES_PER_S
        assert SharingCosts.read(store.folder) is None  # the next store measures again
        assert store.stop() == 0
        said = store.process.stderr.read()
        assert said.count("the speed of the disk cannot be measured") == 1


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a folder away")
def test_a_folder_of_another_user_is_used_only_by_who_chose_it(start_store, path):
    store = start_store()
    os.chown(store.folder, 4242, 4242)
    by_default = dataclasses.replace(store.endpoint, is_chosen=False)
    with pytest.raises(StoreError, match="belongs to another user"):
        opened_by(Client(by_default, starts_store=False), path)
    with store.client() as client:
        assert opened_by(client, path).tensors
    ended = rrl_store("serve", "--folder", store.folder)
    assert "belongs to another user" in ended.stderr
    os.chown(store.folder, 0, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_group_may_connect_where_it_is_let(start_store):
    store = start_store("--group-access")
    os.chown(store.folder, 0, 4242)
    for sock in (store.endpoint.rpc, store.endpoint.descriptors):
        os.chown(sock, 0, 4242)
    if not (pid := os.fork()):
        os.setgroups([])
        os.setgid(4242)
        os.setuid(4242)
        with store.client() as client:
            try:
                client.open("no-such-model", "1")
            except UnknownModel:
                os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_another_user_is_refused_by_the_kernel(start_store):
    store = start_store()
    store.folder.chmod(0o711)
    if not (pid := os.fork()):
        os.setgid(4242)
        os.setuid(4242)
        refused = 0
        for connect in (store.session, store.raw):
            try:
                connect()
            except PermissionError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2


def test_a_path_too_long_for_a_socket_is_said_so(tmp_path):
    with pytest.raises(StoreError, match="too long for a socket"):
        Client(Endpoint(tmp_path / ("x" * 100)), starts_store=False).open("net")


@pytest.mark.parametrize("wrong", [None, "", "open", "open sesame ", "OPEN SESAME", "öffne dich"])
def test_a_wrong_token_opens_nothing(start_store, path, wrong):
    store = start_store(token="open sesame")
    with pytest.raises(StoreError, match="wants another token; set RRL_STORE_TOKEN"):
        opened_by(store.client(token=wrong), path)
    with contextlib.closing(store.raw({"token": wrong})) as sock:
        assert messages.receive(sock) == {"wants": "token"}
        refusal = messages.receive(sock)
        assert refusal is not None
        assert "another token" in refusal["error"]
        assert messages.receive(sock) is None
    with store.client(token="open sesame") as client:
        assert opened_by(client, path).tensors
        with stub_of(store.endpoint) as stub:
            for method, request in (
                ("Open", pb.OpenRequest(session=client.session)),
                ("Close", pb.CloseRequest(session=client.session)),
                ("List", pb.Empty()),
                ("Stats", pb.Empty()),
                ("Pin", pb.PinRequest()),
                ("Evict", pb.EvictRequest()),
            ):
                for metadata in ([], [("authorization", "Bearer open")], [("authorization", "")]):
                    with pytest.raises(grpc.RpcError) as refused:
                        getattr(stub, method)(request, metadata=metadata)
                    assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_client_takes_the_token_from_its_environment(start_store, path, monkeypatch):
    store = start_store(token="open sesame")
    monkeypatch.setenv("RRL_STORE_TOKEN", "open sesame")
    with store.client() as client:
        assert opened_by(client, path).tensors


# --- what a client may hold ------------------------------------------------------------------------


def test_a_client_holds_no_more_than_its_quota(start_store, tmp_path):
    store = start_store("--client-quota", "8M")
    paths = [
        saved({"a": torch.full((1 << 20,), float(i))}, tmp_path / str(i)) for i in range(3)
    ]  # 4 MiB each
    with store.client() as client:
        seen = Seen(client)
        first, second = (opened_by(client, path) for path in paths[:2])
        again = opened_by(client, paths[0])  # counts once
        with pytest.raises(NoRoom, match="may refer to 8,388,608"):
            opened_by(client, paths[2])
        assert seen.references == 3
        del second
        until(lambda: seen.references == 2)
        assert opened_by(client, paths[2]).tensors
        del first, again


def test_a_quota_may_be_a_share_of_the_host_memory(start_store, tmp_path):
    store = start_store("--client-quota", "1%")
    with store.client() as client, pytest.raises(NoRoom, match="may refer to 2,684,354"):
        opened_by(client, saved({"a": torch.zeros(1 << 20)}, tmp_path / "a"))


def test_a_model_larger_than_the_host_memory_is_refused(start_store, tmp_path):
    store = start_store("--host-bytes", "1M")
    with store.client() as client, pytest.raises(NoRoom, match="start the store with more"):
        opened_by(client, saved({"a": torch.zeros(1 << 20)}, tmp_path / "a"))


def test_models_in_use_are_never_evicted(start_store, tmp_path):
    store = start_store("--host-bytes", "10M", "--client-quota", "100%")
    paths = [saved({"a": torch.full((1 << 20,), float(i))}, tmp_path / str(i)) for i in range(3)]
    with store.client() as client:
        seen = Seen(client)
        held = [opened_by(client, path) for path in paths[:2]]
        with pytest.raises(NoRoom, match="models in use are never evicted"):
            opened_by(client, paths[2])
        assert seen.tier().evictions == 0
        del held
        until(lambda: seen.references == 0)
        assert opened_by(client, paths[2]).tensors
        assert seen.tier().evictions >= 1


# --- eager reclaim ---------------------------------------------------------------------------------


@pytest.mark.parametrize("eager", [False, True])
def test_eager_reclaim_frees_a_model_with_its_last_reference(start_store, tmp_path, path, eager):
    root = tmp_path / "repository"
    in_repository(root, "net", "1", some_weights(seed=1))
    store = start_store("--remote", f"file://{root}", *(["--eager-reclaim"] if eager else []))
    with store.client() as client, store.client() as other:
        seen = Seen(client)
        held = [opened_by(client, path), opened_by(other, path), client.open("net")]
        until(lambda: seen.has_written)
        held.pop(0)
        until(lambda: seen.references == 2)
        assert seen.tier().used_bytes > 0
        held.clear()
        until(lambda: seen.references == 0)
        if eager:
            until(lambda: seen.tier().used_bytes == 0)
            assert store.memory_files() == 0
            assert seen.tier("disk").used_bytes > 0
        else:
            assert seen.tier().used_bytes > 0
        before = seen.tier("disk").hits
        client.open("net")
        assert seen.tier("disk").hits - before == eager


def test_a_model_that_is_pinned_is_not_reclaimed(start_store, tmp_path):
    root = tmp_path / "repository"
    in_repository(root, "net", "1", some_weights(seed=1))
    store = start_store("--remote", f"file://{root}", "--eager-reclaim")
    with store.client() as client:
        seen = Seen(client)
        client.call("Pin", pb.PinRequest(address=pb.Address(name="net"), pinned=True))
        client.open("net")
        until(lambda: seen.references == 0 and seen.has_written)
        assert seen.tier().used_bytes > 0
        client.call("Pin", pb.PinRequest(address=pb.Address(name="net"), pinned=False))
        until(lambda: seen.tier().used_bytes == 0, "it is reclaimed once it is released")


# --- tiers -----------------------------------------------------------------------------------------


def test_a_miss_fills_every_tier_on_its_way_up(start_store, tmp_path):
    root = tmp_path / "repository"
    in_repository(root, "net", "1", some_weights(seed=1))
    store = start_store("--remote", f"file://{root}")
    with store.client() as client:
        seen = Seen(client)
        assert client.open("net").found_in == "remote"
        until(lambda: seen.has_written)
        assert client.open("net").found_in == "host"
        until(lambda: not any(model.references for model in seen.models()), "it is written, too")
        client.call("Evict", pb.EvictRequest(address=pb.Address(name="net"), tier="host"))
        assert client.open("net").found_in == "disk"
        with pytest.raises(UnknownModel, match=r"no tier has the model safetensors/net/2"):
            client.open("net", "2")
        assert [(t.tier, t.hits, t.misses) for t in seen.stats().tiers] == [
            ("host", 1, 3),
            ("disk", 1, 2),
            ("remote", 1, 1),
        ]


def test_a_damaged_cache_is_fetched_again(start_store, tmp_path):
    root = tmp_path / "repository"
    in_repository(root, "net", "1", some_weights(seed=1))
    store = start_store("--remote", f"file://{root}")
    with store.client() as client:
        seen = Seen(client)
        for damage in (lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b[:-1], lambda b: b""):
            client.open("net")
            until(lambda: seen.has_written)
            until(lambda: seen.references == 0)
            client.call("Evict", pb.EvictRequest(address=pb.Address(name="net"), tier="host"))
            (blob,) = (store.cache / "blobs").iterdir()
            blob.write_bytes(damage(blob.read_bytes()))
            assert client.open("net").found_in == "remote"


# --- its life --------------------------------------------------------------------------------------


def test_it_ends_when_nobody_has_been_there_for_a_while(start_store, path):
    store = start_store("--idle-exit-s", "3")
    with store.client() as client:
        held = opened_by(client, path)
        assert store.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for clients
            store.process.wait(5)
        assert Seen(client).references == 1
        del held
    assert store.process.wait(30) == 0
    assert not store.endpoint.rpc.exists()
    assert not store.endpoint.descriptors.exists()


def test_a_store_that_nobody_ever_came_to_ends_too(start_store):
    assert start_store("--idle-exit-s", "0.2").process.wait(30) == 0


def test_sockets_that_a_killed_store_left_are_replaced(start_store, path):
    first = start_store()
    first.stop(signal.SIGKILL)
    assert first.endpoint.rpc.exists()
    second = start_store(folder=first.folder)
    with second.client() as client:
        assert opened_by(client, path).tensors


def test_a_store_that_is_ended_while_clients_wait_ends_at_once(start_store, path):
    store = start_store()
    with contextlib.ExitStack() as stack:
        sock, session = store.session()
        stack.callback(sock.close)
        stub = stack.enter_context(store.stub())
        waiting = stub.Open.future(pb.OpenRequest(session=session, ticket="never"))
        stub.List(pb.Empty())  # the question before it on this connection is there, too
        greeting = store.raw()
        stack.callback(greeting.close)
        assert store.stop() == 0
        with pytest.raises(grpc.RpcError):
            waiting.result(60)
