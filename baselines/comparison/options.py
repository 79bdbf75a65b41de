"""The options of `rrl-compare`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from baselines import DEFAULT_AGENT
from baselines.comparison.ray_workers import executor
from baselines.comparison.settings import ComparisonSettings
from baselines.comparison.workers import JobExecutor


@dataclass(frozen=True)
class CompareOptions:
    """Compares agents on simulated machines: every agent on every machine with every seed."""

    machine: str = ComparisonSettings.machine
    """FILE.npz[,FILE.npz] that rrl-profile measured, or SOURCE:SEEDS of invented ones, e.g. family:1000-1019.
    SOURCE is family, usl, roofline or profiled. No agent was tuned on seeds from 1000 on."""
    truth: str = ComparisonSettings.truth
    """How the machine departs from the queueing model: model (not at all), processor-sharing, variation,
    backlog, batches, batching, two-sizes, slowdown."""
    workload: str = ComparisonSettings.workload
    """stationary, dynamic, wiki, script (the loads of RRL's own runs) or a trace FILE.csv, spread over the
    decisions. With minutes:wiki or minutes:FILE.csv each decision is a minute of the day or of the trace."""
    rate: float = ComparisonSettings.rate_per_s
    """Mean arrivals per second, over time."""
    agents: str = f"{DEFAULT_AGENT},rrl-paper,random"
    """Names with commas between; the oracle is always added, as the figures are relative to it."""
    seeds: int = ComparisonSettings.seeds
    """Runs of every agent on every machine."""
    decisions: int = ComparisonSettings.decisions
    """Of a run."""
    requests_per_interval: int = ComparisonSettings.requests_per_interval
    """Length of an interval."""
    objective: str = ComparisonSettings.objective
    """latency, strict-slo, least-resources or goodput."""
    slo_p95_ms: float | None = None
    """Limit on the p95 latency, in ms."""
    knobs: tuple[str, ...] = ()
    """E.g. instances=1:4,max_batch_size=1,2,4; without it the grid of RRL's paper, or one with batches."""
    cores: int | None = None
    """Of the machines, where the agents are to be told. Machines of files are simulated with as many."""
    out: Path = Path("runs/comparison")
    """Folder of the results. The same command goes on with what is there."""
    processes: int | None = None
    """How many runs at once (default: one a core, or one a CPU of the cluster)."""
    ray: str = ""
    """HOST:PORT of the head of a Ray cluster, whose nodes then do the runs."""

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"--processes must be at least 1, got {self.processes}")

    def settings(self) -> ComparisonSettings:
        names = [name.strip() for name in self.agents.split(",")]
        agents = tuple(name for name in names if name)
        return ComparisonSettings(
            agents=agents if "oracle" in agents or not agents else (*agents, "oracle"),
            machine=self.machine,
            truth=self.truth,
            workload=self.workload,
            rate_per_s=self.rate,
            seeds=self.seeds,
            decisions=self.decisions,
            requests_per_interval=self.requests_per_interval,
            objective=self.objective,
            slo_p95_ms=self.slo_p95_ms,
            knobs=",".join(self.knobs),
            cores=self.cores,
        )

    def executor(self) -> JobExecutor:
        return executor(self.ray, self.processes)
