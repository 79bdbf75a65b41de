"""A store in the test's own process: its accounts, what it opened, and when it reads and writes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from serving_adapter.model_store.opening.account import Account
from serving_adapter.model_store.opening.store import ModelStore, Opened
from serving_adapter.model_store.tiers.host_memory import Weights, tensor_bytes
from serving_adapter.model_store.tiers.remote import Remote
from serving_adapter.model_store.tiers.tier import Address
from tests.support.waiting import PATIENCE_S

PLENTY = 1 << 30


def address(name: str, version: str = "1") -> Address:
    return Address("safetensors", name, version)


def account(quota_bytes: int = PLENTY, **limits: Any) -> Account:
    return Account(quota_bytes, **limits)


def value_of(opened: Opened) -> int:
    """The one value that a model of `pages` is filled with."""
    assert isinstance(opened.model, Weights)
    ((_, data),) = tensor_bytes(opened.model)
    (value,) = set(bytes(data))
    return value


def counters(store: ModelStore) -> dict[str, tuple[int, int]]:
    """Hits and misses by tier."""
    counted = {tier.name: (tier.hits, tier.misses) for tier in store.tiers}
    return counted | {"remote": (store.repositories.hits, store.repositories.misses)}


class Gated(Remote):
    """A repository that gives nothing before it is told to, and counts how often it was asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.gate = threading.Event()
        self.opened: list[str] = []

    def open(self, address: Address) -> Any:
        self.opened.append(address.name)
        assert len(self.opened) < 100, "asked for ever"
        assert self.gate.wait(PATIENCE_S)
        return super().open(address)


def hold_writing(store: ModelStore, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    write = store.disk.write

    def held(*arguments):
        assert gate.wait(PATIENCE_S)
        return write(*arguments)

    monkeypatch.setattr(store.disk, "write", held)
