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

*Harm* is what the clients saw of every request of this period, changes and settling included. In the sum of
latencies a failed request counts as the longest wait for an answer. A request is over the limit if it took
longer than 3 times the best's p95, or failed.

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

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from baselines import AGENTS, NEED_HINDSIGHT, NEED_MACHINE, unknown_agent
from rrl.space import ConfigurationSpace
from scripts.benchmarks.triton.head_to_head_report import WorkloadCase, draw, table, write_intervals
from scripts.benchmarks.triton.head_to_head_trials import (
    INTERVALS_BESIDE_SEARCH,
    SETTLE_S,
    TrialPlan,
    workload_case,
)
from scripts.benchmarks.triton.served import KNOBS, LIGHT_MODEL, SMALL_KNOBS, TRITONS_DEFAULT, triton
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
from scripts.serving.served_agents import AGAIN, DEFAULT, REACH, RULE, SWEEP
from scripts.triton_server.repository import TENSORS
from serving_adapter.flags.parsing import fail, parse
from serving_adapter.load.arrivals import make_arrivals

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
                case = workload_case(server, arrivals, seed, options.agents, plan, folder, options.rate)
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
