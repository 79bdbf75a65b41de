"""`triton-head-to-head`: who finds the best configuration of a stock Triton, how soon, and at what harm.

For each model, arrivals and seed there is one Triton and one open-loop stream of arrivals: the same requests
at the same moments for each peer. Each peer starts from Triton's default configuration, which has served a
few seconds of such arrivals by then.

| peer | what it is |
|---|---|
| `guided` | the default agent of `rrl-tune` |
| `guided-again` | the same once more: what the two differ by is the noise of such runs |
| `rule` | the rule of thumb: an instance a core, one thread each, batches of up to 8; it never tunes |
| `gp-bandit` | a Gaussian process with a lower confidence bound |
| `quick-search` | hill climbing over instances and batch size, after Triton Model Analyzer's |
| `quick-search-all` | the same over all knobs |
| `optuna-tpe` | Optuna's TPE sampler, which searches until it finds nothing better for some trials |
| `sweep` | every configuration once, without a guard |
| `default` | Triton's default configuration, left alone |

All go through `rrl-tune`'s loop with its guard, baseline and validation, so that only the agents differ. With
`--unguarded` nobody has them, and each agent keeps what it chose. Each takes the same number of measurements,
the first of them of the default configuration. The sweep takes as many as there are configurations. Then what
a peer keeps stays until the tuning period is over.

*Harm* is what the clients saw of every request of this period, changes and settling included. A request is
over the limit if it took longer than 3 times the best's p95, or failed.

Last, what the peers kept, the default and the best few of the grid are measured in turns over several rounds:

- In a round all have the same arrivals. With `wiki`, the rounds take the rates of its day in turn.
- As many rounds follow with those that may still be the best.
- The first 3 s of each window are left out, as requests take longer right after a change.
- The *best* of a round is best by all the other rounds, since the lowest of several noisy means is lower than
  what its configuration is worth.
- Ratios are medians over the rounds, as a slow spell of the machine commonly meets one window alone. Where
  arrivals are not Poisson's they are geometric means, as the rounds' loads differ.

| word | meaning |
|---|---|
| *near* | within 5 % of the best, by these rounds, or else by the scaled median of its intervals |
| *settled* | the first measurement from which on nine in ten were near, or the last if a near one is kept |
| *knew* | the first measurement from which on what would have been kept was near |

Where the rate varies, these are means over different loads. There the last rounds tell more than who settled
when. The medians over several seeds are judged. `--runs` names a file to which each run is added, so that the
same command goes on another day. All that are in it stand in one table, with intervals.

Configurations with a batch of one that differ in the delay alone count as one: the batch is full with its
first request, and no delay passes.

    scripts/bench triton-head-to-head [--models minilm efficientnet_lite0] [--arrivals poisson wiki TRACE.csv]
                                      [--seeds 0 1] [--agents ...] [--unguarded] [--knobs ...]
                                      [--runs FILE.jsonl] [--quick] [--out FOLDER]

The folder holds `results.md`, `summary.json`, `intervals.csv`, `latency.png`, every journal and every log of
the clients.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from baselines import AGENTS, NEED_HINDSIGHT, NEED_MACHINE, make_agent, unknown_agent
from baselines.exhaustive_sweep import ExhaustiveSweep
from envs.target_space import cores_of
from rrl.agent import Agent, Task
from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from rrl.tuning.settings import TuningSettings
from scripts.benchmarks.triton.head_to_head_report import (
    FIXED,
    Trial,
    WorkloadCase,
    client_ms,
    draw,
    table,
    write_intervals,
)
from scripts.benchmarks.triton.served import (
    COLD_S,
    KNOBS,
    LIGHT_MODEL,
    SMALL_KNOBS,
    TRITONS_DEFAULT,
    Traffic,
    Triton,
    capacity_per_s,
    load,
    requests_of,
    seen_in_turns,
    send_lag_p99_ms,
    triton,
)
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.figures.head_to_head import (
    Reached,
    by_workload,
    head_to_head_tables,
    kept_runs,
    reached,
    run_row,
)
from scripts.kept_rows import KeptRows, Row
from scripts.serving.client_log import Requests
from scripts.serving.in_turns import InTurns
from scripts.serving.served_agents import (
    AGAIN,
    DEFAULT,
    REACH,
    RULE,
    SWEEP,
    Served,
    TunedRun,
    Unguarded,
    tuned_in_the_loop,
)
from scripts.triton_server.repository import TENSORS
from serving_adapter.load.arrivals import Wiki, make_arrivals
from serving_adapter.options import fail, parse

SETTLE_S = 1.0
CONTENDER_RATIO = 1.25  # times the best's mean, by the first rounds: these are measured in as many more
FIRST_EXTRA_SEED = 100  # beyond the seeds of the first rounds
WARM_S, WARMING_SEED = 3.0, 2000  # of such arrivals, before each peer's
# Of a peer's measurements, those of its baseline and, at most, of its validation.
INTERVALS_BESIDE_SEARCH = TuningSettings.baseline + 4 * TuningSettings.validation
PEERS = (DEFAULT, AGAIN, RULE, "gp-bandit", "quick-search", "quick-search-all", "optuna-tpe")


@dataclass(frozen=True)
class Options:
    """Compares `rrl-tune` with its peers on a stock Triton."""

    models: tuple[str, ...] = ("minilm",)
    """minilm, efficientnet_lite0, burn."""
    arrivals: tuple[str, ...] = ("poisson",)
    """poisson, wiki or a trace FILE.csv, each with every model."""
    seeds: tuple[int, ...] = (0,)
    """Of arrivals and agents, each with every model and arrivals."""
    agents: tuple[str, ...] = PEERS
    """Peers beside the sweep and Triton's default."""
    measurements: int = 40
    """Of each peer, its baseline and validation included."""
    unguarded: bool = False
    """Nobody has a guard, a baseline or a validation: each agent keeps what it chose."""
    interval_s: float = 5.0
    """From one decision to the next."""
    rate: float | None = None
    """Requests per second (default: 0.75 of what the default configuration serves of a burst, 0.55 where the
    arrivals are not Poisson's)."""
    knobs: str = KNOBS
    """The grid, with Triton's default in it: a coarser one makes the sweep shorter."""
    rounds: int = 5
    """In which what the peers left is measured in turns, and as many more of what may be the best."""
    runs: Path | None = None
    """JSON Lines file to which runs are added. Those in it are not made again, and all are in the tables."""
    quick: bool = False
    """A light model, few and short intervals of a small grid: only to see that it works."""
    out: Path | None = None
    """Folder for journals, tables and picture (default runs/triton-head-to-head-TIME)."""

    def __post_init__(self) -> None:
        if not (self.seeds and self.models and self.arrivals) or DEFAULT not in self.agents:
            raise ValueError(f"give at least one model, arrivals and seed, and {DEFAULT} among the agents")
        if self.measurements <= INTERVALS_BESIDE_SEARCH:
            raise ValueError(
                f"--measurements must be at least {INTERVALS_BESIDE_SEARCH + 1}, got {self.measurements}"
            )
        if self.rounds < 1:
            raise ValueError(f"--rounds must be at least 1, got {self.rounds}")
        ConfigurationSpace.parse(self.knobs).number(TRITONS_DEFAULT)  # ValueError where it is not on the grid
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"--rate must be above 0 requests per second, got {self.rate:g}")
        if self.interval_s <= SETTLE_S:
            raise ValueError(f"--interval-s must be above {SETTLE_S:g}, got {self.interval_s:g}")
        for name in ("models", "arrivals", "seeds", "agents"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                raise ValueError(f"--{name} names one twice: {' '.join(map(str, given))}")
        for model in self.models:
            if model not in TENSORS:
                raise ValueError(f"unknown model {model!r}; known: {', '.join(TENSORS)}")
        known = [name for name in AGENTS if name not in (*NEED_HINDSIGHT, *NEED_MACHINE, SWEEP)] + [AGAIN]
        for name in self.agents:
            if name not in known:
                raise ValueError(unknown_agent(name, known))
        for arrivals in self.arrivals:
            make_arrivals(arrivals, self.rate or 1.0)  # ValueError where there are none


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


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    torch.set_num_threads(1)  # as in rrl-tune: the cores are the server's
    threadpool_limits(1)
    guarded = not options.unguarded
    plan = TrialPlan(
        options.measurements,
        options.interval_s,
        rounds=options.rounds,
        knobs=options.knobs,
        guarded=guarded,
    )
    if options.quick:
        options = replace(options, models=(LIGHT_MODEL,))
        plan = TrialPlan(
            14,
            1.2,
            settle_s=0.3,
            change_s=0.6,
            rounds=2,
            final_s=2.0,
            cold_s=0.5,
            warm_s=0.5,
            knobs=SMALL_KNOBS,
            guarded=guarded,
        )
    folder = options.out or Path("runs") / f"triton-head-to-head-{datetime.now():%Y%m%d-%H%M%S}"
    try:
        _check_new(folder, options)
    except ValueError as error:
        fail(str(error))
    setting = plan.setting() | {"asked_rate_per_s": options.rate}
    kept = kept_runs(options.runs)
    cases: list[WorkloadCase] = []
    for model in options.models:
        asked = product(options.arrivals, options.seeds)
        wanted = [
            each for each in asked if not _is_kept(kept, setting | _names(model, *each), options.agents)
        ]
        if len(wanted) < len(options.arrivals) * len(options.seeds):
            print(f"{model}: {options.runs} has the other runs; {len(wanted)} to make", flush=True)
        if not wanted:
            continue
        with triton(model) as server:
            for arrivals, seed in wanted:
                case = _case(server, arrivals, seed, options, plan, folder)
                kept.add(run_row(case.to_json(), setting | {"commit": commit_in_force()}))
                cases.append(case)
                _write(folder, cases, list(kept))
    print(head_to_head_tables(list(kept)))
    print(f"tables, picture, journals and clients' logs in {folder}")
    judged = [row for row in kept if _is_asked(row, setting, options)]
    return _outcome([reached(runs) for runs in by_workload(judged)])


def _names(model: str, arrivals: str, seed: int) -> dict[str, Any]:
    """What tells a run of one setting from others."""
    return {"model": model, "arrivals": Path(arrivals).stem, "seed": seed}


def _is_kept(kept: KeptRows, run: Row, agents: Sequence[str]) -> bool:
    """Whether a run with all of these peers was made."""
    return run in kept and set(agents) <= set(kept[run]["peers"])


def _is_asked(row: Row, setting: Row, options: Options) -> bool:
    named = row["model"] in options.models and row["arrivals"] in [
        Path(each).stem for each in options.arrivals
    ]
    return named and all(row[name] == value for name, value in setting.items())


def _check_new(folder: Path, options: Options) -> None:
    """ValueError for what would end the benchmark after hours: two traces of one name, an earlier run's."""
    names = [Path(arrivals).stem for arrivals in options.arrivals]
    if len(set(names)) < len(names):
        raise ValueError(f"arrivals must have different names, got {', '.join(names)}")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name another --out")


def _case(
    server: Triton, arrivals: str, seed: int, options: Options, plan: TrialPlan, folder: Path
) -> WorkloadCase:
    space = ConfigurationSpace.parse(plan.knobs)
    traffic = _traffic(server, arrivals, seed, options.rate, plan, len(space))
    folder = folder / f"{server.model}-{traffic.name}-{seed}"
    served = Served(server.target, space, TRITONS_DEFAULT, seed, plan.interval_s, plan.settle_s, folder)
    print(
        f"{server.model}, {traffic.name}, seed {seed}: {traffic.rate_per_s:g}/s, "
        f"{len(space)} configurations, a tuning period of {plan.period_s:.0f} s",
        flush=True,
    )
    trials = {name: _trial(name, served, server, traffic, plan) for name in _turned(options.agents, seed)}
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
    latency_s = requests.first(plan.period_s).sum_s
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


def _write(folder: Path, cases: Sequence[WorkloadCase], kept: Sequence[Row]) -> None:
    tables = [*map(table, cases), head_to_head_tables(kept)]
    (folder / "results.md").write_text("\n\n".join(tables) + "\n", encoding="utf-8")
    values = [case.to_json() for case in cases]
    (folder / "summary.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    write_intervals(folder / "intervals.csv", cases)
    draw(folder / "latency.png", cases)


def _outcome(found: Sequence[dict[str, Reached]]) -> dict[str, Any]:
    """The default agent's worst over the workloads, beside the best peer's there."""
    holds = {
        "final_mean": all(r[DEFAULT].mean_ratio <= REACH for r in found),
        "final_p95": all(r[DEFAULT].p95_ratio <= REACH for r in found),
        "measurements": all(_lowest(r, lambda x: x.settled) for r in found)
        and all(_lowest(r, lambda x: x.knew) for r in found),
        "latency_sum": all(_lowest(r, lambda x: x.latency) for r in found),
        "over_limit": all(_lowest(r, lambda x: x.over_limit) or not r[DEFAULT].over_limit for r in found),
    }
    worst = max(found, key=lambda r: r[DEFAULT].mean_ratio)
    return {
        "value": round(worst[DEFAULT].mean_ratio, 3),
        "unit": "final mean latency over the best configuration's",
        "peer": round(min(r.mean_ratio for r in _peers(worst)), 3),
        "ratio": round(max(r[DEFAULT].p95_ratio for r in found), 3),
        "reach": REACH,
        "holds": all(holds.values()),
        "holds_by": holds,
        "latency_over_rule": _largest_ratio(found, DEFAULT, RULE),
        "latency_again_over_first": _largest_ratio(found, AGAIN, DEFAULT),
    }


def _peers(found: Mapping[str, Reached]) -> list[Reached]:
    """All but the default agent's two runs."""
    return [r for name, r in found.items() if name not in (DEFAULT, AGAIN)]


def _lowest(found: Mapping[str, Reached], figure: Callable[[Reached], float]) -> bool:
    """Whether the default agent's figure is below each peer's."""
    return all(figure(found[DEFAULT]) < figure(r) for r in _peers(found))


def _largest_ratio(found: Sequence[Mapping[str, Reached]], name: str, other: str) -> float | None:
    """Latency in the tuning period over another peer's, the largest of the workloads; None if neither ran."""
    ratios = [r[name].latency / r[other].latency for r in found if name in r and other in r]
    return round(max(ratios), 3) if ratios else None
