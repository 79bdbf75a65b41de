"""`ray-scale`: how decisions, learning and regret grow from 10 to 1,000 nodes, on simulated clusters.

    scripts/bench ray-scale [--nodes 10 100 1000] [--machines family:1003-1012] [--agents guided random]
                            [--gap-shares 0.05 0] [--processes 2]

The clusters are those of `envs.scenarios.cluster`: nodes of unequal speed that drift, fail and come back.

| column | over machines | meaning |
|---|---|---|
| ms | median, p99 | CPU time of a decision and its learning, with the telemetry of all nodes merged |
| merged | median | CPU time of that merging alone, in ms |
| soon | median | decisions until within 10 % of the best, and staying (`baselines.comparison.summary`) |
| first ten | geometric mean | expected latency of the first ten decisions, over the best at the time |
| after 30 | median, worst | that from decision 30 on |
| regret | mean | latency above the best's, summed over all decisions, in intervals at the best |
| taught nothing | mean | share of the intervals that are a gap, as too much of the capacity came or went |

`--gap-shares 0` takes any failure for a gap, which few intervals of a large cluster are without.

Seeds from 1000 on are for judging, once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean, mean, median
from typing import Any, NamedTuple

import numpy as np

from baselines import AGENTS, make_agent
from baselines.comparison.run import TimedAgent, compile_kernels
from baselines.comparison.summary import decisions_until_within
from baselines.comparison.workers import JobExecutor, Workers
from baselines.one_thread import use_one_thread
from envs.scenarios.cluster import ClusterNature, SimulatedCluster
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import RATE_PER_S, scenarios
from envs.scenarios.scenario import Scenario
from rrl.agent import Task, live
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.benchmarks.tuner.commit import commit_in_force
from scripts.serving.served_agents import DEFAULT, RULE
from serving_adapter.flags.parsing import parse

TRUTH = "backlog"  # What waits at an interval's end waits into the next, as on a server.
RATES_PER_S = RATE_PER_S * np.geomspace(0.7, 1.7, 7)
"""Where expected costs are simulated. Between them they are interpolated in logarithms."""

FIRST, WARM_UP = 10, 30  # decisions
LONGEST_DECISION_MS, LARGEST_RATIO = 50.0, 1.05
MANY = 1000  # nodes, to which the limits apply
DEFAULT_GAP = ClusterNature.gap_share


@dataclass(frozen=True)
class Options:
    """How decisions, learning and regret grow with the nodes of simulated clusters."""

    nodes: tuple[int, ...] = (10, 100, 1000)
    """Of the clusters."""
    machines: str = "family:1003-1012"
    """Of a node, as rrl-compare takes them; each is a run of its own."""
    agents: tuple[str, ...] = (DEFAULT, RULE)
    """Which agents."""
    gap_shares: tuple[float, ...] = (DEFAULT_GAP,)
    """Shares of the capacity: an interval before which more of it came or went teaches nothing."""
    knobs: str = "instances=1:10,intra_op_threads=1,2,4,8"
    """Of each node."""
    decisions: int = 60
    """Of a run."""
    processes: int = 1
    """How many runs at once."""

    def __post_init__(self) -> None:
        if self.decisions <= WARM_UP:
            raise ValueError(f"--decisions must be above {WARM_UP}, got {self.decisions}")
        for name in self.agents:
            if name not in AGENTS:
                raise ValueError(f"unknown agent {name!r}; known: {', '.join(AGENTS)}")
        for nodes in self.nodes:
            ClusterNature(nodes=nodes)


class LivedRun(NamedTuple):
    """What a run was like; each array is (decisions,)."""

    chosen: np.ndarray  # expected mean latency of the configuration in force, in ms
    best: np.ndarray  # that of the best one
    decide_ms: np.ndarray
    merge_ms: np.ndarray
    is_gap: np.ndarray


@dataclass(frozen=True, eq=False)
class CostsJob:
    """(rates, size) expected costs of a machine at `RATES_PER_S`."""

    scenario: Scenario
    space: ConfigurationSpace

    def __call__(self) -> np.ndarray:
        expected = ExpectedCosts(self.scenario, self.space, MeanLatency())
        return np.stack([expected.costs(float(rate)) for rate in RATES_PER_S])

    def __str__(self) -> str:
        return f"expected costs on {self.scenario.name}"


@dataclass(frozen=True, eq=False)
class ScaleJob:
    """Lives one run: an agent on a cluster of this machine's nodes."""

    agent: str
    scenario: Scenario
    space: ConfigurationSpace
    nature: ClusterNature
    decisions: int
    log_costs: np.ndarray  # (rates, size)

    def __call__(self) -> LivedRun:
        compile_kernels()
        use_one_thread()  # CPU time of threads that wait for work is none of a decision
        scenario = self.scenario
        env = SimulatedCluster(scenario.machine, self.space, RATE_PER_S, scenario.cores, self.nature)
        cores = scenario.cores if self.agent == RULE else None
        rows = []
        with closing(make_agent(self.agent, Task(self.space, MeanLatency(), cores))) as agent:
            timed = TimedAgent(agent)
            for transition in live(timed, env, self.decisions, seed=0):
                number = self.space.number_of_action(transition.action)
                costs = env.slowness * self.costs(env.effective_rate_per_s)
                merge_ms = 1e3 * env.merge_s
                decide_ms, gap = 1e3 * timed.decide_s + merge_ms, bool(transition.measurement.gap)
                rows.append((costs[number], costs.min(), decide_ms, merge_ms, gap))
        return LivedRun(*(np.array(column) for column in zip(*rows, strict=True)))

    def costs(self, rate_per_s: float) -> np.ndarray:
        """(size,) expected mean latency of the reference server; at the nearest rate beyond the ends."""
        place = float(np.interp(np.log(rate_per_s), np.log(RATES_PER_S), np.arange(len(RATES_PER_S))))
        low = min(int(place), len(RATES_PER_S) - 2)
        share = place - low
        return np.exp((1 - share) * self.log_costs[low] + share * self.log_costs[low + 1])

    def __str__(self) -> str:
        return f"{self.agent} on {self.nature.nodes} nodes of {self.scenario.name}"


class ScaleLine(NamedTuple):
    """One line of the table: an agent on clusters of a size."""

    decide_median_ms: float
    decide_p99_ms: float
    merge_median_ms: float
    soon: float
    first_ten: float
    after_30_median: float
    after_30_worst: float
    regret: float
    gaps: float

    @classmethod
    def of(cls, runs: Sequence[LivedRun]) -> ScaleLine:
        decide_ms = np.concatenate([run.decide_ms for run in runs])
        after = [ratio(run, slice(WARM_UP, None)) for run in runs]
        return cls(
            decide_median_ms=float(np.median(decide_ms)),
            decide_p99_ms=float(np.quantile(decide_ms, 0.99)),
            merge_median_ms=float(np.median(np.concatenate([run.merge_ms for run in runs]))),
            soon=median(decisions_until_within(run.chosen / run.best) for run in runs),
            first_ten=geometric_mean(ratio(run, slice(FIRST)) for run in runs),
            after_30_median=median(after),
            after_30_worst=max(after),
            regret=mean(float((run.chosen / run.best - 1).sum()) for run in runs),
            gaps=mean(float(run.is_gap.mean()) for run in runs),
        )


def ratio(run: LivedRun, which: slice) -> float:
    return float(run.chosen[which].sum() / run.best[which].sum())


def run() -> dict[str, Any]:
    options = parse(Options, sys.argv[2:])
    print(f"commit {commit_in_force()}, {options.machines}, {options.decisions} decisions")
    with Workers(options.processes) as workers:
        lines = lived(options, workers)
    print(HEAD)
    for (agent, nodes, gap_share), line in lines.items():
        print(line_of(agent, nodes, gap_share, line))
    ours = lines.get((DEFAULT, MANY, DEFAULT_GAP))
    holds = (
        ours is not None
        and ours.decide_p99_ms <= LONGEST_DECISION_MS
        and ours.after_30_worst <= LARGEST_RATIO
    )
    peer = lines.get((RULE, MANY, DEFAULT_GAP))
    return {
        "value": ours and round(ours.after_30_worst, 4),
        "unit": f"expected latency over the best's after 30 decisions, {MANY} nodes, worst machine",
        "peer": peer and round(peer.after_30_worst, 4),
        "ratio": ours and peer and round(ours.after_30_worst / peer.after_30_worst, 4),
        "reach": f"at most {LARGEST_RATIO}, and decisions of at most {LONGEST_DECISION_MS:g} ms (p99)",
        "holds": holds,
    }


def lived(options: Options, workers: JobExecutor) -> dict[tuple[str, int, float], ScaleLine]:
    """A line for each agent, number of nodes and share of a gap."""
    machines = scenarios(options.machines, TRUTH)
    space = ConfigurationSpace.parse(options.knobs)
    costs: dict[CostsJob, np.ndarray] = {}
    workers.run([CostsJob(each, space) for each in machines], costs.__setitem__)
    by_name = {job.scenario.name: np.log(found) for job, found in costs.items()}
    keys = list(product(options.agents, options.nodes, options.gap_shares))
    jobs = {
        ScaleJob(
            agent,
            each,
            space,
            ClusterNature(nodes=nodes, gap_share=gap_share),
            options.decisions,
            by_name[each.name],
        ): (agent, nodes, gap_share)
        for agent, nodes, gap_share in keys
        for each in machines
    }
    print("expected costs are known", file=sys.stderr)
    runs: dict[tuple[str, int, float], list[LivedRun]] = {key: [] for key in keys}

    def done(job: ScaleJob, run: LivedRun) -> None:
        runs[jobs[job]].append(run)
        print(f"{job}: {ratio(run, slice(None)):.3f} x the best", file=sys.stderr)

    largest_first = sorted(jobs, key=lambda job: -job.nature.nodes)
    workers.run(largest_first, done)
    return {key: ScaleLine.of(each) for key, each in runs.items()}


HEAD = (
    f"{'agent':12} nodes   gap above  ms            merged  soon  first ten  after 30  worst   "
    "regret  taught nothing"
)


def line_of(agent: str, nodes: int, gap_share: float, line: ScaleLine) -> str:
    """A row of the table."""
    return (
        f"{agent:12} {nodes:<7} {gap_share:<10.0%} {line.decide_median_ms:5.1f} / {line.decide_p99_ms:<5.1f}"
        f" {line.merge_median_ms:7.2f} {line.soon:5g} {line.first_ten:10.3f} {line.after_30_median:9.4f}"
        f" {line.after_30_worst:7.4f} {line.regret:8.2f} {line.gaps:10.0%}"
    )
