"""`serf-model`: SERF's queueing model against the real server.

`rrl-serve` with MiniLM, 32 tokens a request and no batching. A configuration of n instances is
profiled and run in turns, P R P R P R P R P. There is a run at each of four shares of its capacity. So the
machine cannot drift for long between a profile and the run that it predicts.

- **P**: for about 5 s, 1, 2 ... n requests are kept in service and their mean service time is read. Where
  they need more cores than there are, requests follow one another. Where they do not, there is a pause after
  each. A request that finds its instance resting takes longer than one of many in a row.
- **R**: Poisson load, for longer the higher the share, as a busier queue forgets more slowly. The latency is
  the server's own, from a request's arrival to its answer, without the client's part.

The M/D_interf/c model predicts the mean latency of a run from the mean of the two profiles around it, at the
rate that the load really had.

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

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from envs.profile_load import ProfileLoad
from envs.profiler import measure
from envs.target_space import cores_of
from rrl.queueing.interference import Prediction, Queue, capacity_per_s, predict
from scripts.serving.minilm_requests import TOKENS
from scripts.serving.processes import serving, started
from serving_adapter.options import parse
from serving_adapter.target import Target

SECONDS_AT = {0.15: 0.6, 0.3: 0.85, 0.45: 1.1, 0.6: 1.45}  # share of the capacity -> multiple of `seconds`
INTRA_OP_THREADS = (1, 2)
PROFILE_S = 5.0  # of one profile, shared by the numbers of requests in service
WARM_UP_ROUNDS, ROUNDS_AT_ONCE = 4, 5  # requests one after another in each instance
PAUSE_S = 0.02  # about what an instance rests at these loads
REACH_PERCENT, REACH_P90_PERCENT = 4.0, 10.0
LARGEST_SLOWNESS = 3.0  # of a run over its profiles: further off, the two have nothing in common
OURS = Queue.MD_INTERF_C


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


class MeasuredRun(NamedTuple):
    """One configuration under one load."""

    instances: int
    intra_op_threads: int
    share: float  # of the capacity: what was aimed at
    rate_per_s: float  # what came
    latency_ms: float  # means
    service_ms: float


class Case(NamedTuple):
    """A run, and what is predicted of its mean latency."""

    run: MeasuredRun
    raw_ms: Mapping[Queue, float]
    adjusted_ms: Mapping[Queue, float]

    def raw_percent(self, queue: Queue = OURS) -> float:
        """Above zero where the prediction is too long."""
        return 100 * (self.raw_ms[queue] / self.run.latency_ms - 1)

    def adjusted_percent(self, queue: Queue = OURS) -> float:
        """The same with the service times scaled to the run's own mean."""
        return 100 * (self.adjusted_ms[queue] / self.run.latency_ms - 1)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    began_s = time.monotonic()
    cases: list[Case] = []
    with serving("minilm") as address:
        target = Target(address)
        target.connect()
        print("instances threads  share   rate/s  measured  predicted      raw  adjusted")
        for threads in INTRA_OP_THREADS:
            for instances in range(1, options.instances + 1):
                cases += _in_turns(target, address, instances, threads, options, len(cases))
        target.close()
    print(f"{time.monotonic() - began_s:.0f} s; errors over {len(cases)} cases:")
    print("\n".join(summary(cases)))
    return outcome(cases)


def _in_turns(
    target: Target, address: str, instances: int, threads: int, options: Options, seed: int
) -> list[Case]:
    """One configuration: P R P R ... P, and a case for each R."""
    cases = []
    before_s = _profiled(target, address, instances, threads)
    for k, share in enumerate(SECONDS_AT):
        seconds = options.seconds * SECONDS_AT[share]
        load = _Load(address, share, seconds, options.seed + seed + k)
        ran = _ran(target, load, instances, threads, before_s)
        after_s = _profiled(target, address, instances, threads)
        cases.append(predicted(ran, (before_s + after_s) / 2))
        print(_line(cases[-1]), flush=True)
        before_s = after_s
    return cases


def predicted(ran: MeasuredRun, times_s: np.ndarray) -> Case:
    """A case from `times_s` (instances,): mean service times with 1, 2 ... requests in service."""
    slower = slowness(ran, times_s)
    raw, adjusted = (
        {queue: 1e3 * float(_prediction(ran, each_s, queue).mean_latency_s[0]) for queue in Queue}
        for each_s in (times_s, slower * times_s)
    )
    return Case(ran, raw, adjusted)


def slowness(ran: MeasuredRun, times_s: np.ndarray) -> float:
    """How many times longer service took in the run than when it was profiled, by bisection of its logarithm.

    No plain quotient, since a slower machine also has more requests in service, which slows it further.
    """
    low, high = np.log(LARGEST_SLOWNESS) * np.array([-1.0, 1.0])
    while high - low > 1e-6:
        middle = (low + high) / 2
        mean_s = float(_prediction(ran, np.exp(middle) * times_s, OURS).mean_service_s[0])
        low, high = (middle, high) if 1e3 * mean_s < ran.service_ms else (low, middle)
    return float(np.exp(low))


def _prediction(ran: MeasuredRun, times_s: np.ndarray, queue: Queue) -> Prediction:
    return predict(times_s[None], np.array([ran.instances]), ran.rate_per_s, queue)


def summary(cases: Sequence[Case]) -> list[str]:
    """The errors' size by model, and the sign of ours by case."""
    lines = [f"{'model':13}  raw: mean    p90   signed   adjusted: mean    p90   signed"]
    for queue in Queue:
        raw, adjusted = (_errors(cases, queue, is_adjusted) for is_adjusted in (False, True))
        lines.append(
            f"{queue.value:13} {_mean(raw):9.1f} % {_p90(raw):4.1f} % {raw.mean():+6.1f} %"
            f" {_mean(adjusted):14.1f} % {_p90(adjusted):4.1f} % {adjusted.mean():+6.1f} %"
        )
    lines.append(f"signed errors of {OURS.value} in %, raw / adjusted, by share of the capacity:")
    lines.append("instances x threads" + "".join(f"{share:>16g}" for share in SECONDS_AT))
    by_configuration: dict[tuple[int, int], list[Case]] = {}
    for case in cases:
        by_configuration.setdefault((case.run.instances, case.run.intra_op_threads), []).append(case)
    for (instances, threads), own in by_configuration.items():
        cells = (f"{case.raw_percent():+7.1f} /{case.adjusted_percent():+7.1f}" for case in own)
        lines.append(f"{instances:9} x {threads:<7}" + "".join(cells))
    return lines


def outcome(cases: Sequence[Case]) -> dict[str, Any]:
    """The raw error is the figure, as only that is a prediction."""
    raw, adjusted = (_errors(cases, OURS, is_adjusted) for is_adjusted in (False, True))
    return {
        "value": round(_mean(raw), 2),
        "unit": "% mean error of the predicted mean latency",
        "peer": REACH_PERCENT,
        "ratio": round(_mean(raw) / REACH_PERCENT, 3),
        "reach": REACH_PERCENT,
        "holds": _mean(raw) <= REACH_PERCENT and _p90(raw) < REACH_P90_PERCENT,
        "p90_percent": round(_p90(raw), 2),
        "signed_percent": round(float(raw.mean()), 2),
        "adjusted_percent": round(_mean(adjusted), 2),
        "adjusted_p90_percent": round(_p90(adjusted), 2),
        "adjusted_signed_percent": round(float(adjusted.mean()), 2),
        "cases": len(cases),
    }


def _errors(cases: Sequence[Case], queue: Queue, is_adjusted: bool) -> np.ndarray:
    """(cases,) with their sign, in %."""
    return np.array(
        [case.adjusted_percent(queue) if is_adjusted else case.raw_percent(queue) for case in cases]
    )


def _mean(errors: np.ndarray) -> float:
    return float(np.abs(errors).mean())


def _p90(errors: np.ndarray) -> float:
    return float(np.percentile(np.abs(errors), 90))


def _profiled(target: Target, address: str, most_instances: int, threads: int) -> np.ndarray:
    """(most_instances,) mean service time in s with 1, 2 ... requests in service all the time."""
    load = ProfileLoad(address, target.model, TOKENS)
    cores = cores_of(target, target.configuration())
    assert cores is not None, "the server is on this machine"
    times_s = []
    try:
        for n in range(1, most_instances + 1):
            target.apply({"instances": n, "intra_op_threads": threads, "max_batch_size": 1})
            load.drive(WARM_UP_ROUNDS * n, n)
            before, until_s = target.read(), time.monotonic() + PROFILE_S / most_instances
            while time.monotonic() < until_s:
                if n * threads <= cores:
                    load.drive_rounds(ROUNDS_AT_ONCE, n, PAUSE_S)
                else:
                    load.drive(ROUNDS_AT_ONCE * n, n)
            times_s.append(1e-3 * measure(before, target.read()).service.mean_ms)
    finally:
        load.close()
    return np.array(times_s)


def _ran(target: Target, load: _Load, instances: int, threads: int, times_s: np.ndarray) -> MeasuredRun:
    """`times_s` (instances,) tell the capacity that the load is a share of."""
    target.apply({"instances": instances, "intra_op_threads": threads, "max_batch_size": 1})
    before = target.read()
    _send(load, load.share * float(capacity_per_s(times_s[None], np.array([instances]))[0]))
    measurement = measure(before, target.read())
    if not measurement.completions:
        raise RuntimeError(f"no request came within {load.seconds:.1f} s; give longer --seconds")
    rate_per_s = measurement.arrivals / load.seconds
    latency_ms, service_ms = measurement.latency.mean_ms, measurement.service.mean_ms
    return MeasuredRun(instances, threads, load.share, rate_per_s, latency_ms, service_ms)


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


def _line(case: Case) -> str:
    ran = case.run
    return (
        f"{ran.instances:9} {ran.intra_op_threads:7} {ran.share:6.2f} {ran.rate_per_s:8.1f} "
        f"{ran.latency_ms:9.2f} {case.raw_ms[OURS]:10.2f} "
        f"{case.raw_percent():+7.1f}% {case.adjusted_percent():+8.1f}%"
    )
