"""`triton-simulated`: the default agent and its peers on many simulated stock Tritons of 2 cores.

A real Triton shows one run of an agent in half an hour; this shows a hundred in a minute. The settings for
targets where a change costs users something were chosen on it (`rrl.guided.settings`). The targets are
simulated from measurements of a real one:

- The target reports count and total of service times by batch size, and mean latencies. It reports neither
  percentiles nor how many instances were busy.
- Latencies differ from those of the queueing model by a factor for each number of instances (8 %) and one for
  each configuration (5 %). Both are drawn for every machine and seed, and no service time shows them.
- Service times drift (by 7 %, correlated by 0.8 between intervals) and scatter (4 %). Those of one interval
  vary by 20 %.
- In 7 % of the intervals the machine hiccups, by a third on average. In 1.5 % a spell begins: two to four
  intervals in a row take 1.3 to 1.8 times as long.
- A change takes 1.8 s for every process that it starts. Meanwhile the old configuration serves on, 1.8 times
  slower. A second to settle follows, two after a reload. None of this is measured.
- Where there is little spare capacity, a queue grows during a change. Fewer instances, with no other knob
  changed, start no process.

Two machines are MiniLM's and EfficientNet-Lite0's as measured, and on a third threads help much. *Random*
machines are as many more as asked for, under 0.4 to 0.85 of the load that Triton's default can serve. In
*steps* the load of some of both doubles after 216 s, and is halved again after 144 s more.

*One by one* are further random machines, on which everything takes longer where the largest batch is one: up
to 1.5 times as long. On the real Triton EfficientNet-Lite0 took 1.4 times as long, since its processes gave
back their memory after each request, which they do not once they had a larger batch. MiniLM took no longer.

Nobody has a guard or a validation. What stays until the period is over is what the agent recommends, or has
in force, after the measured intervals. It is compared with the best of the grid, by long simulations without
drift but with those factors.

| word | meaning |
|---|---|
| *settled* | the first interval from which on nine in ten were within 10 % of the best |
| *latency* | summed over all requests, those that wait at the end included, over the best configuration's |

The best configuration is taken without drift, hiccups and spells, so everybody's *latency* is above 1. Beside
it stands each agent's latency over that of the rule of thumb (`rule`), which never tunes, in the same run.

`guided-again` is the default agent once more, with other arrivals and another drift of the same machines.
What the two differ by is the chance of such runs.

    scripts/bench triton-simulated [--agents guided quick-search] [--seeds 12] [--machines 80]
                                   [--intervals 45] [--baseline 1] [--settings horizon=16]

`--settings` are the default agent's (`rrl.guided.settings.GuidedSettings`), to see what one brings.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, pairwise
from statistics import geometric_mean, mean, median
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from baselines import make_agent
from baselines.comparison.workers import Workers
from envs.scenarios.small_machines import CORES, random_machine
from rrl.agent import Agent, Task, Transition
from rrl.guided.agent import Guided
from rrl.guided.settings import GUIDED, GuidedSettings
from rrl.tuning.settings import TuningSettings
from scripts.benchmarks.triton.served import TRITONS_DEFAULT
from scripts.benchmarks.triton.simulated_server import (
    INTERVAL_S,
    SPACE,
    UNMODELLED_SD,
    VARIATION,
    SimulatedTriton,
    Steps,
    is_reload,
    machine_of,
    processes_started,
    true_costs_ms,
)
from scripts.benchmarks.tuner.simulated.given_settings import guided_settings
from scripts.serving.served_agents import AGAIN, DEFAULT, REACH, RULE, settled_after
from serving_adapter.flags.parsing import parse

NEAR_RATIO = 1.10  # times the best's latency
SOON_INTERVALS = 5  # intervals after a step
REACH_RANDOM = 1.04  # final latency on the random machines, over the best's

LOADS = (("minilm", 96.0), ("minilm", 65.0), ("efficientnet_lite0", 30.0), ("threads help", 85.0))  # per s
STEPPED = (("minilm", 96.0), ("efficientnet_lite0", 30.0), ("threads help", 85.0))
STEPS = ((216.0, 0.55), (144.0, 1.1), (144.0, 0.55))  # s, of the load
PERIOD_OF_AN_INTERVAL_S = 6.0  # a change included
FIRST_STEPS_SEED = 100  # the random machines whose load steps are others
FIRST_ONE_BY_ONE_SEED = 200  # and so are those
MOST_ONE_BY_ONE = 1.5  # how many times as long everything may take where the largest batch is one
AGAIN_SEED = 10_000  # added to a run's seed for the default agent's second run
HEAD = (
    f"{'runs':30} {'agent':13} final / best  within 5%  settled  latency / best  / rule's  reloads  processes"
)


@dataclass(frozen=True)
class Options:
    """The default agent and its peers on simulated stock Tritons."""

    agents: tuple[str, ...] = (DEFAULT, AGAIN, RULE, "gp-bandit", "quick-search", "optuna-tpe")
    """Which agents; the rule of thumb runs in any case."""
    seeds: int = 12
    """Runs on each measured machine and load."""
    machines: int = 80
    """Random machines, with a run each."""
    first_machine: int = 0
    """The seed of the first of them; settings were chosen on those below 1000."""
    intervals: int = 45
    """Of a run without steps."""
    baseline: int = TuningSettings.baseline
    """Of these, intervals of the start before the default agent decides (its peers': 1)."""
    settings: tuple[str, ...] = ()
    """Of the default agent, NAME=VALUE each."""

    def __post_init__(self) -> None:
        if min(self.seeds, self.machines, self.intervals) < 2 or self.baseline < 1:
            raise ValueError("--seeds, --machines and --intervals must be at least 2, and --baseline 1")
        if self.baseline >= self.intervals:
            raise ValueError(f"--baseline must be below --intervals, got {self.baseline}")
        if DEFAULT not in self.agents:
            raise ValueError(f"give {DEFAULT} among the --agents")
        guided_settings(self.settings)


class SimulatedCase(NamedTuple):
    """One run: a machine and its load."""

    machine: str | int  # a measured one's name, or a random one's seed
    steps: tuple[tuple[float, float], ...]  # of the load: s, per s
    intervals: int  # measured, the start's included; then what it left stays
    seed: int
    one_by_one: float = 1.0  # how many times as long everything takes where the largest batch is one

    @property
    def period_s(self) -> float:
        return sum(length_s for length_s, _ in self.steps)

    @property
    def unmodelled(self) -> np.ndarray:
        """(size,) latency over what the queue says."""
        rng = np.random.default_rng((self.seed, crc32(str(self.machine).encode())))
        instances = SPACE.values[:, SPACE.names.index("instances")]
        by_instances, by_configuration = UNMODELLED_SD
        log_factors = rng.normal(0, by_instances, instances.max())[instances - 1]
        factors: np.ndarray = np.exp(log_factors + rng.normal(0, by_configuration, len(SPACE)))
        return factors

    def rate_per_s(self, at_s: float) -> float:
        ends_s = accumulate(length_s for length_s, _ in self.steps)
        later = (rate for end_s, (_, rate) in zip(ends_s, self.steps, strict=True) if at_s < end_s)
        return next(later, self.steps[-1][1])


class CaseOutcome(NamedTuple):
    """What came of a run."""

    final: float  # latency of what is left, over the best's
    settled: int  # intervals; that of the run where it never was
    latency: float  # of all requests, over what it would have been in the best configuration
    reloads: int
    processes: int  # started by changes
    near_after: tuple[int, ...] = ()  # intervals after each step until it was near again


# --- machines and loads ----------------------------------------------------------------------------


def one_by_one_of(seed: int) -> float:
    """How many times as long a random machine takes for everything where the largest batch is one."""
    log_most = math.log(MOST_ONE_BY_ONE)
    return math.exp(np.random.default_rng([seed, FIRST_ONE_BY_ONE_SEED]).uniform(0.0, log_most))


def cases_of(options: Options) -> dict[str, list[SimulatedCase]]:
    """The runs, by what is told of them together."""

    def steady(machine: str | int, rate_per_s: float, seed: int) -> SimulatedCase:
        period_s = PERIOD_OF_AN_INTERVAL_S * options.intervals
        return SimulatedCase(machine, ((period_s, rate_per_s),), options.intervals, seed)

    def stepped(machine: str | int, rate_per_s: float, seed: int) -> SimulatedCase:
        steps = tuple((length_s, round(share * rate_per_s, 3)) for length_s, share in STEPS)
        lasts_s = sum(length_s for length_s, _ in steps)
        return SimulatedCase(machine, steps, math.ceil(lasts_s / INTERVAL_S), seed)

    found = {
        f"{name}, {rate_per_s:g}/s": [steady(name, rate_per_s, seed) for seed in range(options.seeds)]
        for name, rate_per_s in LOADS
    }
    first = options.first_machine
    found["random"] = [steady(k, random_machine(k)[1], k) for k in range(first, first + options.machines)]
    slower = range(first + FIRST_ONE_BY_ONE_SEED, first + FIRST_ONE_BY_ONE_SEED + options.machines)
    found["one by one"] = [
        steady(k, random_machine(k)[1], k)._replace(one_by_one=one_by_one_of(k)) for k in slower
    ]
    seeds = range(options.seeds // 2)
    found["steps"] = [stepped(name, rate_per_s, seed) for name, rate_per_s in STEPPED for seed in seeds]
    others = range(first + FIRST_STEPS_SEED, first + FIRST_STEPS_SEED + options.machines // 2)
    found["steps"] += [stepped(k, random_machine(k)[1], k) for k in others]
    return found


# --- a run -----------------------------------------------------------------------------------------


def episode(
    case: SimulatedCase, name: str, settings: GuidedSettings = GUIDED, baseline: int = 1
) -> CaseOutcome:
    """One agent, from Triton's default configuration on."""
    env = SimulatedTriton(
        machine_of(case.machine),
        SPACE,
        arrivals=Steps(case.steps),
        interval_s=INTERVAL_S,
        service_variation=VARIATION,
        start=TRITONS_DEFAULT,
        cores=CORES,
        unmodelled=case.unmodelled,
        one_by_one=case.one_by_one,
    )
    seed = case.seed + (AGAIN_SEED if name == AGAIN else 0)
    agent = _agent(name, seed, settings)
    before, info = env.reset(seed=seed)  # the first interval of the start
    agent.update(Transition(before, SPACE.action(env.start), info["cost"], before, info["measurement"]))
    numbers, rates_per_s = [env.start], [case.rate_per_s(0.0)]
    while env.now_s < case.period_s:
        if len(numbers) < baseline:
            action = SPACE.action(env.start)
        elif len(numbers) < case.intervals:
            action = agent.act(before)
        else:
            action = SPACE.action(_left(agent, numbers))
        numbers.append(SPACE.number_of_action(action))
        rates_per_s.append(case.rate_per_s(env.now_s))
        after, _, _, _, info = env.step(action)
        if len(numbers) <= case.intervals:
            agent.update(Transition(before, action, info["cost"], after, info["measurement"]))
        before = after
    agent.close()
    return _judged(
        case,
        rates_per_s,
        numbers,
        _left(agent, numbers),
        env.latency_s + env.drained_s(),
        env.now_s - case.period_s,
    )


def _left(agent: Agent, numbers: Sequence[int]) -> int:
    recommended = agent.recommended()
    return numbers[-1] if recommended is None else recommended


def _judged(
    case: SimulatedCase,
    rates_per_s: Sequence[float],
    numbers: Sequence[int],
    left: int,
    latency_s: float,
    beyond_s: float,
) -> CaseOutcome:
    """`rates_per_s` and `numbers` of every interval; the last one ends so long beyond the period."""
    true_ms = {rate: true_costs_ms(case.machine, rate, case.one_by_one) for _, rate in case.steps}
    costs_ms = {rate: each * case.unmodelled for rate, each in true_ms.items()}
    best_ms = {rate: float(costs.min()) for rate, costs in costs_ms.items()}
    near = [
        bool(costs_ms[rate][number] <= NEAR_RATIO * best_ms[rate])
        for rate, number in zip(rates_per_s, numbers, strict=True)
    ]
    last = case.steps[-1][1]
    lasted_s = [*case.steps, (beyond_s, last)]
    best_s = sum(1e-3 * best_ms[rate] * rate * length_s for length_s, rate in lasted_s)
    changes = [(a, b) for a, b in pairwise([SPACE.number(TRITONS_DEFAULT), *numbers]) if a != b]
    return CaseOutcome(
        final=float(costs_ms[last][left] / best_ms[last]),
        settled=settled_after(near) or len(near),
        latency=latency_s / best_s,
        reloads=sum(is_reload(a, b) for a, b in changes),
        processes=sum(processes_started(a, b) for a, b in changes),
        near_after=tuple(settled_after(each) or len(each) for each in _after_steps(rates_per_s, near)),
    )


def _after_steps(rates_per_s: Sequence[float], near: Sequence[bool]) -> list[list[bool]]:
    """`near` of the intervals after each step of the load."""
    pairs = zip(rates_per_s, near, strict=True)
    return [[is_near for _, is_near in same] for _, same in groupby(pairs, key=lambda pair: pair[0])][1:]


def _agent(name: str, seed: int, settings: GuidedSettings) -> Agent:
    task = Task(SPACE, cores=CORES, settles=True)
    return Guided(task, settings, seed) if name in (DEFAULT, AGAIN) else make_agent(name, task, seed)


# --- the benchmark ---------------------------------------------------------------------------------


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    settings = guided_settings(options.settings)
    names = dict.fromkeys((RULE, *options.agents))  # the rule first: all are compared with it
    random: dict[str, list[CaseOutcome]] = {}
    print(HEAD)
    with Workers(os.cpu_count() or 1) as workers:
        for label, cases in cases_of(options).items():
            by_agent: dict[str, list[CaseOutcome]] = {}
            for name in names:
                baseline = options.baseline if name in (DEFAULT, AGAIN) else 1
                jobs = [partial(episode, case, name, settings, baseline) for case in cases]
                by_agent[name] = found = _episodes(workers, jobs)
                print(_row(f"{label} ({len(found)})", name, found, by_agent[RULE]), flush=True)
            random = by_agent if label == "random" else random
    return outcome(random)


def outcome(random: Mapping[str, Sequence[CaseOutcome]]) -> dict[str, Any]:
    """The default agent on the random machines beside the best peer, and beside the rule of thumb."""
    finals = {name: geometric_mean(each.final for each in found) for name, found in random.items()}
    ours, peer = finals[DEFAULT], min(finals[name] for name in finals if name not in (DEFAULT, AGAIN))
    return {
        "value": round(ours, 3),
        "unit": "final latency over the best's, geometric mean of the random machines",
        "peer": round(peer, 3),
        "ratio": round(ours / peer, 3),
        "reach": REACH_RANDOM,
        "holds": ours <= REACH_RANDOM,
        "final_again": round(finals[AGAIN], 3) if AGAIN in finals else None,
        "final_over_rule": round(ours / finals[RULE], 3),
        "latency_over_rule": round(latency_over(random[DEFAULT], random[RULE]), 3),
    }


def latency_over(found: Sequence[CaseOutcome], others: Sequence[CaseOutcome]) -> float:
    """Latency of all requests over another agent's in the same runs, by geometric means."""
    return geometric_mean(each.latency for each in found) / geometric_mean(each.latency for each in others)


def _episodes(workers: Workers, jobs: Sequence[Callable[[], CaseOutcome]]) -> list[CaseOutcome]:
    found: list[CaseOutcome] = []
    workers.run(jobs, lambda _, answer: found.append(answer))
    return found


def _row(label: str, name: str, found: Sequence[CaseOutcome], of_rule: Sequence[CaseOutcome]) -> str:
    soon = [intervals <= SOON_INTERVALS for each in found for intervals in each.near_after]
    text = (
        f"{label:30} {name:13} {geometric_mean(e.final for e in found):12.3f}"
        f" {mean(e.final <= REACH for e in found):10.0%} {median(e.settled for e in found):8.0f}"
        f" {geometric_mean(e.latency for e in found):15.2f} {latency_over(found, of_rule):9.2f}"
        f" {mean(e.reloads for e in found):8.1f} {mean(e.processes for e in found):10.1f}"
    )
    return text + (
        f"   near within {SOON_INTERVALS} intervals after a step: {mean(soon):.0%}" if soon else ""
    )
