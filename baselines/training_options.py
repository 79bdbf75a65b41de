"""The options of `rrl-train`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from baselines import AGENTS, DEFAULT_AGENT, NEED_HINDSIGHT, NEED_MACHINE, unknown_agent
from envs.scenarios.families import RATE_PER_S
from rrl.agent_names import present_name
from rrl.objective import check_simulated, make_objective
from rrl.space import ConfigurationSpace


@dataclass(frozen=True)
class OfflineTrainingOptions:
    """Trains an agent offline in simulation; `rrl-tune --agent-from` starts from what it learned.

    With `--prior` it learns instead what the default agent expects of service times, over many machines.
    With `--reference-table` it fills SERF's table instead.
    """

    machine: str = ""
    """The machine to simulate: a file of rrl-profile, or an invented one, such as family:SEED."""
    out: Path = Path("runs/trained")
    """Folder for the journal of the training."""
    agent: str = DEFAULT_AGENT
    """The agent to train, one of those that rrl-tune knows."""
    knobs: tuple[str, ...] = ()
    """What to tune, e.g. instances=1:4,max_batch_size=1,2,4,8; without it, rrl-compare's grid."""
    workload: str = "stationary"
    """The load to train under: stationary, dynamic, wiki or TRACE.csv (the whole trace, spread over the
    decisions)."""
    rate: float = RATE_PER_S
    """Its mean arrival rate over time, requests per second."""
    decisions: int = 300
    """Intervals to train for."""
    requests_per_interval: int = 100
    """Length of an interval."""
    objective: str = "latency"
    """latency, strict-slo, least-resources or goodput."""
    slo_p95_ms: float | None = None
    """Limit on the p95 latency."""
    seed: int = 0
    """Of the agent, the load and the arrivals."""
    prior: Path | None = None
    """Trains no agent, but writes a prior of service times to this file, learned over some 1,400 invented
    machines."""
    machines: str = ""
    """FILE.npz,FILE.npz[,...] of rrl-profile, from which --prior learns a kind of its own."""
    cores: tuple[int, ...] = ()
    """Of those machines: one number for all, or one each (default: the most threads or instances in its
    table). With --reference-table: the most instances times intra-op threads (default: no bound)."""
    reference_table: Path | None = None
    """Trains no agent, but writes to this file what SERF would do on --machine at every load level."""

    def __post_init__(self) -> None:
        check_simulated(self.objective)
        self._check_prior()
        make_objective(self.objective, self.slo_p95_ms)
        if present_name(self.agent) not in AGENTS:
            raise ValueError(unknown_agent(self.agent, _trainable()))
        if self.agent in NEED_MACHINE:
            raise ValueError(
                f"{self.agent} needs no training, it schedules by the machine file: "
                f"use rrl-tune --agent {self.agent} --machine FILE"
            )
        if self.decisions < 1:
            raise ValueError(f"--decisions must be at least 1, got {self.decisions}")
        if self.requests_per_interval < 1:
            raise ValueError(f"--requests-per-interval must be at least 1, got {self.requests_per_interval}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"--rate must be above 0 requests per second, got {self.rate:g}")
        if self.seed < 0:
            raise ValueError(f"--seed must be at least 0, got {self.seed}")
        if self.knobs:
            ConfigurationSpace.parse(self.knobs)

    def _check_prior(self) -> None:
        if bool(self.machine) == (self.prior is not None):
            raise ValueError("give either --machine, to train an agent on it, or --prior FILE")
        if self.reference_table is not None:
            if self.prior is not None or len(self.cores) > 1:
                raise ValueError("--reference-table goes with --machine and at most one number of --cores")
        elif self.prior is None and (self.machines or self.cores):
            raise ValueError("--machines and --cores go with --prior FILE; an agent is trained on --machine")
        elif self.cores and not self.machines:
            raise ValueError("--cores are those of --machines: give these too")
        if min(self.cores, default=1) < 1:
            raise ValueError(f"--cores must be at least 1, got {min(self.cores)}")


def _trainable() -> list[str]:
    return [name for name in AGENTS if name not in (*NEED_HINDSIGHT, *NEED_MACHINE)]
