"""`rrl-store serve` as a subprocess, with a folder of its own."""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc

from serving_adapter import messages
from serving_adapter.model_store import Client
from serving_adapter.model_store.endpoint import TOKEN_VARIABLE, Endpoint, bearer
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.model_store.protocol.model_store_pb2_grpc import ModelStoreStub
from serving_adapter.model_store.sharing_rule import SharingCosts
from tests.support.waiting import PATIENCE_S

COMMAND = (sys.executable, "-m", "serving_adapter.model_store.command_line")
FEWER_LEASES = """
from functools import partial
from serving_adapter.model_store import command_line, daemon
daemon.Account = partial(daemon.Account, max_leases={})
command_line.main()
"""
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
            *flags: object,
            folder: Path | None = None,
            token: str | None = None,
            max_leases: int | None = None,
            **popen: Any,
        ) -> RunningStore:
            folder = folder or folders.enter_context(short_folder())
            cache = tmp_path / f"cache-{len(running)}"
            if folder.is_dir():
                COSTS.write(folder)
            flags = ("--host-bytes", "256M", "--disk-bytes", "256M", "--cache", cache, *flags)
            environment = os.environ | ({} if token is None else {TOKEN_VARIABLE: token})
            fewer = (sys.executable, "-c", FEWER_LEASES.format(max_leases))
            command = COMMAND if max_leases is None else fewer
            process = subprocess.Popen(
                [*command, "serve", "--folder", str(folder), *map(str, flags)],
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
