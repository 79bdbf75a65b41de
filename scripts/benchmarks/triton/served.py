"""A stock Triton with one of our models, and the traffic that benchmarks send it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from rrl.space import ConfigurationSpace
from scripts.serving.client_log import Requests
from scripts.serving.processes import ended_well, started
from scripts.triton_server.repository import ModelSpec, write_repository
from scripts.triton_server.running import running
from serving_adapter.load.arrivals import CountTrace, TimestampTrace, Trace, read_trace
from serving_adapter.target import OpenInferenceTarget

# What Triton does where config.pbtxt says nothing: one instance, no batching. Torch takes a thread a core.
TRITONS_DEFAULT = {"instances": 1, "intra_op_threads": 2, "max_batch_size": 1, "max_queue_delay_us": 0}
KNOBS = "instances=1:4,intra_op_threads=1,2,max_batch_size=1,2,4,8,max_queue_delay_us=0,2000"
SMALL_KNOBS = "instances=1:2,intra_op_threads=1,2,max_batch_size=1,8"
LIGHT_MODEL = "burn"  # needs no torch, so that Triton reloads it in a moment: for a first look
OPTIONS = {LIGHT_MODEL: {"rounds": 5, "rounds_per_item": 10}}  # larger batches pay, but take longer
MINUTES_A_DAY = 1440
COLD_S = 3.0  # of a window after a change, left out: requests take longer at first (`envs.settling`)
BURST = 200  # requests sent at once to see how fast a configuration serves them


@dataclass(frozen=True)
class Triton:
    """One model of a running Triton, in its default configuration at first."""

    target: OpenInferenceTarget
    address: str
    metrics_url: str
    model: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """How `rrl-tune` is told of it."""
        return ("--model", self.model, "--metrics-url", self.metrics_url)


@contextlib.contextmanager
def triton(model: str) -> Iterator[Triton]:
    """A server with this model alone."""
    with tempfile.TemporaryDirectory(prefix="rrl-bench-") as folder:
        spec = ModelSpec(model, OPTIONS.get(model, {}), TRITONS_DEFAULT)
        with running(write_repository(Path(folder), {model: spec})) as server:
            target = OpenInferenceTarget(server.address, model, server.metrics_url)
            target.connect()
            try:
                yield Triton(target, server.address, server.metrics_url, model)
            finally:
                target.close()


@dataclass(frozen=True)
class Traffic:
    """Arrivals that the same seed repeats exactly."""

    arrivals: str  # poisson, wiki, a trace FILE.csv, ...
    rate_per_s: float
    seed: int
    day_s: float = 3600.0  # how long a day of `wiki`, or of a trace of minutes, takes
    offset_share: float = 0.0  # of a trace: where to start

    @property
    def name(self) -> str:
        return Path(self.arrivals).stem

    def arguments(self) -> list[object]:
        """As `rrl-load` takes them."""
        arguments: list[object] = ["--arrivals", self.arrivals, "--rate", self.rate_per_s]
        arguments += ["--seed", self.seed]
        if self.arrivals == "wiki":
            arguments += ["--day-s", self.day_s]
        trace = self._trace()
        if self._speed_up(trace) != 1:
            arguments += ["--speed-up", self._speed_up(trace)]
        if trace is not None and self.offset_share:
            arguments += ["--offset-s", self.offset_share * trace.duration_s]
        return arguments

    def lasts_s(self) -> float:
        """How long the arrivals go on."""
        trace = self._trace()
        if isinstance(trace, TimestampTrace):
            return trace.at_rate(self.rate_per_s).duration_s
        return float("inf") if trace is None else trace.duration_s / self._speed_up(trace)

    def _trace(self) -> Trace | None:
        return read_trace(Path(self.arrivals)) if self.arrivals.endswith(".csv") else None

    def _speed_up(self, trace: Trace | None) -> float:
        """Of a trace of minutes, such that a day takes `day_s`."""
        minutes = isinstance(trace, CountTrace) and trace.bin_s == 60
        return 60 * MINUTES_A_DAY / self.day_s if minutes else 1.0


@contextlib.contextmanager
def load(
    server: Triton, traffic: Traffic, folder: Path, duration_s: float = 0
) -> Iterator[subprocess.Popen[str]]:
    """`rrl-load`, from its first request on; `Requests.read(folder)` afterwards."""
    arguments = [*_common(server, folder), *traffic.arguments(), "--duration-s", duration_s, "--requests"]
    with started("serving_adapter.load.command_line", *arguments) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("sending"):
            raise RuntimeError(f"rrl-load did not start: {line.strip() or 'it said nothing'}")
        yield process


def requests_of(server: Triton, traffic: Traffic, folder: Path, duration_s: float) -> Requests:
    """What the client saw of so many seconds of this traffic."""
    with load(server, traffic, folder, duration_s) as process:
        ended_well(process, duration_s + 120)
    return Requests.read(folder)


def send_lag_p99_ms(folder: Path) -> float:
    """How late the load that wrote to this folder sent its requests."""
    return float(json.loads((folder / "load.json").read_text(encoding="utf-8"))["send_lag_p99_ms"])


def seen_in_turns(
    server: Triton,
    space: ConfigurationSpace,
    numbers: Sequence[int],
    traffics: Sequence[Traffic],
    folder: Path,
    window_s: float,
    cold_s: float,
) -> dict[int, list[Requests]]:
    """What the client saw of each configuration in each round, without the first `cold_s` of each window.

    A round has the same traffic for all, and an order of its own. What was in force before affects a window,
    and must not be the same each time.
    """
    seen: dict[int, list[Requests]] = {number: [] for number in numbers}
    for k, traffic in enumerate(traffics):
        for number in np.random.default_rng(traffic.seed).permutation(numbers).tolist():
            server.target.apply(space.configuration(number))
            requests = requests_of(server, traffic, folder / f"{k}-{number}", window_s)
            seen[number].append(requests.after(cold_s))
    return seen


def capacity_per_s(server: Triton, bursts: int = 3) -> float:
    """Requests per second that the present configuration serves of a burst; the median of some."""
    at_once = ("--rate", 20 * BURST, "--duration-s", 1 / 20)
    rates = []
    with tempfile.TemporaryDirectory(prefix="rrl-bench-") as folder:
        arguments = [*_common(server, Path(folder)), *at_once]
        for _ in range(1 + bursts):  # the first one warms up
            with started("serving_adapter.load.command_line", *arguments) as burst:
                burst.communicate(timeout=120)
            if burst.returncode != 0:
                raise RuntimeError(f"rrl-load ended with {burst.returncode}: {server.model} does not answer")
            rates.append(json.loads((Path(folder) / "load.json").read_text())["achieved_rate_per_s"])
    return float(median(rates[1:]))


def _common(server: Triton, folder: Path) -> list[object]:
    return ["--target", server.address, "--model", server.model, "--out", folder]
