"""The embedded server and load: what `rrl-tune` tunes where no target is given.

With --bench the server is the target, and the load alone is embedded.

Whichever of them dies is started again while the run waits for its target, as for any target that is away.
That interval has a gap, and teaches nothing. The tuner ends the load first, then the server.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rrl.command_line.embedded.child_process import ChildProcess
from rrl.command_line.embedded.embedded_settings import EmbeddedSettings
from rrl.tuning.stop import Stopped
from serving_adapter.target import TargetLost

SERVER_MODULE = "serving_adapter.server.command_line"
LOAD_MODULE = "serving_adapter.load.command_line"
START_TIMEOUT_S = 120.0
POLL_S = 0.05
# The default load is this share of the rate at which the start serves a burst. The start only just bears it:
# load and tuner use the same cores, so it serves a steady load more slowly than a burst.
DEFAULT_UTILISATION = 0.85
BURST_REQUESTS = 200  # They are sent at once to see how fast the start serves them.
WRONG_USE = 2  # the exit status of a command whose options cannot work

_SENDING = re.compile(r"^sending to ", re.MULTILINE)
_READY = re.compile(r"^serving .* on (\S+:(\d+)), metrics on \S+:(\d+)/metrics$", re.MULTILINE)


class EmbeddedFailed(Exception):
    """The embedded server or load did not start, or broke. The text says where its log is."""


class LoadEnded(Stopped):
    """The embedded load's trace has come to its end."""


class Embedded:
    """`rrl-serve` and `rrl-load` as subprocesses. Their logs and the load's report go to `folder`.

    With a `target` in the settings, that is served already, and `start_server` is not to be called.
    """

    def __init__(
        self,
        folder: Path,
        settings: EmbeddedSettings,
        sleep: Callable[[float], Any] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.settings = settings
        self.address = settings.target
        self.rate_per_s = math.nan
        self.notice: Callable[[str], None] = lambda text: None  # told of each restart
        self.server = ChildProcess("server", SERVER_MODULE, folder / "server.log", clock)
        self.load = ChildProcess("load", LOAD_MODULE, folder / "load.log", clock)
        self.load_folder = folder  # of the load that runs
        self.ports = ("0", "0")  # of the server and its metrics; those of the first start are kept
        self._sleep = sleep

    def start_server(self) -> str:
        """Starts the server and returns its address once it serves."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.server.log.write_bytes(b"")
        self._serve()
        return self.address

    def start_load(self) -> None:
        """Starts the load, at the rate given or at one that the server's start only just bears."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.settings.concurrency is not None:
            self._send(self.folder)
            return
        given_per_s = self.settings.rate_per_s
        self.rate_per_s = given_per_s or round(DEFAULT_UTILISATION * self._capacity_per_s(), 1)
        self._send(self.folder)

    def check(self) -> None:
        """TargetLost if the server or the load has died, EmbeddedFailed if the load cannot work at all."""
        if self.load.status == WRONG_USE and self.load.starts == 1:
            raise EmbeddedFailed(_broke(self.load))
        for process in self._dead():
            raise TargetLost(process.how_it_ended())

    def check_trace(self) -> None:
        """LoadEnded if the load's trace is over."""
        if self.load.status == 0:
            raise LoadEnded("the load's trace is over, and the run with it")

    def revive(self, load: bool = True) -> None:
        """Starts again what has died, the server first. TargetLost while it has to wait, or if it fails.

        Without the `load` where nothing is to be measured.
        A load begins anew with its first request: its report and its rows go to a folder of their own.
        """
        for process in self._dead():
            if process is self.load and not load:
                continue
            how = process.how_it_ended()
            if process.wait_left_s > 0:
                raise TargetLost(f"{how}, and starts again in {process.wait_left_s:.0f} s")
            self.notice(f"{how}; starting it again")
            try:
                if process is self.server:
                    self._serve()
                else:
                    self._send(self.folder / f"load-{self.load.starts + 1}")
            except (EmbeddedFailed, ValueError, OSError) as error:
                raise TargetLost(str(error)) from None

    def close(self) -> None:
        """Ends both in order; Ctrl-C meanwhile ends both at once."""
        try:
            self.load.end()
            self.server.end()
        finally:
            self.server.kill()

    def end_load(self) -> int | None:
        """Ends the load. Returns how many of its requests failed by the clients' count, if they tell.

        A load that was killed took its count with it.
        """
        self.load.end()
        if self.load.starts > 1:
            return None
        try:
            report = json.loads((self.folder / "load.json").read_text(encoding="utf-8"))
            return sum(int(n) for n in report["failed"].values())
        except (OSError, ValueError, KeyError, AttributeError):
            return None

    def _dead(self) -> list[ChildProcess]:
        """Those that have ended before their time; a load may end with its trace."""
        server = [self.server] if self.server.status is not None else []
        return server + ([self.load] if self.load.status not in (None, 0) else [])

    def _serve(self) -> None:
        """Starts the server and waits until it serves. What does not come up is ended."""
        server = self.server
        said = server.log.stat().st_size
        port, metrics_port = self.ports
        server.start(["--model", self.settings.model, "--port", port, "--metrics-port", metrics_port])
        ready = self._wait_for(server, _READY, said)
        if ready is None:
            text = f"the embedded server did not start: {server.last_line()} (see {server.log})"
            if (status := server.status) is None:
                server.kill()
            raise ValueError(text) if status == WRONG_USE else EmbeddedFailed(text)
        self.address, *ports = ready.groups()
        self.ports = (ports[0], ports[1])

    def _send(self, folder: Path) -> None:
        self.load_folder = folder
        settings = self.settings
        loop = ["--rate", str(self.rate_per_s), "--arrivals", settings.arrivals]
        if settings.concurrency is not None:
            loop = ["--concurrency", str(settings.concurrency)]
        said = self.load.log.stat().st_size if self.load.log.is_file() else 0
        self.load.start(self._load_arguments([*loop, "--duration-s", "0"], folder))
        self._wait_for(
            self.load, _SENDING, said
        )  # No interval begins before it. `check` tells if it has died.

    def _wait_for(self, process: ChildProcess, line: re.Pattern[str], after: int) -> re.Match[str] | None:
        """Waits for such a line behind what its log had; None if it ends before, or in vain."""
        end_s = time.monotonic() + START_TIMEOUT_S
        while (found := line.search(process.log.read_bytes()[after:].decode(errors="replace"))) is None:
            if process.status is not None or time.monotonic() > end_s:
                return None
            self._sleep(POLL_S)
        return found

    @property
    def load_in_words(self) -> str:
        """`at 80/s`, `with 4 requests at once`."""
        if self.settings.concurrency is not None:
            return f"with {self.settings.concurrency} requests at once"
        return f"at {self.rate_per_s:g}/s"

    def find_capacity(self, name: str, slo_p95_ms: float, window_s: float) -> dict[str, Any]:
        """What `rrl-load` finds that the present configuration bears at a p95 within the limit.

        It writes to a folder of this name. The embedded load must not run meanwhile.
        """
        folder = self.folder / name
        first_per_s = self.rate_per_s if math.isfinite(self.rate_per_s) else self._capacity_per_s() / 2
        arguments = ["--find-capacity", "rate", "--slo-p95-ms", f"{slo_p95_ms:g}"]
        arguments += ["--window-s", f"{window_s:g}"]
        arguments += ["--rate", f"{first_per_s:g}", "--arrivals", self.settings.arrivals]
        search = ChildProcess("search", LOAD_MODULE, self.load.log)
        search.start(self._load_arguments(arguments, folder))
        try:
            while search.status is None:
                self._sleep(POLL_S)
            if search.status == WRONG_USE:
                raise ValueError(f"the capacity cannot be searched: {search.last_line()}")
            found: dict[str, Any] = json.loads((folder / "capacity.json").read_text(encoding="utf-8"))
            return found
        except (OSError, json.JSONDecodeError):
            raise EmbeddedFailed(f"the search for the capacity broke (see {self.load.log})") from None
        finally:
            search.kill()

    def _capacity_per_s(self) -> float:
        """Requests per second that the server serves of a burst, in its present configuration."""
        folder = self.folder / "burst"
        at_once = ["--rate", str(20 * BURST_REQUESTS), "--duration-s", "0.05", "--timeout-s", "20"]
        burst = ChildProcess("burst", LOAD_MODULE, self.load.log)
        burst.start(self._load_arguments(at_once, folder))
        end_s = time.monotonic() + START_TIMEOUT_S
        try:
            while burst.status is None and time.monotonic() < end_s:
                self._sleep(POLL_S)
            if burst.status == WRONG_USE:
                raise EmbeddedFailed(_broke(burst))
            report = json.loads((folder / "load.json").read_text(encoding="utf-8"))
            return max(float(report["achieved_rate_per_s"]), 0.5)
        except (OSError, ValueError, KeyError, TypeError):
            raise EmbeddedFailed(
                f"the embedded load cannot measure the server (see {self.load.log}); give --rate"
            ) from None
        finally:
            burst.kill()  # nobody waits for its answers

    def _load_arguments(self, arguments: list[str], folder: Path) -> list[str]:
        settings = self.settings
        common = ["--target", self.address, "--sizes", settings.sizes, "--seed", str(settings.seed)]
        if settings.target:
            common += ["--model", settings.model]
        if settings.input_data is not None:
            common += ["--input-data", str(settings.input_data)]
        for shape in settings.shape:
            common += ["--shape", shape]
        if settings.time_unit is not None:
            common += ["--time-unit", settings.time_unit]
        if settings.tls_ca is not None:
            common += ["--tls-ca", settings.tls_ca]
        return [*common, *arguments, "--out", str(folder)]


def _broke(load: ChildProcess) -> str:
    """What a load said before it ended."""
    return f"the embedded load broke: {load.last_line()} (see {load.log})"
