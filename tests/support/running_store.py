"""Stores to test: `rrl-store serve` as a subprocess with a folder of its own, or in the test's process."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import torch
from safetensors.torch import save_file

from serving_adapter import messages
from serving_adapter.model_store import Client
from serving_adapter.model_store.account import Account
from serving_adapter.model_store.endpoint import TOKEN_VARIABLE, Endpoint, bearer
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.protocol.model_store_pb2_grpc import ModelStoreStub
from serving_adapter.model_store.sharing_rule import SharingCosts
from serving_adapter.model_store.store import ModelStore, Opened
from serving_adapter.model_store.tiers.host_memory import Weights, tensor_bytes
from serving_adapter.model_store.tiers.remote import Remote
from serving_adapter.model_store.tiers.tier import Address
from tests.support.waiting import PATIENCE_S

COMMAND = (sys.executable, "-m", "serving_adapter.model_store.command_line")
PLENTY = 1 << 30
PAGE = mmap.PAGESIZE
COSTS = SharingCosts(overhead_s=1e-5, disk_bytes_per_s=1e9, open_s=1e-6)  # so that sharing pays from 11 kB


class RunningStore:
    """A running `rrl-store serve`."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, cache: Path) -> None:
        self.process, self.folder, self.cache = process, folder, cache
        self.endpoint = Endpoint(folder)

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self, **settings: Any) -> Client:
        return Client(self.endpoint, **({"starts_store": False} | settings))

    def stub(self) -> contextlib.AbstractContextManager[ModelStoreStub]:
        return stub_of(self.endpoint)

    def raw(self, first: dict[str, Any] | None = None) -> socket.socket:
        """A connection to the descriptors' socket that says only what it is told to."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.connect(str(self.endpoint.descriptors))  # without a timeout: it waits for room in the backlog
        sock.settimeout(PATIENCE_S)
        if first is not None:
            with contextlib.suppress(BrokenPipeError):  # it may have been refused before it said anything
                messages.send(sock, first)
        return sock

    def session(self) -> tuple[socket.socket, str]:
        sock = self.raw()
        answer = messages.receive(sock)
        assert answer is not None
        return sock, answer["session"]

    def descriptors(self) -> list[str]:
        """What the store's process has open."""
        targets = []
        for fd in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                targets.append(os.readlink(f"/proc/{self.pid}/fd/{fd}"))
        return sorted(targets)

    def memory_files(self) -> int:
        return sum("memfd:rrl-weights" in target for target in self.descriptors())

    def stop(self, signum: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signum)
        return self.process.wait(30)


class Seen:
    """What one client sees of a store's counters."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def stats(self) -> pb.StatsReply:
        return self.client.call("Stats", pb.Empty())

    def tier(self, name: str = "host") -> pb.TierStats:
        return next(tier for tier in self.stats().tiers if tier.tier == name)

    def models(self) -> list[pb.Model]:
        return list(self.client.call("List", pb.Empty()).models)

    @property
    def references(self) -> int:
        return self.stats().references

    @property
    def has_written(self) -> bool:
        """Whether a model is on disk and none is being written, which holds a reference of its own."""
        models = self.models()
        is_on_disk = any("disk" in model.tiers for model in models)
        return is_on_disk and sum(model.references for model in models) == self.references


@contextlib.contextmanager
def stub_of(endpoint: Endpoint, token: str | None = None) -> Iterator[ModelStoreStub]:
    with grpc.insecure_channel(f"unix:{endpoint.rpc}") as channel:
        stub: Any = ModelStoreStub(channel)
        stub.metadata = bearer(token)
        yield stub


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets; pytest's are not."""
    folder = Path(tempfile.mkdtemp(prefix="rrl-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def stores(tmp_path: Path) -> Iterator[Callable[..., RunningStore]]:
    """Starts stores with the given flags; all that are still there are ended afterwards."""
    running: list[RunningStore] = []
    with contextlib.ExitStack() as folders:

        def start(
            *flags: object, folder: Path | None = None, token: str | None = None, **popen: Any
        ) -> RunningStore:
            folder = folder or folders.enter_context(short_folder())
            cache = tmp_path / f"cache-{len(running)}"
            if folder.is_dir():
                COSTS.write(folder)
            flags = ("--host-bytes", "256M", "--disk-bytes", "256M", "--cache", cache, *flags)
            environment = os.environ | ({} if token is None else {TOKEN_VARIABLE: token})
            process = subprocess.Popen(
                [*COMMAND, "serve", "--folder", str(folder), *map(str, flags)],
                env=environment, stdout=subprocess.PIPE, text=True, **popen,
            )  # fmt: skip
            running.append(RunningStore(process, folder, cache))
            assert process.stdout is not None
            assert "model store on" in process.stdout.readline()
            return running[-1]

        yield start
        for store in running:
            store.stop(signal.SIGKILL)
            if store.process.stdout is not None:
                store.process.stdout.close()
            if store.process.stderr is not None:
                store.process.stderr.close()


def rrl_store(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs the command to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        env=os.environ | {"COLUMNS": "200"} | variables,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@contextlib.contextmanager
def script(text: str, *arguments: object, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Another process of Python with its input and output piped; it is gone afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-c", text, *map(str, arguments)],
        env=os.environ | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


# --- within the test's own process -----------------------------------------------------------------


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


# --- models ----------------------------------------------------------------------------------------


def some_weights(seed: int = 0, layers: int = 3, width: int = 128) -> dict[str, torch.Tensor]:
    """Large tensors, small ones, a scalar and an empty one, of several types."""
    random = torch.Generator().manual_seed(seed)
    weights = {f"{i}.weight": torch.randn(width, width, generator=random) for i in range(layers)}
    weights |= {f"{i}.bias": torch.randn(width, generator=random) for i in range(layers)}
    weights["half"] = torch.randn(5, 3, generator=random).to(torch.bfloat16)
    weights["steps"] = torch.tensor(7)
    weights["empty"] = torch.empty(0, 3)
    return weights


def saved(weights: dict[str, torch.Tensor], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path)
    return path


def in_repository(root: Path, name: str, version: str, weights: dict[str, torch.Tensor]) -> Path:
    return saved(weights, root / name / version / "model.safetensors")


def with_header(path: Path, header: Any, data_bytes: int = 0) -> Path:
    """A file with the given header, and a hole for the tensors' bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + data_bytes)
    return path
