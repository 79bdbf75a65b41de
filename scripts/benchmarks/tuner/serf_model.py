"""`serf-model`: SERF's queueing model against the real server.

`rrl-serve` with MiniLM, 32 tokens a request and no batching. For each parallelism tuple (n instances,
intra-op threads) n requests are kept in service and their mean service time is read, just before the
configurations of those threads are measured. Where n requests need more cores than there are, they follow
one another. Where they do not, there is a pause after each. A request that finds its instance resting takes
longer than one of many in a row, by a quarter with two threads. From it the M/D_interf/c model predicts the
mean latency of each configuration at four shares of its capacity. Each is measured under Poisson load, for
longer the higher the share, as a busier queue forgets more slowly. The prediction is for the rate that the
load really had. The latency is the server's own, from a request's arrival to its answer, without the
client's part. Runs as short as these miss the mean by 2 % through the chance of the arrivals alone (by
simulation of such a server).

The peer is the paper's own error on its testbed: 2-4 % on average, 90th percentile under 10 % (SERF, SC 2016,
section V-B).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from envs.light_profiling import ProfileLoad, ProfileOptions
from envs.live import cores_of
from envs.profiler import measure
from rrl.queueing.interference import Queue, capacity_per_s, predict
from scripts.serving.minilm_requests import TOKENS
from scripts.serving.processes import serving, started
from serving_adapter.options import parse
from serving_adapter.target import Target

SECONDS_AT = {0.15: 0.6, 0.3: 0.85, 0.45: 1.1, 0.6: 1.45}  # share of the capacity -> multiple of `seconds`
INTRA_OP_THREADS = (1, 2)
WARM_UP_ROUNDS, PROFILE_ROUNDS = 10, 60  # requests one after another in each instance
PAUSE_S = 0.02  # about what an instance rests at these loads
REACH_PERCENT, REACH_P90_PERCENT = 4.0, 10.0


@dataclass(frozen=True)
class Options:
    """SERF's model against the real server."""

    instances: int = 6
    """1 .. so many instances, each with 1 and 2 intra-op threads."""
    seconds: float = 8.0
    """Of one measurement, on average over the four loads."""
    seed: int = 0
    """Of the arrivals."""

    def __post_init__(self) -> None:
        if self.instances < 1 or self.seconds <= 0:
            raise ValueError("--instances must be at least 1 and --seconds positive")


class _Load(NamedTuple):
    address: str
    share: float  # of the configuration's capacity
    seconds: float
    seed: int


class Case(NamedTuple):
    """One configuration under one load."""

    instances: int
    intra_op_threads: int
    share: float  # of the capacity: what was aimed at
    rate_per_s: float  # what came
    measured_ms: float
    predicted_ms: Mapping[Queue, float]

    def error_percent(self, queue: Queue) -> float:
        return 100 * abs(self.predicted_ms[queue] / self.measured_ms - 1)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    with serving("minilm") as address:
        target = Target(address)
        target.connect()
        print("instances threads  share   rate/s  measured  predicted   error   " + _header())
        cases: list[Case] = []
        profile_s = 0.0
        for threads in INTRA_OP_THREADS:
            began_s = time.monotonic()
            times_s = _profiled(target, address, threads, options.instances)
            profile_s += time.monotonic() - began_s
            for instances in range(1, options.instances + 1):
                for share in SECONDS_AT:
                    load = _Load(
                        address, share, options.seconds * SECONDS_AT[share], options.seed + len(cases)
                    )
                    cases.append(_case(target, load, threads, times_s[:instances]))
                    print(_line(cases[-1]), flush=True)
        target.close()
    errors = {queue: np.array([case.error_percent(queue) for case in cases]) for queue in Queue}
    ours = errors[Queue.MD_INTERF_C]
    mean, (p90, p95) = float(ours.mean()), np.percentile(ours, [90, 95]).tolist()
    print(f"profiled in {profile_s:.0f} s; errors over {len(cases)} cases:")
    for queue, each in errors.items():
        print(f"{queue.value:13} mean error {each.mean():6.1f} %, p90 {np.percentile(each, 90):6.1f} %")
    return {
        "value": round(mean, 2),
        "unit": "% mean error of the predicted mean latency",
        "peer": REACH_PERCENT,
        "ratio": round(mean / REACH_PERCENT, 3),
        "reach": REACH_PERCENT,
        "holds": mean <= REACH_PERCENT and p90 < REACH_P90_PERCENT,
        "p90_percent": round(p90, 2),
        "p95_percent": round(p95, 2),
        "cases": len(cases),
        "profile_s": round(profile_s, 1),
    }


def _profiled(target: Target, address: str, threads: int, most_instances: int) -> np.ndarray:
    """(most_instances,) mean service time in s with 1, 2 ... requests in service all the time."""
    load = ProfileLoad(ProfileOptions(target=address, out=Path(), size=TOKENS), target.model)
    cores = cores_of(target, target.configuration())
    assert cores is not None, "the server is on this machine"
    times_s = []
    try:
        for n in range(1, most_instances + 1):
            target.apply({"instances": n, "intra_op_threads": threads, "max_batch_size": 1})
            load.drive(WARM_UP_ROUNDS * n, n)
            before = target.read()
            if n * threads <= cores:
                load.drive_rounds(PROFILE_ROUNDS, n, PAUSE_S)
            else:
                load.drive(PROFILE_ROUNDS * n, n)
            times_s.append(1e-3 * measure(before, target.read()).service.mean_ms)
    finally:
        load.close()
    return np.array(times_s)


def _case(target: Target, load: _Load, threads: int, times_s: np.ndarray) -> Case:
    """`times_s` (instances,): the profile up to the configuration's own number of instances."""
    table_s, instances = times_s[None], np.array([len(times_s)])
    target.apply({"instances": len(times_s), "intra_op_threads": threads, "max_batch_size": 1})
    before = target.read()
    _send(load, load.share * float(capacity_per_s(table_s, instances)[0]))
    measurement = measure(before, target.read())
    rate_per_s = measurement.arrivals / load.seconds
    predicted_ms = {
        queue: 1e3 * float(predict(table_s, instances, rate_per_s, queue).mean_latency_s[0])
        for queue in Queue
    }
    return Case(len(times_s), threads, load.share, rate_per_s, measurement.latency.mean_ms, predicted_ms)


def _send(load: _Load, rate_per_s: float) -> None:
    """Poisson load; returns when all is answered."""
    options = ("--rate", rate_per_s, "--duration-s", load.seconds, "--seed", load.seed)
    with started(
        "serving_adapter.load.command_line",
        "--target",
        load.address,
        *options,
        "--sizes",
        f"fixed:{TOKENS}",
    ) as generator:
        generator.communicate()
        if generator.returncode:
            raise RuntimeError(f"the load generator ended with status {generator.returncode}")


def _header() -> str:
    return "  ".join(queue.value for queue in Queue if queue is not Queue.MD_INTERF_C)


def _line(case: Case) -> str:
    ours = case.predicted_ms[Queue.MD_INTERF_C]
    others = "  ".join(
        f"{case.predicted_ms[queue]:{len(queue.value)}.2f}"
        for queue in Queue
        if queue is not Queue.MD_INTERF_C
    )
    return (
        f"{case.instances:9} {case.intra_op_threads:7} {case.share:6.2f} {case.rate_per_s:8.1f} "
        f"{case.measured_ms:9.2f} {ours:10.2f} {case.error_percent(Queue.MD_INTERF_C):6.1f}%   {others}"
    )
