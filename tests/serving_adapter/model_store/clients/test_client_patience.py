"""A store that takes a question and never answers it: weights are loaded privately where they can be."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import threading

import pytest
import torch
from torch import nn

from serving_adapter import messages, model_store
from serving_adapter.model_store import StoreUnavailable
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.torch_side import tensors
from tests.support.stores.running_store import short_folder
from tests.support.stores.store_clients import default_client_of
from tests.support.stores.weights_files import saved, some_weights


@pytest.fixture
def silent(monkeypatch):
    """A store that greets its clients, takes what they ask, and counts them."""
    greeted: list[socket.socket] = []
    with short_folder() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(Endpoint(folder).descriptors))
        listener.listen()

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    greeted.append(listener.accept()[0])
                    messages.send(greeted[-1], {"session": "s"})

        thread = threading.Thread(target=greet)
        thread.start()
        with default_client_of(folder, monkeypatch):
            yield greeted
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        for sock in greeted:
            sock.close()


def test_it_is_asked_once_and_waited_for_once(silent, tmp_path, caplog):
    path = saved(some_weights(), tmp_path / "w")
    with model_store.patience(0.2):
        weights = model_store.load_file(path)
        with pytest.raises(StoreUnavailable, match="it took too long before"):
            model_store.share(nn.Linear(300, 300), "linear")
        with pytest.raises(StoreUnavailable):
            model_store.open("net", "1")
    assert torch.equal(weights["0.weight"], some_weights()["0.weight"])
    (record,) = caplog.records
    assert "is loaded privately" in record.getMessage()
    assert len(silent) == 1


def test_patience_ends_with_its_block(silent):
    with model_store.patience(5.0):
        assert tensors.default_client().give_up_s is not None
    assert tensors.default_client().give_up_s is None


def test_patience_needs_no_store(monkeypatch):
    monkeypatch.setenv("RRL_STORE", "off")
    with model_store.patience(5.0):
        pass


def test_a_process_that_hangs_while_it_starts_a_store_is_not_waited_for_forever(tmp_path, monkeypatch):
    path = saved(some_weights(), tmp_path / "w")
    with short_folder() as folder, (folder / "starting").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with (
            default_client_of(folder, monkeypatch),
            model_store.patience(0.2),
            path.open("rb") as file,
            pytest.raises(StoreUnavailable, match="another process has been starting it"),
        ):
            tensors.default_client().open_file(file, "w")
