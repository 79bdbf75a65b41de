"""One workload of `triton-head-to-head`: all peers on one Triton, then what they kept, measured in turns."""

from __future__ import annotations

import contextlib
import math
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from baselines import make_agent
from baselines.exhaustive_sweep import ExhaustiveSweep
from envs.target_space import cores_of
from rrl.agent import Agent, Task
from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from rrl.tuning.settings import TuningSettings
from scripts.benchmarks.triton.head_to_head_report import FIXED, Trial, WorkloadCase, client_ms, table
from scripts.benchmarks.triton.served import (
    COLD_S,
    KNOBS,
    TRITONS_DEFAULT,
    Traffic,
    Triton,
    capacity_per_s,
    load,
    requests_of,
    seen_in_turns,
    send_lag_p99_ms,
)
from scripts.serving.client_log import Requests
from scripts.serving.in_turns import InTurns
from scripts.serving.served_agents import (
    AGAIN,
    DEFAULT,
    SWEEP,
    Served,
    TunedRun,
    Unguarded,
    tuned_in_the_loop,
)
from serving_adapter.load.arrivals import Wiki

SETTLE_S = 1.0
CONTENDER_RATIO = 1.25  # times the best's mean, by the first rounds: these are measured in as many more
FIRST_EXTRA_SEED = 100  # beyond the seeds of the first rounds
WARM_S, WARMING_SEED = 3.0, 2000  # of such arrivals, before each peer's
# Of a peer's measurements, those of its baseline and, at most, of its validation.
INTERVALS_BESIDE_SEARCH = TuningSettings.baseline + 4 * TuningSettings.validation


@dataclass(frozen=True)
class TrialPlan:
    """How long everything takes."""

    measurements: int
    interval_s: float
    settle_s: float = SETTLE_S
    change_s: float = 5.0  # about what a reload, and what it leaves to drain, takes
    rounds: int = 5
    final_s: float = 15.0
    cold_s: float = COLD_S  # of which this much is left out
    warm_s: float = WARM_S
    finalists: int = 6  # of the grid
    knobs: str = KNOBS
    guarded: bool = True

    def setting(self) -> dict[str, Any]:
        """What must be alike for two runs to stand in one table."""
        names = ("knobs", "measurements", "interval_s", "rounds", "guarded")
        return {name: getattr(self, name) for name in names}

    @property
    def period_s(self) -> float:
        """The tuning period: the measurements, each after a reload."""
        return self.measurements * (self.interval_s + self.change_s)


def workload_case(
    server: Triton,
    arrivals: str,
    seed: int,
    agents: Sequence[str],
    plan: TrialPlan,
    folder: Path,
    rate_per_s: float | None = None,
) -> WorkloadCase:
    """Lets all of the agents tune one Triton under the same arrivals, and compares what each kept.

    The rate is by default one that Triton's default configuration bears. RuntimeError where the load ends
    early.
    """
    space = ConfigurationSpace.parse(plan.knobs)
    traffic = _traffic(server, arrivals, seed, rate_per_s, plan, len(space))
    folder = folder / f"{server.model}-{traffic.name}-{seed}"
    served = Served(server.target, space, TRITONS_DEFAULT, seed, plan.interval_s, plan.settle_s, folder)
    print(
        f"{server.model}, {traffic.name}, seed {seed}: {traffic.rate_per_s:g}/s, "
        f"{len(space)} configurations, a tuning period of {plan.period_s:.0f} s",
        flush=True,
    )
    trials = {name: _trial(name, served, server, traffic, plan) for name in _turned(agents, seed)}
    case = WorkloadCase(
        model=server.model,
        arrivals=traffic.name,
        seed=seed,
        rate_per_s=traffic.rate_per_s,
        space=space,
        start=served.number(TRITONS_DEFAULT),
        period_s=plan.period_s,
        trials=trials,
        finals={},
    )
    finalists = _finalists(case, plan.finalists)
    shown = [_shown(traffic, k, plan.rounds) for k in range(plan.rounds)]
    finals = seen_in_turns(server, space, finalists, shown, folder / "finals", plan.final_s, plan.cold_s)
    case = replace(case, finals=finals)
    if contest := contenders(case.last):
        again = [replace(each, seed=FIRST_EXTRA_SEED + each.seed) for each in shown]
        more = seen_in_turns(server, space, contest, again, folder / "again", plan.final_s, plan.cold_s)
        case = replace(case, finals={n: [*parts, *more.get(n, [])] for n, parts in finals.items()})
    print(table(case), flush=True)
    return case


def contenders(last: InTurns) -> list[int]:
    """What may be best by the rounds so far, which are too few to tell it from the others that may; none
    where there is but one."""
    near = [number for number in last.parts if last.ratio(number).middle <= CONTENDER_RATIO]
    return near if len(near) > 1 else []


def _turned(agents: Sequence[str], seed: int) -> Sequence[str]:
    """In a random order, another for every seed, as the machine may get slower or faster meanwhile."""
    return np.random.default_rng(seed).permutation([FIXED, *agents, SWEEP]).tolist()


def _traffic(
    server: Triton, arrivals: str, seed: int, rate_per_s: float | None, plan: TrialPlan, configurations: int
) -> Traffic:
    """At the rate given, or at one that the default configuration bears; a trace must last for the sweep."""
    needed_s = max(plan.measurements, configurations) * (plan.interval_s + plan.change_s)
    if rate_per_s is not None:
        traffic = Traffic(arrivals, rate_per_s, seed, day_s=plan.period_s)
    else:
        server.target.apply(TRITONS_DEFAULT)
        utilisation = 0.75 if arrivals == "poisson" else 0.55
        traffic = Traffic(arrivals, round(utilisation * capacity_per_s(server), 1), seed, plan.period_s)
        traffic = slowed(traffic, needed_s)
    if traffic.lasts_s() < needed_s:
        raise ValueError(
            f"{arrivals} lasts {traffic.lasts_s():.0f} s at {traffic.rate_per_s:g} requests/s, and all "
            f"measurements take about {needed_s:.0f} s; give a lower --rate or a shorter --interval-s"
        )
    return traffic


def slowed(traffic: Traffic, needed_s: float) -> Traffic:
    """Traffic at a lower rate where its trace, of so many requests, would be over too soon."""
    share = min(1.0, traffic.lasts_s() / needed_s)
    return traffic if share == 1 else replace(traffic, rate_per_s=0.99 * share * traffic.rate_per_s)


def _trial(name: str, served: Served, server: Triton, traffic: Traffic, plan: TrialPlan) -> Trial:
    """One peer, from the default configuration to the end of the tuning period."""
    served.target.apply(TRITONS_DEFAULT)
    warming = replace(traffic, seed=WARMING_SEED + traffic.seed)
    requests_of(server, warming, served.folder / name / "warming", plan.warm_s)
    agent = _agent(name, served)
    log = served.folder / name / "load"
    with load(server, traffic, log) as client:
        end_s = time.monotonic() + plan.period_s
        run = None if agent is None else _tuned(name, agent, served, plan, lambda: client.poll() is not None)
        early = client.poll() is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.wait(max(0.0, end_s - time.monotonic()))
        if early or (client.poll() is not None and time.monotonic() < end_s):
            raise RuntimeError(f"rrl-load ended before {name} was through, or its tuning period (see {log})")
    if agent is not None:
        agent.close()
    requests = Requests.read(log)
    latency_s = requests.first(plan.period_s).sum_felt_s
    print(f"  {name}: {latency_s:.1f} s of latency, {requests.failures} failed", flush=True)
    left = served.number(TRITONS_DEFAULT) if run is None else run.left
    return Trial(name, run, left, requests, send_lag_p99_ms(log))


def _agent(name: str, served: Served) -> Agent | None:
    if name == FIXED:
        return None
    if name == SWEEP:
        return ExhaustiveSweep(Task(served.space), served.seed)
    task = Task(served.space, cores=cores_of(served.target), settles=True)
    return make_agent(DEFAULT if name == AGAIN else name, task, served.seed, background_training=True)


def _tuned(name: str, agent: Agent, served: Served, plan: TrialPlan, ended: Callable[[], bool]) -> TunedRun:
    if isinstance(agent, ExhaustiveSweep):
        settings = TuningSettings(3 * len(served.space), baseline=1, validation=0)
        return tuned_in_the_loop(served, name, agent, Unguarded, settings, lambda: agent.done or ended())
    if plan.guarded:
        settings = TuningSettings(plan.measurements - INTERVALS_BESIDE_SEARCH)
        return tuned_in_the_loop(served, name, agent, partial(_guard, served), settings, ended)
    settings = TuningSettings(plan.measurements - 1, baseline=1, validation=0)
    return tuned_in_the_loop(served, name, agent, Unguarded, settings, ended)


def _guard(served: Served, start: int) -> Guard:
    """As `rrl-tune` has it: with a belief of its own."""
    belief = Belief(served.space, MeanLatency(), cores_of(served.target), found=served.found)
    return Guard(start, expectation=belief)


def _finalists(case: WorkloadCase, count: int) -> list[int]:
    """What the peers leave, and the best few of the grid by all that the clients saw of each."""
    seen_ms = client_ms(case)
    best = sorted(seen_ms, key=lambda number: seen_ms[number])[:count]
    left = [trial.left for trial in case.trials.values()]
    return sorted({*best, *map(case.as_one, (case.start, *left))})


def _shown(traffic: Traffic, k: int, rounds: int) -> Traffic:
    """The arrivals of a round; one is too short for a day of `wiki`."""
    shown = replace(traffic, seed=1000 + k, offset_share=0.9 * k / rounds)
    if traffic.arrivals != "wiki":
        return shown
    wave = 1 + Wiki.amplitude * math.sin(2 * math.pi * k / rounds)
    return replace(shown, arrivals="poisson", rate_per_s=round(wave * traffic.rate_per_s, 1))
