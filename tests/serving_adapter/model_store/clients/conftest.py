"""A store, its references seen before and after every test."""

from __future__ import annotations

import json

import pytest

from serving_adapter.model_store.sharing_rule import FILE_NAME, SharingCosts
from tests.support.stores.running_store import Seen, stores
from tests.support.stores.store_clients import default_client_of, net
from tests.support.stores.weights_files import in_repository
from tests.support.waiting import until

SLOW_DISK = SharingCosts(overhead_s=1e-5, disk_bytes_per_s=1e8)  # so that sharing pays from 1 kB on


@pytest.fixture
def start_store(tmp_path):
    with stores(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder of the store's repository."""
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def running(root, tmp_path_factory):
    in_repository(root, "net", "1", net(0).state_dict())
    in_repository(root, "net", "2", net(1).state_dict())
    with stores(tmp_path_factory.mktemp("store")) as start:
        store = start("--remote", f"file://{root}")
        (store.folder / FILE_NAME).write_text(json.dumps(SLOW_DISK._asdict()))
        yield store


@pytest.fixture
def store(running, monkeypatch):
    """The process's default client talks to it, and is closed afterwards."""
    with default_client_of(running.folder, monkeypatch):
        yield running


@pytest.fixture
def seen(running):
    with running.client() as client:
        seen = Seen(client)
        until(lambda: seen.references == 0, "earlier tests' references return")
        yield seen
        until(lambda: seen.references == 0, "the references return")
