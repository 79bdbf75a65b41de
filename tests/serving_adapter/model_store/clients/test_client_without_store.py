"""The store ends, is not there, or is switched off."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import threading

import psutil
import pytest
import torch
from torch import nn

from serving_adapter import model_store
from serving_adapter.model_store import Client, StoreError, StoreUnavailable
from serving_adapter.model_store.clients import access
from serving_adapter.model_store.endpoint import TOKEN_VARIABLE, Endpoint
from serving_adapter.model_store.torch_side import tensors
from tests.support.pipes import line_of, tell
from tests.support.stores.running_store import Seen, script, short_folder, stores
from tests.support.stores.store_clients import CHILD, default_client_of, net
from tests.support.stores.weights_files import in_repository, saved, some_weights
from tests.support.waiting import until


def test_a_killed_store_is_replaced_by_one_that_finds_its_disk_tier(tmp_path, start_store, monkeypatch):
    """The repository is gone meanwhile, so the weights can only come from the cache."""
    root = tmp_path / "repository"
    in_repository(root, "net", "1", net(0).state_dict())
    first = start_store("--remote", f"file://{root}", "--cache", tmp_path / "cache")
    with default_client_of(first.folder, monkeypatch):
        weights = model_store.open("net", "1")
        with first.client() as client:
            until(lambda: Seen(client).has_written, "the model is on disk")
        first.stop(signal.SIGKILL)
        shutil.rmtree(root)
        for name, tensor in net(0).state_dict().items():
            assert torch.equal(weights[name], tensor)  # what is mapped stays
        again = model_store.open("net", "1")
        for name, tensor in net(0).state_dict().items():
            assert torch.equal(again[name], tensor)
        seen = Seen(tensors.default_client())
        second = seen.stats().pid
        try:
            assert second != first.pid
            assert seen.tier("disk").hits == 1
            assert seen.references == 1
            del weights  # a reference to the store that is gone
            gc.collect()
            assert seen.references == 1
            del again
            gc.collect()
            until(lambda: seen.references == 0)
        finally:
            os.kill(second, signal.SIGTERM)
        until(lambda: not psutil.pid_exists(second))


def test_a_store_that_wanted_a_token_is_not_replaced_by_one_that_wants_none(
    start_store, tmp_path, monkeypatch, caplog
):
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    large = net(0, width=1024).state_dict()  # so that sharing pays
    path = saved(large, tmp_path / "w")
    first = start_store(token="open sesame")
    first.stop(signal.SIGKILL)
    with default_client_of(first.folder, monkeypatch):
        weights = model_store.load_file(path)
    assert weights.keys() == large.keys()
    (warning,) = caplog.messages
    assert "is loaded privately: no model store could be started: the store wants a token" in warning
    with Client(first.endpoint, token="open sesame") as client, path.open("rb") as file:
        held = client.open_file(file, "w")
        second = Seen(client).stats().pid
        with pytest.raises(StoreError, match="wants another token"):
            Seen(first.client()).stats()
        del held
        os.kill(second, signal.SIGTERM)
    until(lambda: not psutil.pid_exists(second))


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_whoever_opens_while_a_store_ends_is_served_by_the_next(start_store, tmp_path, monkeypatch, signum):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = saved(some_weights(), tmp_path / "w")
    first = start_store()
    with Client(Endpoint(first.folder)) as client, path.open("rb") as file:
        held = client.open_file(file, "w")
        first.process.send_signal(signum)
        again = client.open_file(file, "w")
        first.process.wait(30)
        once_more = client.open_file(file, "w")  # `again` may have come from the first yet
        second = Seen(client).stats().pid
        os.kill(second, signal.SIGTERM)
        del held, again, once_more
    assert second != first.pid
    until(lambda: not psutil.pid_exists(second))


def test_processes_that_start_a_store_at_once_end_with_one(tmp_path):
    path = saved(some_weights(), tmp_path / "w")
    text = CHILD + (
        "from serving_adapter.model_store.torch_side.tensors import default_client\n"
        "from serving_adapter.model_store.protocol import model_store_pb2 as pb\n"
        "print('ready', flush=True)\nsys.stdin.readline()\nweights = model_store.load_file(sys.argv[1])\n"
        "print(default_client().call('Stats', pb.Empty()).pid, flush=True)\nsys.stdin.read()"
    )
    with short_folder() as folder, contextlib.ExitStack() as stack:
        variables = {"RRL_STORE": str(folder), "HOME": str(tmp_path)}
        processes = [stack.enter_context(script(text, path, **variables)) for _ in range(4)]
        for process in processes:
            assert line_of(process) == "ready\n"
        for process in processes:
            tell(process)
        pids = {int(line_of(process)) for process in processes}
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        assert len(pids) == 1
        until(lambda: not any(map(psutil.pid_exists, pids)))


def test_a_client_waits_for_a_store_that_somebody_else_is_starting(tmp_path, monkeypatch):
    """An operator's own, which has the lock but does not listen yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = saved(some_weights(), tmp_path / "w")
    with short_folder() as folder, stores(tmp_path) as start:
        opened: list[object] = []

        def load() -> None:
            until(lambda: (folder / "lock").exists())
            with Client(Endpoint(folder)) as client, path.open("rb") as file:
                try:
                    opened.append(client.open_file(file, "w").version)
                except StoreError as error:
                    opened.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        start(folder=folder)
        thread.join()
        assert isinstance(opened[0], str), opened


def test_no_store_is_unavailable_for_a_client_that_starts_none():
    with short_folder() as folder, pytest.raises(StoreUnavailable, match="start one with: rrl-store serve"):
        Client(Endpoint(folder), starts_store=False).open("net")


def test_weights_are_loaded_privately_where_no_store_can_be(tmp_path, monkeypatch, caplog):
    path = saved(some_weights(), tmp_path / "w")
    file = tmp_path / "file"
    file.write_text("")
    for folder in (tmp_path / ("x" * 120), file, file / "below"):
        with default_client_of(folder, monkeypatch):
            weights = model_store.load_file(path)
            assert torch.equal(weights["0.weight"], some_weights()["0.weight"])
            weights["0.weight"].zero_()  # private
            with pytest.raises(StoreError):
                model_store.open("net")
            with pytest.raises(StoreError):
                model_store.share(nn.Linear(300, 300), "linear")
    assert "is loaded privately" in caplog.text


def test_a_store_that_hangs_is_not_waited_for_forever(start_store, monkeypatch):
    monkeypatch.setattr(access, "ANSWER_TIMEOUT_S", 0.2)
    store = start_store()
    store.process.send_signal(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="does not answer"):
        store.client().open("net")


def test_a_store_switched_off_is_not_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved(some_weights(), tmp_path / "w")
    with default_client_of("off", monkeypatch):
        weights = model_store.load_file(path)
        weights["0.weight"].zero_()  # private
        assert model_store.share(nn.Linear(300, 300), "linear") == 0
        with pytest.raises(StoreError):
            model_store.open("net")
    assert os.listdir(tmp_path) == ["w"]
