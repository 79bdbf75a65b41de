"""`failing`: what each rule about failures brings, on simulated servers where requests fail.

The servers are those of `failing_servers`. Each is tuned with all rules, and with one setting of the guard
changed, under the same arrivals. Everybody's guard expects by a belief of its own, as in `rrl-tune`.

| column | over runs | meaning |
|---|---|---|
| failed | mean | share of the requests that failed, in lost intervals too |
| tries | mean | intervals in which a choice of the agent failed requests, or lost the server |
| lost | mean | intervals in which the server restarted |
| refused | mean | proposals that the guard refused |
| keeps | count | runs that keep a configuration that fails, or that the server is lost under |
| kept | geometric mean | expected latency of what is kept, over that of the best that does not fail |
| felt | geometric mean | what users felt in the whole run, over the best |
| of all rules' | geometric mean | felt, over that of the runs with all rules |

*Felt* sums the latencies of all answers, and ten times the best's for a failed request. Where the server
restarted, an interval's requests have failed. The sum is over what all would have taken with the best.
Behind ± are two standard errors over servers, each the mean of its runs.

    scripts/bench failing [--seeds 0-9] [--kinds memory crashes] [--agents guided random] [--repeats 2]
                          [--changes chance_of_losses=0 watch_s=1e9]

Seeds from 1000 on are for judging, once.
"""

from __future__ import annotations

import ast
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import geometric_mean, mean
from typing import Any, NamedTuple

from baselines import make_agent
from baselines.comparison.workers import Workers
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import listed_seeds
from envs.scenarios.scenario import Scenario
from envs.scenarios.small_machines import CORES
from rrl.agent import Task
from rrl.belief.belief import Belief
from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.objective import FAILURE_WEIGHT, MeanLatency
from rrl.records import Header, Record
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.benchmarks.tuner.simulated.failing_servers import (
    KINDS,
    REQUESTS_PER_INTERVAL,
    SPACE,
    FailingServer,
    Kind,
)
from scripts.benchmarks.tuner.simulated.paired import geometric_mean_of
from scripts.benchmarks.tuner.simulated.tuned_run import tuned
from scripts.serving.served_agents import DEFAULT
from serving_adapter.flags.parsing import parse

ALL_RULES = "all rules"
CHANGES = ("chance_of_losses=0", "watch_s=1e9")
HEAD = (
    f"{'fails':9} {'agent':9} {'changed to':19} failed  tries   lost  refused  keeps   kept    felt"
    "  of all rules'"
)


@dataclass(frozen=True)
class Options:
    """What each rule about failures brings, on simulated servers where requests fail."""

    seeds: str = "0-9"
    """Of the servers."""
    kinds: tuple[Kind, ...] = KINDS
    """What fails."""
    agents: tuple[str, ...] = (DEFAULT, "gp-bandit", "random")
    """Which agents."""
    changes: tuple[str, ...] = CHANGES
    """Of the guard's settings, NAME=VALUE each, one at a time."""
    repeats: int = 2
    """Runs on each server, under other arrivals."""
    intervals: int = 60
    """Of a run."""
    processes: int = 1
    """How many runs at once."""

    def __post_init__(self) -> None:
        if self.repeats < 1 or self.intervals < 1:
            raise ValueError("--repeats and --intervals must be at least 1")
        listed_seeds(f"--seeds {self.seeds}", self.seeds)
        for change in self.changes:
            guard_settings(change)

    @property
    def servers(self) -> list[int]:
        return listed_seeds(self.seeds, self.seeds)


class FailingRun(NamedTuple):
    """What came of one run; see the columns."""

    failed: float
    tries: int
    lost: int
    refused: int
    keeps: bool
    kept: float
    felt: float

    @classmethod
    def of(cls, server: FailingServer, records: Sequence[Record], kept: int) -> FailingRun:
        """`kept` is the number of the configuration that the run keeps."""
        expected_ms, avoid = _expected_ms(server), server.faults.to_avoid
        best_ms = float(expected_ms[~avoid].min())
        seen = [each.measurement for each in records]
        failed, completed = sum(m.failures for m in seen), sum(m.completions for m in seen)
        lost = sum(bool(m.gap) for m in seen)
        all_failed = failed + REQUESTS_PER_INTERVAL * lost
        requests = completed + all_failed
        latency_ms = sum(m.completions * m.latency.mean_ms for m in seen if m.completions)
        felt_ms = latency_ms + FAILURE_WEIGHT * best_ms * all_failed
        return cls(
            failed=all_failed / requests,
            tries=sum(each.decision == "agent" and _harmed(each) for each in records),
            lost=lost,
            refused=sum(each.decision == "refused" for each in records),
            keeps=bool(avoid[kept]),
            kept=float(expected_ms[kept]) / best_ms,
            felt=felt_ms / (best_ms * requests),
        )


def guard_settings(change: str) -> GuardSettings:
    """The guard's settings, one of them changed; ValueError where it is no setting or no value."""
    if change == ALL_RULES:
        return GuardSettings()
    name, _, value = change.partition("=")
    if name not in {field.name for field in fields(GuardSettings)}:
        raise ValueError(f"--changes: {change!r} sets nothing that the guard knows; give NAME=VALUE")
    try:
        return replace(GuardSettings(), **{name: ast.literal_eval(value)})
    except (ValueError, SyntaxError):
        raise ValueError(f"--changes: {value!r} is no value for {name}; give a number") from None


def episode(
    kind: Kind, agent_name: str, change: str, intervals: int, seed: int, repeat: int = 0
) -> FailingRun:
    """One run on one server, in `rrl-tune`'s loop."""
    server = FailingServer.drawn(kind, seed, intervals)
    env, agent_seed = server.environment(repeat), server.agent_seed(repeat)
    task = Task(SPACE, env.objective, CORES)
    agent = make_agent(agent_name, task, agent_seed)
    belief = Belief(SPACE, env.objective, CORES)
    guard = Guard(env.start, guard_settings(change), expectation=belief)
    start = SPACE.configuration(env.start)
    about = (SPACE, "latency", None, agent_name, agent_seed, "simulated", kind, start, start, 1.0, "")
    kept, records = tuned(env, agent, guard, Header(*about), intervals)
    return FailingRun.of(server, records, kept.number)


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    about = f"seeds {options.seeds}, {options.repeats} runs each, {options.intervals} intervals"
    print(f"commit {commit_in_force()}, {about}\n{HEAD}")
    of_default: list[FailingRun] = []
    with Workers(options.processes) as workers:
        for kind in options.kinds:
            for agent in options.agents:
                usual = _runs(workers, options, kind, agent, ALL_RULES)
                print(line_of(kind, agent, ALL_RULES, usual, usual, options.repeats), flush=True)
                of_default += usual if agent == DEFAULT else []
                for change in options.changes:
                    runs = _runs(workers, options, kind, agent, change)
                    print(line_of(kind, agent, change, runs, usual, options.repeats), flush=True)
    keeps = sum(each.keeps for each in of_default)
    return {
        "value": round(geometric_mean(each.felt for each in of_default), 3) if of_default else None,
        "unit": "what users feel of the default agent's runs, over the best; geometric mean",
        "reach": "none keeps a configuration that fails",
        "holds": bool(of_default) and not keeps,
        "keeps": keeps,
    }


def line_of(
    kind: Kind,
    agent: str,
    change: str,
    runs: Sequence[FailingRun],
    usual: Sequence[FailingRun],
    repeats: int,
) -> str:
    """A row of the table, of so many runs on each server; `usual` are the same runs with all rules."""
    of_runs = [math.log(a.felt / b.felt) for a, b in zip(runs, usual, strict=True)]
    logs = [mean(of_runs[k : k + repeats]) for k in range(0, len(of_runs), repeats)]  # by server
    ratio, error = geometric_mean_of(logs)
    means = [mean(values) for values in zip(*(each[:4] for each in runs), strict=True)]
    failed, tries, lost, refused = means
    return (
        f"{kind:9} {agent:9} {change:19} {failed:6.2%} {tries:6.1f} {lost:6.1f} {refused:8.1f}"
        f" {sum(each.keeps for each in runs):>4}/{len(runs):<3}"
        f" {geometric_mean(each.kept for each in runs):6.3f}"
        f" {geometric_mean(each.felt for each in runs):7.3f}"
        f"  {ratio:.3f} ± {error:.3f}"
    )


def _runs(workers: Workers, options: Options, kind: Kind, agent: str, change: str) -> list[FailingRun]:
    """In the order of servers and repeats."""
    pairs = [(seed, repeat) for seed in options.servers for repeat in range(options.repeats)]
    jobs = [partial(episode, kind, agent, change, options.intervals, *pair) for pair in pairs]
    return workers.answers(jobs)


def _expected_ms(server: FailingServer) -> Any:
    """(size,) mean latency by configuration, if nothing fails."""
    scenario = Scenario(server.machine, "failing", carry_backlog=True, cores=CORES)
    costs = ExpectedCosts(scenario, SPACE, MeanLatency(), REQUESTS_PER_INTERVAL)
    return costs.costs(server.rate_per_s)


def _harmed(record: Record) -> bool:
    return bool(record.measurement.gap) or record.failures > GuardSettings.failures
