"""`serf-model`: SERF's queueing model against the real server.

`rrl-serve` with MiniLM, 32 tokens a request and no batching. A configuration of n instances is
profiled and run in turns, P R P R P R P R P. There is a run at each of four shares of its capacity. So the
machine cannot drift for long between a profile and the run that it predicts.

- **P**: for about 8 s, 1, 2 ... n requests are kept in service and their mean service time is read. Half of
  the time another request always waits (warm). The other half, each n come at once after a pause (rested).
  The processor time that the front and the load take for a request is read, too.
- **R**: Poisson load, for longer the higher the share, as a busier queue forgets more slowly. The latency is
  the server's own, from a request's arrival to its answer, without the client's part.

Six models predict the mean latency of a run from the mean of the two profiles around it, at the rate that the
load really had:

| model | service times |
|---|---|
| M/D_interf/c and three simpler ones (SERF) | warm |
| start-up | rested where a request need not wait (`rrl.queueing.start_up`) |
| start-up, front's share | the same, with the front and the load on the cores (`rrl.queueing.front_share`) |

With `--apart` the front and the load run on the first core and the model on the others. Then nobody takes a
share of the model's cores.

| error | of the latency predicted from |
|---|---|
| raw | these profiles |
| adjusted | the same service times, scaled such that the predicted mean service time is the run's own |

The adjusted error is the queue's alone: what the machine's speed did meanwhile is taken out. It is no
prediction, since it needs the run. Errors have a sign: above zero the prediction is too long. Runs as short
as these miss the mean by 2 % through the chance of the arrivals alone (by simulation of such a server).

The peer is the paper's own error on its testbed: 2-4 % on average, 90th percentile under 10 % (SERF, SC 2016,
section V-B).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs.profile_load import ProfileLoad
from envs.profiler import measure
from rrl.measurement import Measurement
from rrl.queueing.interference import capacity_per_s
from scripts.benchmarks.tuner.serf_model.cases import (
    OURS,
    SERF,
    Case,
    LightProfile,
    MeasuredRun,
    outcome,
    summary,
)
from scripts.benchmarks.tuner.serf_model.recorded_runs import RecordedRuns
from scripts.serving.minilm_requests import TOKENS
from scripts.serving.placement import cpu_seconds, place, place_server, split_cores
from scripts.serving.processes import served, started
from serving_adapter.flags.parsing import fail, parse
from serving_adapter.resources import cores
from serving_adapter.target import OpenInferenceTarget

SECONDS_AT = {0.15: 0.6, 0.3: 0.85, 0.45: 1.1, 0.6: 1.45}  # share of the capacity -> multiple of `seconds`
INTRA_OP_THREADS = (1, 2)
PROFILE_S = 8.0  # of one profile, shared by the numbers of requests in service, warm and rested
WARM_UP_ROUNDS = 4  # requests one after another in each instance
FEWEST_ROUNDS = 5
PAUSE_S = 0.02  # about what an instance rests at these loads


@dataclass(frozen=True)
class Options:
    """SERF's model against the real server."""

    instances: int = 6
    """1 .. so many instances, each with 1 and 2 intra-op threads, as far as the model has cores."""
    seconds: float = 8.0
    """Of one measurement, on average over the four loads."""
    seed: int = 0
    """Of the arrivals."""
    apart: bool = False
    """The front and the load run on the first core, and the model on the others."""
    out: Path | None = None
    """File for a row a run (JSON lines). A benchmark that was interrupted goes on from it."""

    def __post_init__(self) -> None:
        if self.instances < 1 or self.seconds <= 0:
            raise ValueError("--instances must be at least 1 and --seconds positive")
        if self.apart:
            split_cores()  # refuses a machine of one core


class Site(NamedTuple):
    """The server under test, and which cores the model and the others may use."""

    target: OpenInferenceTarget
    address: str
    front_pid: int
    model_cores: int
    load_cores: Collection[int]
    is_apart: bool


class _Load(NamedTuple):
    share: float  # of the configuration's capacity
    seconds: float
    seed: int


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    began_s = time.monotonic()
    setting = {"seconds": options.seconds, "seed": options.seed, "apart": options.apart}
    try:
        rows = RecordedRuns.open(options.out, setting)
    except ValueError as error:
        fail(str(error))
    cases: list[Case] = []
    with _site(options) as site:
        print("instances threads  share   rate/s  measured  predicted      raw  adjusted  without the terms")
        for threads in (threads for threads in INTRA_OP_THREADS if threads <= site.model_cores):
            for instances in range(1, options.instances + 1):
                done = rows.of(instances, threads, len(SECONDS_AT))
                found = [Case.of(*row, site.model_cores) for row in done]
                cases += found or _in_turns(site, instances, threads, options, len(cases), rows)
    print(f"{time.monotonic() - began_s:.0f} s; errors over {len(cases)} cases:")
    print("\n".join(summary(cases)))
    return outcome(cases)


@contextmanager
def _site(options: Options) -> Iterator[Site]:
    with served("minilm") as server:
        target = OpenInferenceTarget(server.address)
        target.connect()
        everywhere = os.sched_getaffinity(0)
        try:
            if options.apart:
                front_cores, model_cores = split_cores()
                place_server(server.front_pid, front_cores, model_cores)
                place(os.getpid(), front_cores)
                yield Site(target, server.address, server.front_pid, len(model_cores), front_cores, True)
            else:
                yield Site(target, server.address, server.front_pid, cores(), everywhere, False)
        finally:
            place(os.getpid(), everywhere)
            target.close()


def _in_turns(
    site: Site, instances: int, threads: int, options: Options, seed: int, rows: RecordedRuns
) -> list[Case]:
    """One configuration: P R P R ... P, and a case for each R."""
    cases = []
    before = _profiled(site, instances, threads)
    for k, share in enumerate(SECONDS_AT):
        load = _Load(share, options.seconds * SECONDS_AT[share], options.seed + seed + k)
        ran = _ran(site, load, instances, threads, before)
        after = _profiled(site, instances, threads)
        rows.add(ran, before.between(after))
        cases.append(Case.of(ran, before.between(after), site.model_cores))
        print(_line(cases[-1]), flush=True)
        before = after
    return cases


def _profiled(site: Site, most_instances: int, threads: int) -> LightProfile:
    """With 1, 2 ... instances, warm and rested."""
    load = ProfileLoad(site.address, site.target.model, TOKENS)
    seconds = PROFILE_S / most_instances / 2
    front_s, load_s, requests = cpu_seconds(site.front_pid), time.process_time(), 0
    columns: list[tuple[float, float, float, float]] = []
    try:
        for n in range(1, most_instances + 1):
            site.target.apply({"instances": n, "intra_op_threads": threads, "max_batch_size": 1})
            warm_up = _measured(site, partial(load.drive, 2 * WARM_UP_ROUNDS * n, 2 * n))
            once_s = 1e-3 * warm_up.service.mean_ms
            rounds = max(FEWEST_ROUNDS, round(seconds / once_s))
            warm = _measured(site, partial(load.drive, n * rounds, 2 * n))
            rounds = max(FEWEST_ROUNDS, round(seconds / (once_s + PAUSE_S)))
            rested = _measured(site, partial(load.drive_rounds, rounds, n, PAUSE_S))
            columns.append(
                (_all_busy_s(warm, n), _per_s(warm), 1e-3 * rested.service.mean_ms, _per_s(rested))
            )
            requests += sum(part.completions for part in (warm_up, warm, rested))
    finally:
        load.close()
    cpu_s = (
        (cpu_seconds(site.front_pid) - front_s) / requests,
        (time.process_time() - load_s) / requests,
    )
    warm_s, warm_per_s, rested_s, rested_per_s = np.array(columns).T
    return LightProfile(warm_s, warm_per_s, rested_s, rested_per_s, () if site.is_apart else cpu_s)


def _measured(site: Site, drive: Callable[[], None]) -> Measurement:
    before = site.target.read()
    drive()
    return measure(before, site.target.read())


def _per_s(measurement: Measurement) -> float:
    return measurement.completions / measurement.duration_s


def _all_busy_s(measurement: Measurement, busy: int) -> float:
    """The mean service time of what started with all instances busy; of all, if nothing did."""
    rows = [row for row in measurement.telemetry if row.busy_instances == busy]
    if not rows:
        return 1e-3 * measurement.service.mean_ms
    return sum(row.total_s for row in rows) / sum(row.count for row in rows)


def _ran(site: Site, load: _Load, instances: int, threads: int, profile: LightProfile) -> MeasuredRun:
    """The profile tells the capacity that the load is a share of."""
    site.target.apply({"instances": instances, "intra_op_threads": threads, "max_batch_size": 1})
    capacity = float(capacity_per_s(profile.warm_s[None], np.array([instances]))[0])
    measurement = _measured(site, partial(_send, site, load, load.share * capacity))
    if not measurement.completions:
        raise RuntimeError(f"no request came within {load.seconds:.1f} s; give longer --seconds")
    rate_per_s = measurement.arrivals / load.seconds
    latency_ms, service_ms = measurement.latency.mean_ms, measurement.service.mean_ms
    return MeasuredRun(instances, threads, load.share, rate_per_s, latency_ms, service_ms)


def _send(site: Site, load: _Load, rate_per_s: float) -> None:
    """Poisson load; returns when all is answered."""
    options = ("--rate", rate_per_s, "--duration-s", load.seconds, "--seed", load.seed)
    command = ("--target", site.address, *options, "--sizes", f"fixed:{TOKENS}")
    with started("serving_adapter.load.command_line", *command) as generator:
        place(generator.pid, site.load_cores)
        generator.communicate()
        if generator.returncode:
            raise RuntimeError(f"the load generator ended with status {generator.returncode}")


def _line(case: Case) -> str:
    ran = case.run
    return (
        f"{ran.instances:9} {ran.intra_op_threads:7} {ran.share:6.2f} {ran.rate_per_s:8.1f} "
        f"{ran.latency_ms:9.2f} {case.raw_ms[OURS]:10.2f} "
        f"{case.raw_percent():+7.1f}% {case.adjusted_percent():+8.1f}% {case.raw_percent(SERF):+17.1f}%"
    )
