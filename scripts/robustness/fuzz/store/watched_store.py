"""A running `rrl-store` with a folder of its own, what can be known of it, and an honest client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from scripts.robustness.fuzz.store import honest_client
from scripts.robustness.fuzz.store.files import weights
from scripts.robustness.fuzz.store.grammar import MODEL
from scripts.robustness.fuzz.store.honest_client import HonestlySeen
from scripts.robustness.process_usage import HeldByProcesses, held
from scripts.serving.processes import started
from serving_adapter.model_store.endpoint import Endpoint
from serving_adapter.model_store.sharing_rule import SharingCosts

HOST_BYTES = 64 << 20
CLIENT_QUOTA_BYTES = 40 << 20  # so that the attackers leave room for others
COSTS = SharingCosts(overhead_s=1e-5, disk_bytes_per_s=1e9, open_s=1e-6)  # nothing has to be measured
MODELS_FILES = re.compile(r"memfd:rrl-")  # they come and go with the models
# gRPC itself tells of an answer whose client has just gone: some of the calls give up.
_NO_COMPLAINT = "ExecuteBatchError"
_COMPLAINT = re.compile(r"^(\w+(\.\w+)*(Error|Exception)\b|.*RuntimeWarning|.*was never |Fatal )")


class WatchedStore:
    """What the parts of a fuzz run know of the store."""

    def __init__(self, folder: Path, sockets: Path, process: subprocess.Popen[str]) -> None:
        self.folder, self.endpoint = folder, Endpoint(sockets)
        self._process = psutil.Process(process.pid)
        self._log, self._lines_told = folder / "log", 0

    def is_alive(self) -> bool:
        return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE

    def held(self) -> HeldByProcesses:
        """Without the descriptors of the models."""
        everything = held([self._process])
        return everything._replace(descriptors=everything.descriptors - len(self.files_of_models()))

    def files_of_models(self) -> list[str]:
        """The memory files of models and layouts that it has open."""
        found = []
        folder = Path(f"/proc/{self._process.pid}/fd")
        for name in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(folder / name))
        return [target for target in found if MODELS_FILES.search(target)]

    def new_complaints(self) -> Iterator[str]:
        """Errors in its log since this was last asked."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[self._lines_told :]
        self._lines_told += len(lines)
        yield from (line for line in lines if _COMPLAINT.match(line) and _NO_COMPLAINT not in line)


@contextlib.contextmanager
def watched_store() -> Iterator[WatchedStore]:
    """Starts a store with a repository of one model; ends it afterwards."""
    with tempfile.TemporaryDirectory(prefix="rrl-fuzz-") as name:
        folder = Path(name)
        sockets, repository = folder / "s", folder / "repository"
        model = repository / MODEL / "1" / "model.safetensors"
        model.parent.mkdir(parents=True)
        model.write_bytes(weights(100))
        sockets.mkdir(mode=0o700)
        COSTS.write(sockets)
        flags: tuple[Any, ...] = ("--folder", sockets, "--cache", folder / "cache", "--disk-bytes", "64M")
        flags = (*flags, "--host-bytes", HOST_BYTES, "--client-quota", CLIENT_QUOTA_BYTES)
        flags = (*flags, "--remote", repository.as_uri())
        module = "serving_adapter.model_store.command_line"
        with (folder / "log").open("w") as log, started(module, "serve", *flags, log=log) as process:
            assert process.stdout is not None
            if "model store on" not in process.stdout.readline():
                raise RuntimeError(f"the store did not start: {(folder / 'log').read_text()[-2000:]}")
            yield WatchedStore(folder, sockets, process)


class HonestClient:
    """The process of an honest client of the store, which begins when this is made."""

    def __init__(self, store: WatchedStore) -> None:
        path = store.folder / "honest.safetensors"
        path.write_bytes(weights(honest_client.FILLER))
        command = (sys.executable, "-m", honest_client.__name__, str(store.endpoint.folder), str(path))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != honest_client.READY:
            raise RuntimeError("the honest client did not start")

    def end(self) -> HonestlySeen:
        """Lets it go, and returns what it saw."""
        told, _ = self._process.communicate()
        if not told:
            return HonestlySeen(faults=[f"the honest client ended with code {self._process.returncode}"])
        return HonestlySeen(**json.loads(told))

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()
