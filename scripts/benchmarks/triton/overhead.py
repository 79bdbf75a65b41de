"""`triton-overhead`: what it costs a stock Triton, and its machine, to be tuned.

- Calls: of every kind to the server, and to its metrics page, in an interval of the tuning loop with its
  guard whose configuration stays. Those of an interval that begins with a reload are told apart.
- Processor time: of the whole `rrl-tune` process while it tunes, from its second interval to its last.
- Latency: what clients see while `rrl-tune` observes one configuration and while it is stopped (SIGSTOP), in
  turns, under the same arrivals in each pair.

    scripts/bench triton-overhead [--model minilm] [--quick]
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.live import LiveServing
from rrl.guarding.guard import Guard
from rrl.interval import Watch
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.served import (
    LIGHT_MODEL,
    SMALL_KNOBS,
    TRITONS_DEFAULT,
    Traffic,
    Triton,
    capacity_per_s,
    load,
    requests_of,
    triton,
)
from scripts.benchmarks.tuner.speed.overhead import cpu_at_record
from scripts.serving.client_log import Requests
from scripts.serving.processes import tune_command
from serving_adapter.flags.parsing import parse
from serving_adapter.target.open_inference.metrics_page import FETCHES

UTILISATION = 0.4  # of what the default configuration serves of a burst: any tuning fits beside it
STATISTICS = "ModelStatistics"
REACH_CALLS = {STATISTICS: 1, FETCHES: 1}  # an interval


@dataclass(frozen=True)
class Options:
    """Measures what tuning costs a stock Triton."""

    model: str = "minilm"
    """minilm, efficientnet_lite0, burn."""
    quick: bool = False
    """A light model and short intervals: only to see that it works."""


@dataclass(frozen=True)
class OverheadPlan:
    intervals: int = 24  # of a run of rrl-tune
    interval_s: float = 5.0
    settle_s: float = 1.0
    counted: int = 10  # intervals whose calls are counted
    pairs: int = 5  # of windows with and without the observer
    window_s: float = 30.0
    knobs: str = SMALL_KNOBS


QUICK = OverheadPlan(intervals=5, interval_s=1.2, settle_s=0.3, counted=3, pairs=2, window_s=5.0)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    plan = QUICK if options.quick else OverheadPlan()
    with triton(LIGHT_MODEL if options.quick else options.model) as server:
        rate_per_s = round(UTILISATION * capacity_per_s(server), 1)
        with tempfile.TemporaryDirectory() as folder:
            with load(server, Traffic("poisson", rate_per_s, seed=0), Path(folder) / "load"):
                calls, change_calls = _calls(server, plan)
                share = _processor_share(server, plan, Path(folder) / "run")
            server.target.apply(TRITONS_DEFAULT)
            alone, observed = _windows(server, rate_per_s, plan, Path(folder))
    print(f"{server.model} at {rate_per_s:g}/s; calls an interval: {_listed(calls)}")
    print(f"calls of an interval that begins with a reload: {_listed(change_calls)}")
    print(f"rrl-tune while it tunes: {share:.2%} of one core")
    ratios = {}
    for percentile in (50, 95):
        without_ms, with_ms = (_percentile_ms(parts, percentile) for parts in (alone, observed))
        ratio = ratios[percentile] = with_ms / without_ms
        print(f"p{percentile}: {without_ms:.1f} ms alone, {with_ms:.1f} ms observed: {ratio:.3f}x")
    return {
        "value": round(calls.get(STATISTICS, 0.0) + calls.get(FETCHES, 0.0), 2),
        "unit": "calls for counters an interval",
        "peer": None,
        "ratio": round(ratios[95], 3),
        "reach": sum(REACH_CALLS.values()),
        "holds": all(calls.get(kind, 0.0) <= most for kind, most in REACH_CALLS.items()),
        "calls": {kind: round(number, 2) for kind, number in calls.items()},
        "calls_with_a_change": {kind: round(number, 2) for kind, number in change_calls.items()},
        "processor_percent": round(100 * share, 2),
        "p50_ratio": round(ratios[50], 3),
    }


def _calls(server: Triton, plan: OverheadPlan) -> tuple[dict[str, float], dict[str, float]]:
    """Mean calls by kind: of an interval in which nothing changes, and of one that begins with a reload."""
    space = ConfigurationSpace.parse(plan.knobs)
    env = LiveServing(server.target, space, interval_s=plan.interval_s, settle_s=plan.settle_s)
    guard = Guard(env.start)
    watch = Watch(guard.watch)
    env.run(env.start, watch)
    before = Counter(server.target.calls)
    for _ in range(plan.counted):
        guard.enter(env.start)
        env.run(env.start, watch)
    in_an_interval = _mean(server.target.calls, before, plan.counted)
    before = Counter(server.target.calls)
    for configuration in ({"max_batch_size": 8}, {}):
        number = env.space.number(space.configuration(env.start) | configuration)
        guard.enter(number)
        env.run(number, watch)
    return in_an_interval, _mean(server.target.calls, before, 2)


def _mean(calls: Counter[str], before: Counter[str], times: int) -> dict[str, float]:
    return {kind: (calls[kind] - before[kind]) / times for kind in calls if calls[kind] > before[kind]}


def _processor_share(server: Triton, plan: OverheadPlan, folder: Path) -> float:
    """The share of one core that a run of rrl-tune uses."""
    with _tuning(server, plan.knobs, plan.intervals, plan, folder) as tuner:
        (first_s, first_cpu_s), (last_s, last_cpu_s) = (
            cpu_at_record(tuner, folder / "journal.jsonl", count) for count in (2, plan.intervals)
        )
        tuner.wait(300)
    return (last_cpu_s - first_cpu_s) / (last_s - first_s)


def _windows(
    server: Triton, rate_per_s: float, plan: OverheadPlan, folder: Path
) -> tuple[list[Requests], list[Requests]]:
    """What clients saw, alone and observed, a window of each in every pair."""
    alone: list[Requests] = []
    observed: list[Requests] = []
    with _tuning(server, _one_configuration(), 10_000, plan, folder / "observer") as observer:
        with load(server, Traffic("poisson", rate_per_s, seed=0), folder / "first"):
            cpu_at_record(observer, folder / "observer" / "journal.jsonl", 1)  # it has started
        for k in range(plan.pairs):
            traffic = Traffic("poisson", rate_per_s, seed=1 + k)
            for stopped in (True, False) if k % 2 == 0 else (False, True):
                observer.send_signal(signal.SIGSTOP if stopped else signal.SIGCONT)
                seen = requests_of(server, traffic, folder / "window", plan.window_s)
                (alone if stopped else observed).append(seen)
            observer.send_signal(signal.SIGCONT)
            if observer.poll() is not None:
                raise RuntimeError(f"rrl-tune ended with {observer.returncode} before its time")
    return alone, observed


def _one_configuration() -> str:
    return ",".join(f"{knob}={value}" for knob, value in TRITONS_DEFAULT.items())


@contextlib.contextmanager
def _tuning(
    server: Triton, knobs: str, intervals: int, plan: OverheadPlan, folder: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """`rrl-tune`, as a process that is ended, by Ctrl-C, at the end."""
    arguments: list[object] = ["--target", server.address, *server.arguments]
    arguments += ["--knobs", knobs, "--intervals", intervals, "--out", folder]
    arguments += ["--interval-s", plan.interval_s, "--settle-s", plan.settle_s]
    tuner = subprocess.Popen(tune_command(*arguments), stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield tuner
        tuner.send_signal(signal.SIGINT)
        tuner.wait(120)
    finally:
        tuner.kill()
        tuner.wait()


def _percentile_ms(parts: list[Requests], percentile: float) -> float:
    """The mean over the windows of each one's percentile."""
    return float(np.mean([part.percentile_ms(percentile) for part in parts]))


def _listed(calls: dict[str, float]) -> str:
    return ", ".join(f"{number:g} {kind}" for kind, number in sorted(calls.items())) or "none"
