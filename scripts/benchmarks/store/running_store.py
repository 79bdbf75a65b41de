"""A model store for a benchmark, with sockets and a cache of its own, which ends with it."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.serving.processes import started
from serving_adapter.model_store.clients.client import Client
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.errors import NoRoom, UnknownModel
from serving_adapter.model_store.protocol import model_store_pb2 as pb

PATIENCE_S = 120.0
QUIET_S = 0.4  # more than the store waits before it puts pages together, and than a part of them takes


@dataclass(frozen=True)
class RunningStore:
    endpoint: Endpoint
    pid: int

    def client(self) -> Client:
        return Client(self.endpoint, starts_store=False)

    def stats(self, client: Client | None = None) -> Any:
        """What `rrl-store stats` shows, asked by this client or by a new one."""
        with self._asking(client) as asking:
            return asking.call("Stats", pb.Empty())

    def tier(self, name: str, client: Client | None = None) -> Any:
        return next(tier for tier in self.stats(client).tiers if tier.tier == name)

    @contextlib.contextmanager
    def _asking(self, client: Client | None) -> Iterator[Client]:
        if client is not None:
            yield client
        else:
            with self.client() as own:
                yield own

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def evict_all(self, client: Client | None = None) -> None:
        """Evicts every model from every tier, once nobody (nor a write to disk) refers to it."""
        with self._asking(client) as asking:

            def evicted() -> bool:
                for model in asking.call("List", pb.Empty()).models:
                    try:
                        asking.call("Evict", pb.EvictRequest(address=model.address))
                    except (NoRoom, UnknownModel):  # in use, or gone with its last reference
                        continue
                return not asking.call("List", pb.Empty()).models

            wait_until(evicted, "every model is evicted")


@contextlib.contextmanager
def running_store(*flags: object, quiet: bool = True) -> Iterator[RunningStore]:
    """`rrl-store serve` with these flags; its cache is on the disk of the temporary files."""
    with (
        tempfile.TemporaryDirectory(prefix="rrl-") as folder,
        tempfile.TemporaryDirectory(prefix="rrl-cache-") as cache,
        started(
            "serving_adapter.model_store.command_line",
            *("serve", "--folder", folder, "--cache", cache, "--client-quota", "100%", *flags),
            quiet=quiet,
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("rrl-store did not start")
        yield RunningStore(Endpoint(Path(folder)), process.pid)


def huge_pages_settled() -> None:
    """Waits until the machine's memory files have had the same huge pages for a while."""
    seen, since_s = -1, time.monotonic()
    end_s = since_s + PATIENCE_S
    while time.monotonic() < min(end_s, since_s + QUIET_S):
        now = _huge_shared_bytes()
        if now != seen:
            seen, since_s = now, time.monotonic()
        time.sleep(0.02)


def _huge_shared_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("ShmemHugePages:"):
            return 1024 * int(line.split()[1])
    return 0


def wait_until(condition: Callable[[], bool], what: str, patience_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"it did not come about within {patience_s:g} s that {what}")
        time.sleep(0.02)
