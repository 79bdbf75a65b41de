"""rrl-serve with a store of its own, on one port for the whole run, started again after it was killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from scripts.robustness.chaos.checked_model import REFERENCE
from scripts.robustness.figures import CHECKOUT
from serving_adapter.model_store.endpoint import FOLDER_VARIABLE

RECOVERY_S = 3.0  # after the server serves again, in which connections are made anew
WORKER_TIMEOUT_S = 2.0
DRAIN_S = 20.0
START_PATIENCE_S = 120.0


class ChaosServer:
    """The server under chaos, its processes by role, and when it was away."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store_folder = folder / "store"
        self.store_folder.mkdir(mode=0o700)
        self.address = ""
        self.starts = 0
        self.outages_s: list[tuple[float, float]] = []  # of time.monotonic(), until it served again
        self._log = (folder / "server.log").open("a")
        self._process: subprocess.Popen[str]

    async def start(self) -> None:
        """Returns when it serves."""
        port = self.address.rpartition(":")[2] or "0"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "serving_adapter.server.command_line", "--model", REFERENCE),
                *("--port", port, "--metrics-port", "0", "--worker-timeout-s", str(WORKER_TIMEOUT_S)),
                *("--intra-op-threads", "1", "--instances", "2", "--max-batch-size", "4"),
                *("--parity-model", REFERENCE, "--parity-model", REFERENCE, "--drain-s", str(DRAIN_S)),
            ],
            cwd=CHECKOUT,
            env=os.environ | {FOLDER_VARIABLE: str(self.store_folder), "PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        reading = asyncio.to_thread(self._process.stdout.readline)
        line = await asyncio.wait_for(reading, START_PATIENCE_S)
        if " on " not in line:
            raise RuntimeError(f"rrl-serve did not start: {line!r}; see {self._log.name}")
        self.address = line.split(" on ")[1].split(",")[0]
        self.starts += 1

    @property
    def is_up(self) -> bool:
        return not self.outages_s or self.outages_s[-1][1] <= time.monotonic()

    def was_away(self, since_s: float, until_s: float) -> bool:
        """Whether it was killed, or connections not yet made anew, at some time in between."""
        return any(began < until_s and since_s < back + RECOVERY_S for began, back in self.outages_s)

    async def kill_and_start(self) -> None:
        began_s = time.monotonic()
        self.outages_s.append((began_s, float("inf")))
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        self._close_pipe()
        await self.start()
        self.outages_s[-1] = (began_s, time.monotonic())

    # --- its processes ---------------------------------------------------------------------------

    def process(self) -> psutil.Process:
        return psutil.Process(self._process.pid)

    def zygotes(self) -> list[psutil.Process]:
        return _children(self._process.pid)

    def workers(self) -> list[psutil.Process]:
        return [worker for zygote in self.zygotes() for worker in _children(zygote.pid)]

    def stores(self) -> list[psutil.Process]:
        """The store's processes, known by the folder that is theirs alone."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if str(self.store_folder) in process.cmdline() and "serve" in process.cmdline():
                    found.append(process)
        return found

    # --- the end ---------------------------------------------------------------------------------

    def end(self) -> tuple[int, int]:
        """Ends it in order; returns its exit status and how many of its processes are left then."""
        family = [*self.zygotes(), *self.workers()]
        for process in family:
            _signalled(process, signal.SIGCONT)
        self._process.terminate()
        try:
            status = self._process.wait(DRAIN_S + 20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        _, left = psutil.wait_procs(family, timeout=5)
        self._close_pipe()
        return status, len(left)

    def clean_up(self) -> None:
        """Whatever happened before: nothing of it runs on."""
        family = [*self.zygotes(), *self.workers()] if self._process.poll() is None else []
        self._process.kill()
        self._process.wait()
        for process in [*family, *self.stores()]:
            _signalled(process, signal.SIGKILL)
        self._close_pipe()
        self._log.close()

    def _close_pipe(self) -> None:
        assert self._process.stdout is not None
        self._process.stdout.close()


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children()
    except psutil.Error:
        return []


def _signalled(process: psutil.Process, signum: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(signum)
