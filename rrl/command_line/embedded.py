"""The embedded server and load: what `rrl-tune` tunes where no target is given.

Both are processes in sessions of their own, so that Ctrl-C reaches the tuner alone. The tuner ends the load
first, then the server.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rrl.journal import Record
from rrl.tuning.listener import Listener
from rrl.tuning.stop import Stopped
from serving_adapter import own_process

SERVER_MODULE = "serving_adapter.server.command_line"
LOAD_MODULE = "serving_adapter.load.command_line"
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 40.0
# The default load is this share of the rate at which the start serves a burst. The start only just bears it:
# load and tuner use the same cores, so it serves a steady load more slowly than a burst.
DEFAULT_UTILISATION = 0.85
BURST_REQUESTS = 200  # They are sent at once to see how fast the start serves them.

_READY = re.compile(r"^serving .* on (\S+:\d+), metrics on (\S+)$", re.MULTILINE)
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class EmbeddedFailed(Exception):
    """The embedded server or load did not start, or broke. The text says where its log is."""


class LoadEnded(Stopped):
    """The embedded load's trace has come to its end."""


@dataclass(frozen=True)
class EmbeddedSettings:
    model: str = "minilm"
    rate_per_s: float | None = None  # None: `DEFAULT_UTILISATION` of what the start can serve.
    arrivals: str = "poisson"
    sizes: str = "fixed:32"
    seed: int = 0


class Embedded:
    """`rrl-serve` and `rrl-load` as subprocesses. Their logs and the load's report go to `folder`."""

    def __init__(self, folder: Path, settings: EmbeddedSettings) -> None:
        self.folder = folder
        self.settings = settings
        self.address = ""
        self.rate_per_s = math.nan
        self._server: subprocess.Popen[bytes] | None = None
        self._load: subprocess.Popen[bytes] | None = None

    def start_server(self, sleep: Callable[[float], Any] = time.sleep) -> str:
        """Starts the server and returns its address once it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "server.log"
        arguments = ["--model", self.settings.model, "--port", "0", "--metrics-port", "0"]
        log.write_bytes(b"")
        self._server = _spawn(SERVER_MODULE, arguments, log)
        end_s = time.monotonic() + START_TIMEOUT_S
        while (ready := _READY.search(log.read_text(errors="replace"))) is None:
            status = self._server.poll()
            if status is not None or time.monotonic() > end_s:
                text = f"the embedded server did not start: {_last_line(log)} (see {log})"
                raise ValueError(text) if status == 2 else EmbeddedFailed(text)
            sleep(0.05)
        self.address = ready.group(1)
        return self.address

    def start_load(self) -> None:
        """Starts the load, at the rate given or at one that the server's start only just bears."""
        given_per_s = self.settings.rate_per_s
        self.rate_per_s = given_per_s or round(DEFAULT_UTILISATION * self._capacity_per_s(), 1)
        until_ended = ["--rate", str(self.rate_per_s), "--duration-s", "0"]
        arguments = self._load_arguments([*until_ended, "--arrivals", self.settings.arrivals], self.folder)
        self._load = _spawn(LOAD_MODULE, arguments, self.folder / "load.log")

    def check(self) -> None:
        """LoadEnded if the load's trace is over, EmbeddedFailed if the load broke."""
        status = None if self._load is None else self._load.poll()
        if status == 0:
            raise LoadEnded("the load's trace is over, and the run with it")
        if status is not None:
            log = self.folder / "load.log"
            raise EmbeddedFailed(f"the embedded load broke: {_last_line(log)} (see {log})")

    def close(self) -> None:
        for process in (self._load, self._server):
            _end(process)
        self._load = self._server = None

    def end_load(self) -> int | None:
        """Ends the load. Returns how many of its requests failed by the clients' count, if they tell."""
        _end(self._load)
        self._load = None
        try:
            report = json.loads((self.folder / "load.json").read_text(encoding="utf-8"))
            return sum(int(n) for n in report["failed"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            return None

    def _capacity_per_s(self) -> float:
        """Requests per second that the server serves of a burst, in its present configuration."""
        folder = self.folder / "burst"
        at_once = ["--rate", str(20 * BURST_REQUESTS), "--duration-s", "0.05", "--timeout-s", "20"]
        process = _spawn(LOAD_MODULE, self._load_arguments(at_once, folder), self.folder / "load.log")
        try:
            process.wait(START_TIMEOUT_S)
            report = json.loads((folder / "load.json").read_text(encoding="utf-8"))
            return max(float(report["achieved_rate_per_s"]), 0.5)
        except (OSError, ValueError, KeyError, TypeError, subprocess.TimeoutExpired):
            _end(process)
            raise EmbeddedFailed(
                f"the embedded load cannot measure the server (see {self.folder / 'load.log'}); give --rate"
            ) from None

    def _load_arguments(self, arguments: list[str], folder: Path) -> list[str]:
        settings = self.settings
        common = ["--target", self.address, "--sizes", settings.sizes, "--seed", str(settings.seed)]
        return [*common, *arguments, "--out", str(folder)]


class LoadWatch(Listener):
    """Ends the run with the embedded load."""

    def __init__(self, embedded: Embedded, view: Listener) -> None:
        self._embedded, self._view = embedded, view

    def measured(self, record: Record) -> None:
        try:
            self._embedded.check()
        except LoadEnded as ended:
            self._view.notice(str(ended))
            raise


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _spawn(module: str, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as file:
        return subprocess.Popen(
            own_process.command(module, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            env={"OMP_WAIT_POLICY": "PASSIVE"} | dict(os.environ),
        )


# Loaded before any thread starts, as it is used after a fork.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """A killed tuner takes its server and load with it."""
    if _libc is not None:
        _libc.prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def _end(process: subprocess.Popen[bytes] | None) -> None:
    if process is None or process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
