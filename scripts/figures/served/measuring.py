"""Latencies of configurations of a real `rrl-serve` under a Poisson load, a row each, in an order drawn anew.

A measurement is one interval as in the authors' script. It begins with an empty server, sends a fixed number
of requests at the moments of a Poisson process, and waits for every answer. In every round each
configuration meets each load once, in an order of its own. So a slow spell of the machine falls on all of
them alike. A round's requests come at the same moments for all configurations.

| a row's field | meaning |
|---|---|
| `latency_ms` | mean over all requests, as the client saw them; one without an answer counts its time-out |
| `server_ms`, `queue_ms`, `service_ms` | means of the profiler, over the answered requests |
| `network_ms` | the client's mean less the server's, over the answered requests |

Load generator and server share the cores.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from envs.profiler import measure
from rrl.measurement import Measurement
from scripts.figures.served.models import ModelUnderLoad
from scripts.kept_rows import KeptRows, Row
from scripts.serving.processes import serving
from serving_adapter.load.connection import open_channels, wait_for_model
from serving_adapter.load.generator import LoadGenerator, grpc_send
from serving_adapter.load.payloads import Payloads
from serving_adapter.load.report import RequestRow
from serving_adapter.target import OpenInferenceTarget

TIMEOUT_S = 20.0  # a request without an answer counts so much
WAIT_S = 30.0  # for the model to be ready
WARM_UP_ROUNDS = 2  # requests to each instance after a change
KEY = ("model", "configuration", "rate_per_s", "requests", "round")

Configuration = Mapping[str, int]


@dataclass(frozen=True)
class PoissonRequests:
    """So many requests of a Poisson process, and no more."""

    rate_per_s: float
    requests: int

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        yield np.cumsum(rng.exponential(1 / self.rate_per_s, self.requests))


@dataclass(frozen=True)
class Asked:
    """One measurement that is wanted."""

    model: ModelUnderLoad
    configuration: Configuration
    rate_per_s: float
    requests: int
    round: int

    @property
    def key(self) -> dict[str, Any]:
        return {
            "model": " ".join((self.model.name, *self.model.options, self.model.sizes_text)),
            "configuration": " ".join(
                f"{name}={value}" for name, value in sorted(self.configuration.items())
            ),
            "rate_per_s": self.rate_per_s,
            "requests": self.requests,
            "round": self.round,
        }


def rows_of(path: Path) -> KeptRows:
    """The rows of a file of measurements."""
    return KeptRows(path, KEY)


def in_rounds(
    model: ModelUnderLoad,
    configurations: Sequence[Configuration],
    rates_per_s: Sequence[float],
    requests: int,
    rounds: int,
) -> list[Asked]:
    """What to measure, every round in an order of its own."""
    asked = []
    for k in range(rounds):
        each = [
            Asked(model, configuration, rate_per_s, requests, k)
            for configuration in configurations
            for rate_per_s in rates_per_s
        ]
        order = np.random.default_rng([k, len(each)]).permutation(len(each))
        asked += [each[i] for i in order]
    return asked


def measured(path: Path, asked: Sequence[Asked]) -> list[Row]:
    """The rows of all that is asked for, in its order. What the file lacks is measured and added to it."""
    kept = rows_of(path)
    for model in dict.fromkeys(one.model.name for one in asked):
        missing = [one for one in asked if one.model.name == model and one.key not in kept]
        if missing:
            _measure(missing, kept)
    return [kept[one.key] for one in asked]


def _measure(missing: Sequence[Asked], kept: KeptRows) -> None:
    began_s = time.monotonic()
    with loaded_server(missing[0].model) as server:
        for done, one in enumerate(missing, 1):
            row = one.key | server.measured(one)
            kept.add(row)
            print(
                f"{done}/{len(missing)}, {time.monotonic() - began_s:.0f} s: {one.model.label}, "
                f"{row['configuration']}, {one.rate_per_s:g}/s: {row['latency_ms']:.1f} ms",
                flush=True,
            )


class LoadedServer:
    """A server of one model, and a client that sends it requests."""

    def __init__(self, target: OpenInferenceTarget, model: ModelUnderLoad) -> None:
        self._target, self._model = target, model
        self._runner = asyncio.Runner()
        self._made: Payloads | None = None

    def close(self) -> None:
        self._runner.close()

    def measured(self, one: Asked) -> dict[str, Any]:
        """Everything of a row but its key."""
        self.apply(one.configuration)
        before = self._target.read()
        rows = self._runner.run(self._sent(one))
        return _figures(rows, measure(before, self._target.read()))

    def apply(self, configuration: Configuration) -> None:
        """Puts a configuration in force and warms it up. Returns with an empty server."""
        self._target.apply(configuration)
        self._runner.run(self._warmed(configuration.get("instances", 1)))

    def durations_ms(self, requests: int, seed: int) -> list[float]:
        """How long requests take one after another, each sent when the one before is answered."""
        return self._runner.run(self._one_by_one(requests, seed))

    async def _warmed(self, instances: int) -> None:
        """Keeps every instance busy with a few requests of a typical size."""
        typical = int(np.median(self._model.sizes.sample(np.random.default_rng(0), 101)))
        async with self._channel() as channel:
            payloads, send = await self._payloads(channel), grpc_send([channel], WAIT_S)
            for _ in range(WARM_UP_ROUNDS):
                await asyncio.gather(*(send(payloads.of_size(typical)) for _ in range(instances)))

    async def _sent(self, one: Asked) -> list[RequestRow]:
        rows: list[RequestRow] = []
        async with self._channel() as channel:
            generator = LoadGenerator(
                grpc_send([channel], TIMEOUT_S),
                await self._payloads(channel),
                PoissonRequests(one.rate_per_s, one.requests),
                self._model.sizes,
                seed=one.round,
                on_request=rows.append,
            )
            await generator.run(asyncio.Event())
        return rows

    async def _one_by_one(self, requests: int, seed: int) -> list[float]:
        durations_ms = []
        async with self._channel() as channel:
            payloads, send = await self._payloads(channel), grpc_send([channel], TIMEOUT_S)
            for size in self._model.sizes.sample(np.random.default_rng(seed), requests).tolist():
                payload = payloads.of_size(size)
                began_s = time.perf_counter()
                await send(payload)
                durations_ms.append(1e3 * (time.perf_counter() - began_s))
        return durations_ms

    def _channel(self) -> grpc.aio.Channel:
        (channel,) = open_channels(self._target.address, 1, None)
        return channel

    async def _payloads(self, channel: grpc.aio.Channel) -> Payloads:
        """Made before the first request, so that making them delays none."""
        if self._made is None:
            signature = await wait_for_model(channel, self._target.address, self._target.model, WAIT_S)
            self._made = Payloads(signature, np.random.default_rng(0))
            self._made.prepare(self._model.sizes)
        return self._made


@contextmanager
def loaded_server(model: ModelUnderLoad) -> Iterator[LoadedServer]:
    """`rrl-serve` of the model, which ends with the block."""
    with serving(model.name, *model.server_arguments) as address:
        target = OpenInferenceTarget(address)
        target.connect()
        server = LoadedServer(target, model)
        try:
            yield server
        finally:
            server.close()
            target.close()


def with_fixed(model: ModelUnderLoad, **values: int) -> dict[str, int]:
    """A configuration of these values and of the model's fixed ones."""
    return {**model.fixed, **values}


def on_this_machine(model: ModelUnderLoad, cores: int) -> ModelUnderLoad:
    """The model with intra-op threads fixed at this many cores, where they are fixed."""
    if "intra_op_threads" not in model.fixed:
        return model
    return replace(model, fixed={**model.fixed, "intra_op_threads": cores})


def _figures(rows: Sequence[RequestRow], measurement: Measurement) -> dict[str, Any]:
    latencies_ms = np.array([row.latency_ms for row in rows])
    answered = np.array([row.status == "OK" for row in rows])
    answered_ms = float(latencies_ms[answered].mean()) if answered.any() else np.nan
    figures = {
        "latency_ms": float(latencies_ms.mean()),
        "p95_ms": float(np.percentile(latencies_ms, 95)),
        "server_ms": measurement.latency.mean_ms,
        "queue_ms": measurement.queue.mean_ms,
        "service_ms": measurement.service.mean_ms,
        "network_ms": answered_ms - measurement.latency.mean_ms,
        "cpu_utilisation": measurement.cpu_utilisation,
    }
    rounded = {name: round(value, 3) if np.isfinite(value) else None for name, value in figures.items()}
    return {**rounded, "failed": int((~answered).sum()), "at": round(time.time(), 1)}
