"""A running server of MiniLM and the model of two outputs, and what can be known of it from outside."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil

from scripts.robustness.fuzz.server import two_outputs
from scripts.robustness.fuzz.server.oracle import MINILM
from scripts.robustness.process_usage import HeldByProcesses, family, held
from scripts.serving.metrics_page import summed
from scripts.serving.processes import started

# gRPC itself tells of an answer whose client has just gone: some of the calls give up.
_NO_COMPLAINT = "ExecuteBatchError raised in core"
_COMPLAINT = re.compile(
    r"ERROR |CRITICAL |Fatal |Segmentation|Exception ignored|.*RuntimeWarning|.*was never "
)


class WatchedServer:
    """What the parts of a fuzz run know of the server."""

    def __init__(self, address: str, metrics_url: str, pid: int, folder: Path, control_key: str) -> None:
        self.address = address
        self.rest_url = _rest_url(folder / "log")
        self.control_key = control_key
        self._metrics_url = metrics_url
        self._front = psutil.Process(pid)
        self._callbacks, self._log = folder / "callbacks", folder / "log"
        self._callbacks_told = self._lines_told = 0

    def is_alive(self) -> bool:
        return self._front.is_running() and self._front.status() != psutil.STATUS_ZOMBIE

    def held(self) -> HeldByProcesses:
        return held(family(self._front.pid))

    def new_callbacks(self) -> Iterator[dict[str, Any]]:
        """Slow callbacks of its event loop since this was last asked."""
        lines = _lines(self._callbacks)[self._callbacks_told :]
        self._callbacks_told += len(lines)
        yield from map(json.loads, lines)

    def new_complaints(self) -> Iterator[str]:
        """Errors in its log since this was last asked."""
        lines = _lines(self._log)[self._lines_told :]
        self._lines_told += len(lines)
        yield from (line for line in lines if _COMPLAINT.match(line) and _NO_COMPLAINT not in line)

    def sum_of(self, series: str) -> int:
        """A series of its metrics page, over all models."""
        return summed(self._metrics_url, series)


def _rest_url(log: Path) -> str:
    told = re.search(r"over HTTP is at (http://[^/]+)/v2", log.read_text(encoding="utf-8"))
    if told is None:
        raise RuntimeError("the server has no door for HTTP")
    return told.group(1)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []


@contextlib.asynccontextmanager
async def watched_server() -> AsyncIterator[WatchedServer]:
    """Starts the server, its control behind a key; ends it afterwards."""
    with tempfile.TemporaryDirectory(prefix="rrl-fuzz-") as name:
        folder, key = Path(name), secrets.token_hex(8)
        key_file = folder / "key"
        key_file.touch(0o600)
        key_file.write_text(key, encoding="utf-8")
        models = ("--model", MINILM, "--model", two_outputs.REFERENCE)
        settings = ("--intra-op-threads", 1, "--max-batch-size", 8, "--control-key-file", key_file)
        ports = ("--port", 0, "--http-port", 0, "--metrics-port", 0)
        program = "scripts.robustness.fuzz.server.timed_server"
        command = (program, folder / "callbacks", *models, *settings, *ports)
        with (folder / "log").open("w") as log, started(*map(str, command), log=log) as process:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            match = re.search(r"on (\S+:\d+), metrics on (\S+)", line)
            if match is None:
                raise RuntimeError(f"the server did not start: {(folder / 'log').read_text()[-2000:]}")
            yield WatchedServer(match.group(1), match.group(2), process.pid, folder, key)
