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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rrl.command_line.child_process import ChildProcess
from rrl.records import Record
from rrl.tuning.listener import Listener
from rrl.tuning.stop import Stopped
from serving_adapter.answered_totals import FILE_NAME, read_totals
from serving_adapter.target import Reading, Target, TargetLost

SERVER_MODULE = "serving_adapter.server.command_line"
LOAD_MODULE = "serving_adapter.load.command_line"
START_TIMEOUT_S = 120.0
POLL_S = 0.05
# The default load is this share of the rate at which the start serves a burst. The start only just bears it:
# load and tuner use the same cores, so it serves a steady load more slowly than a burst.
DEFAULT_UTILISATION = 0.85
BURST_REQUESTS = 200  # They are sent at once to see how fast the start serves them.
WRONG_USE = 2  # the exit status of a command whose options cannot work

_READY = re.compile(r"^serving .* on (\S+:(\d+)), metrics on \S+:(\d+)/metrics$", re.MULTILINE)


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
    input_data: Path | None = None  # requests of the user's own
    target: str = ""  # a server that runs already; empty: one is started
    tls_ca: str | None = None  # of that server


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
        given_per_s = self.settings.rate_per_s
        self.rate_per_s = given_per_s or round(DEFAULT_UTILISATION * self._capacity_per_s(), 1)
        self._send(self.folder)

    def check(self) -> None:
        """TargetLost if the server or the load has died, EmbeddedFailed if the load cannot work at all."""
        if self.load.status == WRONG_USE and self.load.starts == 1:
            text = f"the embedded load broke: {self.load.last_line()} (see {self.load.log})"
            raise EmbeddedFailed(text)
        for process in self._dead():
            raise TargetLost(process.how_it_ended())

    def check_trace(self) -> None:
        """LoadEnded if the load's trace is over."""
        if self.load.status == 0:
            raise LoadEnded("the load's trace is over, and the run with it")

    def revive(self) -> None:
        """Starts again what has died, the server first. TargetLost while it has to wait, or if it fails.

        A load begins anew with its first request: its report and its rows go to a folder of their own.
        """
        for process in self._dead():
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
        end_s = time.monotonic() + START_TIMEOUT_S
        while (ready := _READY.search(server.log.read_bytes()[said:].decode(errors="replace"))) is None:
            status = server.status
            if status is not None or time.monotonic() > end_s:
                text = f"the embedded server did not start: {server.last_line()} (see {server.log})"
                if status is None:
                    server.kill()
                raise ValueError(text) if status == WRONG_USE else EmbeddedFailed(text)
            self._sleep(POLL_S)
        self.address, *ports = ready.groups()
        self.ports = (ports[0], ports[1])

    def _send(self, folder: Path) -> None:
        self.load_folder = folder
        until_ended = ["--rate", str(self.rate_per_s), "--duration-s", "0"]
        self.load.start(self._load_arguments([*until_ended, "--arrivals", self.settings.arrivals], folder))

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
        if settings.tls_ca is not None:
            common += ["--tls-ca", settings.tls_ca]
        return [*common, *arguments, "--out", str(folder)]


class EmbeddedTarget(Target):
    """A server with an embedded load. It counts as lost without that, and connecting revives what is ours."""

    def __init__(
        self, embedded: Embedded, metrics_url: str | None = None, control_key: str | None = None
    ) -> None:
        settings = embedded.settings
        model = settings.model if settings.target else None
        super().__init__(embedded.address, model, metrics_url, control_key, settings.tls_ca)
        self._embedded = embedded

    def connect(self, control: bool = True, counters: bool = True) -> None:
        self._embedded.revive()
        super().connect(control, counters)

    def read(self) -> Reading:
        self._embedded.check()
        reading = super().read()
        return replace(reading, clients=read_totals(self._embedded.load_folder / FILE_NAME))

    def glance(self) -> Reading:
        self._embedded.check()
        return super().glance()


class LoadWatch(Listener):
    """Ends the run with the embedded load, and shows what is started again."""

    def __init__(self, embedded: Embedded, view: Listener) -> None:
        self._embedded, self._view = embedded, view
        embedded.notice = view.notice

    def measured(self, record: Record) -> None:
        try:
            self._embedded.check_trace()
        except LoadEnded as ended:
            self._view.notice(str(ended))
            raise
