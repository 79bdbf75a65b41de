"""`triton-load-steps`: the load of a stock Triton doubles, and halves again, while `rrl-tune` tunes it.

The load is open loop and Poisson: R requests/s, then 2 R, then R again. R is 0.55 (`--share`) of what
Triton's default serves of a burst. The default can serve R, but not 2 R.

The best configuration is measured in the same run of the benchmark:

- At first every configuration is measured once at each of the two loads, under the same arrivals.
- The machine's speed changes within half an hour. So the best few are measured again right after each run of
  `rrl-tune`, with what that run had in force at this load, several times in turns.
- The single windows of all others are scaled by what those of the best few turned out to be worth.
- The first 3 s of every window are left out, as requests take longer right after a change.
- The best of a round is the one that is best by the other rounds, since the lowest of several noisy means is
  lower than it is worth.
- Ratios to the best are medians over the rounds, as a slow spell of the machine commonly meets one window.

Intervals after a step are counted from the one in which the step falls. The count ends with the first
interval from which on nine in ten are in a configuration within 10 % of the best. An interval that begins
with a change lasts longer than others, so the time is reported too.

    scripts/bench triton-load-steps [--model minilm] [--seeds 0 1] [--share 0.55] [--quick] [--out FOLDER]
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import mode
from typing import Any

import numpy as np

from rrl.knobs import in_words
from rrl.records import Record
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.served import (
    COLD_S,
    LIGHT_MODEL,
    SMALL_KNOBS,
    TRITONS_DEFAULT,
    Traffic,
    Triton,
    capacity_per_s,
    load,
    seen_in_turns,
    triton,
)
from scripts.serving.client_log import Requests
from scripts.serving.in_turns import InTurns, Ratio, Turns, mean_ms
from scripts.serving.served_agents import DEFAULT, Served, TunedRun, settled_after, tuned_by_command
from serving_adapter.flags.parsing import parse

NEAR_RATIO = 1.10  # of the best for a load
REACH_INTERVALS = 5


@dataclass(frozen=True)
class Options:
    """Steps the load of a stock Triton that is being tuned."""

    model: str = "minilm"
    """minilm, efficientnet_lite0, burn."""
    seeds: tuple[int, ...] = (0,)
    """A run of rrl-tune for each."""
    share: float = 0.55
    """R, of what Triton's default serves of a burst; from 0.5 on it does not bear 2 R."""
    quick: bool = False
    """A light model and short phases: only to see that it works."""
    out: Path | None = None
    """Folder for journals and clients' logs (default runs/triton-load-steps-TIME)."""

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("give at least one seed")
        if not 0 < self.share <= 1:
            raise ValueError(f"--share must be above 0 and at most 1, got {self.share}")


@dataclass(frozen=True)
class StepsPlan:
    interval_s: float = 5.0
    settle_s: float = 1.0
    phases_s: tuple[float, ...] = (180.0, 120.0, 120.0)  # at R, 2 R and R
    window_s: float = 9.0  # of a configuration, when all are measured
    cold_s: float = COLD_S  # the first part of every window, left out
    finalists: int = 4
    rounds: int = 4
    final_s: float = 15.0
    knobs: str = "instances=1:3,intra_op_threads=1,2,max_batch_size=1,4,8"


QUICK = StepsPlan(
    interval_s=1.2, settle_s=0.3, phases_s=(20.0, 8.0, 8.0), window_s=1.5, cold_s=0.3, finalists=2, rounds=2,
    final_s=2.0, knobs=SMALL_KNOBS,
)  # fmt: skip


@dataclass(frozen=True)
class ClientLandscape:
    """What the clients saw of every configuration at one load."""

    alone: Turns  # each once, before all runs
    turns: InTurns  # the best few of them, and what a run had in force, right after it

    def means_ms(self) -> dict[int, float]:
        return self.turns.beside_ms(self.alone)

    def near(self) -> set[int]:
        near_ms = NEAR_RATIO * self.turns.best_ms()
        return {number for number, ms in self.means_ms().items() if ms <= near_ms}


@dataclass(frozen=True)
class Stepped:
    """One run of `rrl-tune`, and what was found of each load right after it."""

    run: TunedRun
    requests: Requests
    seen: dict[float, ClientLandscape]  # by rate


@dataclass(frozen=True)
class Step:
    """One step of the load in one run."""

    seed: int
    phase: int  # the one that begins with the step
    intervals: int | None  # until near the best again; None: not before the next step
    seconds: float | None  # to the end of these intervals
    mean_ms: float  # that the clients saw, from this step to the next
    in_force: int  # at its end


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    plan, model = (QUICK, LIGHT_MODEL) if options.quick else (StepsPlan(), options.model)
    folder = options.out or Path("runs") / f"triton-load-steps-{datetime.now():%Y%m%d-%H%M%S}"
    with triton(model) as server:
        space = ConfigurationSpace.parse(plan.knobs)
        rate_per_s = round(options.share * capacity_per_s(server), 1)
        rates_per_s = (rate_per_s, 2 * rate_per_s, rate_per_s)
        print(f"{model}: {rate_per_s:g}/s, then {2 * rate_per_s:g}/s, then {rate_per_s:g}/s", flush=True)
        alone = {rate: _alone(server, space, rate, plan, folder) for rate in sorted(set(rates_per_s))}
        runs = []
        for seed in options.seeds:
            of_run = folder / f"seed-{seed}"
            run_, requests = _stepped(server, space, rates_per_s, seed, plan, of_run)
            in_force = kept(rates_per_s, phases(run_, requests, plan.phases_s))
            seen = {
                rate: ClientLandscape(
                    each, _in_turns(server, space, rate, each, in_force[rate], plan, of_run)
                )
                for rate, each in alone.items()
            }
            runs.append(Stepped(run_, requests, seen))
    steps = []
    for each in runs:
        near = [each.seen[rate].near() for rate in rates_per_s]
        steps += judged(each.run, each.requests, plan.phases_s, near)
    _print(space, runs, rates_per_s, steps)
    (folder / "summary.json").write_text(_summary(space, runs, steps), encoding="utf-8")
    slowest = [step.intervals for step in steps]
    known = [count for count in slowest if count is not None]
    value = max(known) if len(known) == len(slowest) else None
    return {
        "value": value,
        "unit": "intervals until within 10 % of the best after a step of the load, at most",
        "peer": None,
        "ratio": None,
        "reach": REACH_INTERVALS,
        "holds": value is not None and value <= REACH_INTERVALS,
        "intervals": slowest,
    }


def _stepped(
    server: Triton,
    space: ConfigurationSpace,
    rates_per_s: Sequence[float],
    seed: int,
    plan: StepsPlan,
    folder: Path,
) -> tuple[TunedRun, Requests]:
    """A run of rrl-tune from Triton's default configuration to the end of the stepped load."""
    folder.mkdir(parents=True, exist_ok=True)
    moments_s = step_moments_s(rates_per_s, plan.phases_s, np.random.default_rng(seed))
    trace = folder / "arrivals.csv"
    trace.write_text("t_s\n" + "\n".join(f"{moment_s:.6f}" for moment_s in moments_s) + "\n")
    traffic = Traffic(str(trace), (len(moments_s) - 1) / (moments_s[-1] - moments_s[0]), seed)
    server.target.apply(TRITONS_DEFAULT)
    served = Served(server.target, space, TRITONS_DEFAULT, seed, plan.interval_s, plan.settle_s, folder)
    with load(server, traffic, folder / "load") as client:
        run_ = tuned_by_command(served, DEFAULT, 10_000, server.arguments, lambda: client.poll() is not None)
    return run_, Requests.read(folder / "load")


def step_moments_s(
    rates_per_s: Sequence[float], lengths_s: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """Poisson arrivals whose rate is constant in each phase; the first comes at 0."""
    moments, start_s = [np.zeros(1)], 0.0
    for rate_per_s, length_s in zip(rates_per_s, lengths_s, strict=True):
        moments.append(start_s + np.sort(rng.random(rng.poisson(rate_per_s * length_s))) * length_s)
        start_s += length_s
    return np.concatenate(moments)


def _alone(
    server: Triton, space: ConfigurationSpace, rate_per_s: float, plan: StepsPlan, folder: Path
) -> Turns:
    """Every configuration at a load, once."""
    traffics, everyone = [Traffic("poisson", rate_per_s, 1000)], range(len(space))
    folder = folder / f"at-{rate_per_s:g}"
    return seen_in_turns(server, space, everyone, traffics, folder, plan.window_s, plan.cold_s)


def _in_turns(
    server: Triton,
    space: ConfigurationSpace,
    rate_per_s: float,
    alone: Turns,
    in_force: set[int],
    plan: StepsPlan,
    folder: Path,
) -> InTurns:
    """The best few of a load, and what a run had in force at it, in turns."""
    means_ms = {number: mean_ms(part) for number, (part,) in alone.items()}
    answered = [number for number, ms in means_ms.items() if math.isfinite(ms)]
    best = sorted(answered, key=means_ms.__getitem__)[: plan.finalists]
    traffics = [Traffic("poisson", rate_per_s, 1001 + k) for k in range(plan.rounds)]
    folder = folder / f"in-turns-at-{rate_per_s:g}"
    numbers = sorted({*best, *in_force})
    return InTurns(seen_in_turns(server, space, numbers, traffics, folder, plan.final_s, plan.cold_s))


def kept(rates_per_s: Sequence[float], of_phases: Sequence[Sequence[Record]]) -> dict[float, set[int]]:
    """By load, what was in force longest in a phase of it, or last."""
    found: dict[float, set[int]] = {rate: set() for rate in rates_per_s}
    for rate, phase in zip(rates_per_s, of_phases, strict=True):
        found[rate] |= {mode(record.number for record in phase), phase[-1].number}
    return found


def judged(
    run_: TunedRun, requests: Requests, phases_s: Sequence[float], near: Sequence[set[int]]
) -> list[Step]:
    """What became of each step, by what is near the best in each phase; the first one begins with no step."""
    ends_at = _ends_at(requests, phases_s)
    steps = []
    for k, records in enumerate(phases(run_, requests, phases_s)[1:], start=1):
        start_at, end_at = ends_at[k - 1], ends_at[k]
        count = settled_after([record.number in near[k] for record in records])
        seconds = None if count is None else records[count - 1].wall_time_s - start_at
        saw_ms = requests.between(start_at, end_at).mean_ms
        steps.append(Step(run_.header.seed, k, count, seconds, saw_ms, records[-1].number))
    return steps


def phases(run_: TunedRun, requests: Requests, phases_s: Sequence[float]) -> list[list[Record]]:
    """The intervals that ended in each phase of the load; RuntimeError where none did."""
    starts_at = [float(requests.at[0]), *_ends_at(requests, phases_s)]
    found = [
        [r for r in run_.records if r.counted and start_at < r.wall_time_s <= end_at]
        for start_at, end_at in pairwise(starts_at)
    ]
    if not all(found):
        raise RuntimeError(f"rrl-tune with seed {run_.header.seed} ended no interval in a phase of the load")
    return found


def _ends_at(requests: Requests, phases_s: Sequence[float]) -> list[float]:
    ends_at: list[float] = (float(requests.at[0]) + np.cumsum(phases_s)).tolist()
    return ends_at


def _print(
    space: ConfigurationSpace, runs: Sequence[Stepped], rates_per_s: Sequence[float], steps: Sequence[Step]
) -> None:
    for each in runs:
        for rate_per_s, seen in each.seen.items():
            print(
                f"after seed {each.run.header.seed}, at {rate_per_s:g}/s: "
                f"the best of the other rounds takes {seen.turns.best_ms():.1f} ms; "
                f"{len(seen.near())} of {len(space)} configurations are within 10 % of that"
            )
            for number in sorted(seen.turns.parts, key=seen.turns.ratio):
                over_best = seen.turns.ratio(number)
                print(f"  {in_words(space.configuration(number))}: {_in_words(over_best)} times")
    by_seed = {each.run.header.seed: each for each in runs}
    for step in steps:
        after = "not before the next"
        if step.intervals is not None:
            after = f"after {step.intervals} intervals ({step.seconds:.0f} s)"
        rate_per_s = rates_per_s[step.phase]
        over_best = by_seed[step.seed].seen[rate_per_s].turns.ratio(step.in_force)
        print(
            f"seed {step.seed}, step {step.phase}, to {rate_per_s:g}/s: near the best again {after}; "
            f"at its end {in_words(space.configuration(step.in_force))}, {_in_words(over_best)} times the "
            f"best; clients saw {step.mean_ms:.1f} ms on average"
        )


def _in_words(over_best: Ratio) -> str:
    return f"{over_best.middle:.3f} ± {over_best.error:.3f}"


def _summary(space: ConfigurationSpace, runs: Sequence[Stepped], steps: Sequence[Step]) -> str:
    values = {
        "landscapes": [
            {
                "after_seed": each.run.header.seed,
                "rate_per_s": rate,
                "best_ms": seen.turns.best_ms(),
                "mean_ms": [
                    space.configuration(number) | {"mean_ms": ms} | _ratio(seen, number)
                    for number, ms in sorted(seen.means_ms().items())
                ],
            }
            for each in runs
            for rate, seen in each.seen.items()
        ],
        "steps": [vars(step) | {"in_force": space.configuration(step.in_force)} for step in steps],
    }
    return json.dumps(values, indent=2) + "\n"


def _ratio(seen: ClientLandscape, number: int) -> dict[str, float]:
    if number not in seen.turns.parts:
        return {}
    return dict(zip(("ratio", "ratio_error"), seen.turns.ratio(number), strict=True))
