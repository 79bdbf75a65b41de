"""The options of `rrl-load`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import UseAppendAction

from serving_adapter.address import ServerAddress
from serving_adapter.load.arrivals import PROCESSES, RECORDED, Dynamic, Wiki
from serving_adapter.load.concurrencies import parse_concurrencies

MOST_CONNECTIONS = 10_000  # as many as rrl-serve takes


@dataclass(frozen=True)
class LoadOptions:
    """Sends requests to an inference server when an arrival process says, and reports the latencies."""

    target: str = "localhost:8500"
    """HOST:PORT of the server's gRPC port."""
    model: str | None = None
    """The model to call; may be left out where the server has only one."""
    arrivals: str = "poisson"
    """poisson, dynamic, wiki, bursts, a trace FILE.csv or FILE.jsonl, or recorded: when the requests of the
    recording that is --input-data came."""
    rate: float | None = None
    """Mean arrivals per second, to which a trace is scaled (default: 10; for recorded, as they came)."""
    duration_s: float = 60.0
    """How long to send; 0 is until SIGINT, SIGTERM or SIGHUP, or the trace's end."""
    concurrency: int | str | None = None
    """A closed loop in place of arrivals: so many requests are always under way. Several, as in 1,4,16 or
    1:8, are sent one after the other, each for --duration-s."""
    find_capacity: Literal["rate", "concurrency"] | None = None
    """Finds the highest rate, or concurrency, whose p95 stays within --slo-p95-ms. It goes by steps and
    bisection from --rate, or from 1; several windows judge a level, and fresh ones confirm the answer."""
    slo_p95_ms: float | None = None
    """The limit that --find-capacity keeps."""
    window_s: float = 5.0
    """--find-capacity: seconds of one window; longer where fewer than 100 requests would come in it."""
    sizes: str = "fixed:32"
    """Of variable dimensions: fixed:N, uniform:LOW:HIGH, lognormal:MEDIAN:SIGMA[:MAX], mix:SMALL:LARGE:SHARE
    or trace[:MAX]."""
    input_data: Path | None = None
    """Requests of your own in place of made-up values: perf_analyzer's input data FILE.json, FILE.npz with an
    array an input, or FILE.jsonl that rrl-serve --record wrote."""
    shape: UseAppendAction[tuple[str, ...]] = ()
    """INPUT:DIM,DIM for an input of variable shape, without the batch dimension; again for more inputs."""
    seed: int = 0
    """The same seed sends the same requests at the same moments."""
    out: Path | None = None
    """Directory for load.json and load.csv (a row a second)."""
    requests: bool = False
    """Writes a row a request too, in requests.csv there."""
    timeout_s: float = 30.0
    """A request without an answer after this counts as failed."""
    connections: int = 1
    """Connections to spread the requests over."""
    wait_s: float = 10.0
    """How long to wait for the server and its model to be ready."""
    tls_ca: Path | None = None
    """PEM file of the certificates to trust; without it the connection is not encrypted."""
    period_s: float = Dynamic.period_s
    """dynamic: length of a period."""
    day_s: float = Wiki.day_s
    """wiki: how long a day takes."""
    speed_up: float | None = None
    """A trace of counts, or recorded: how many times faster its clock runs."""
    offset_s: float = 0.0
    """A trace: where to start, on its own clock."""
    bin_s: float | None = None
    """A trace of counts and nothing else: how long each was counted (default: 0.01)."""
    time_unit: Literal["s", "ms", "us", "ns"] | None = None
    """A trace of moments: their unit, where neither the column's name nor the numbers tell."""

    def __post_init__(self) -> None:
        try:
            ServerAddress.parse(self.target)
        except ValueError as error:
            raise ValueError(f"--target {error}") from None
        self.shapes()
        if self.shape and self.input_data is not None:
            raise ValueError("--shape is of made-up values: leave it out beside --input-data")
        if self.arrivals == RECORDED and self.offset_s:
            raise ValueError("a recording is sent from its first request on: leave --offset-s away")
        if self.requests and self.out is None:
            raise ValueError("--requests writes into a directory: name it with --out")
        for flag in ("rate", "timeout_s", "connections"):
            value = getattr(self, flag)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"--{flag.replace('_', '-')} must be above 0, got {getattr(self, flag)}")
        if self.bin_s is not None and not 0 < self.bin_s < math.inf:
            raise ValueError(f"--bin-s must be above 0, got {self.bin_s}")
        if self.connections > MOST_CONNECTIONS:
            raise ValueError(f"--connections must be at most {MOST_CONNECTIONS}, got {self.connections}")
        self._check_loop()
        for flag in ("duration_s", "wait_s", "seed"):
            if not 0 <= getattr(self, flag) < math.inf:
                raise ValueError(f"--{flag.replace('_', '-')} must be at least 0, got {getattr(self, flag)}")

    def concurrencies(self) -> list[int]:
        """The concurrencies of the closed loop; none for the open one."""
        return parse_concurrencies(self.concurrency)

    def _check_loop(self) -> None:
        several = len(self.concurrencies()) > 1
        if several and not self.duration_s:
            raise ValueError("several concurrencies are sent one after the other: give --duration-s above 0")
        if not 0 < self.window_s < math.inf:
            raise ValueError(f"--window-s must be above 0, got {self.window_s}")
        if self.find_capacity is None:
            if self.slo_p95_ms is not None:
                raise ValueError("--slo-p95-ms is the limit of --find-capacity: give both")
            return
        if self.slo_p95_ms is None or not 0 < self.slo_p95_ms < math.inf:
            raise ValueError("--find-capacity needs a limit above 0: give --slo-p95-ms")
        if self.concurrency is not None:
            raise ValueError("--find-capacity chooses the load: leave --concurrency out")
        if self.find_capacity == "rate" and self.arrivals not in PROCESSES:
            raise ValueError(
                f"--find-capacity sends {', '.join(PROCESSES)} at rates of its own: leave the trace out"
            )

    def shapes(self) -> dict[str, list[int]]:
        """The shapes of inputs by name."""
        return shapes_of(self.shape)


def shapes_of(texts: Sequence[str]) -> dict[str, list[int]]:
    """`--shape INPUT:DIM,DIM`: the shapes of inputs by name."""
    shapes = {}
    for text in texts:
        name, _, sizes = text.rpartition(":")
        try:
            shapes[name] = [int(size) for size in sizes.split(",")]
        except ValueError:
            shapes[name] = [0]
        if not name or min(shapes[name]) < 1:
            raise ValueError(f"--shape must be INPUT:DIM,DIM with whole numbers from 1, got {text!r}")
    return shapes
