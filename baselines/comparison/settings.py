"""What a comparison is: which agents meet which machines under which load, for how long."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baselines import AGENTS, AgentFactory, unknown_agent
from envs.scenarios.families import RATE_PER_S, scenarios, space_of
from envs.scenarios.scenario import Scenario
from envs.scenarios.workloads import Workload, make_workload, trace_of
from rrl.objective import Objective, check_simulated, make_objective
from rrl.space import ConfigurationSpace


@dataclass(frozen=True)
class ComparisonSettings:
    """Agents x machines x seeds; ValueError with one sentence for a value that cannot be used."""

    agents: tuple[str, ...]
    machine: str = "family:1000-1004"  # or machine files, FILE.npz[,FILE.npz]
    truth: str = "model"  # one of envs.scenarios.families.TRUTHS: how the server departs from the model
    workload: str = "stationary"  # stationary, dynamic, wiki or TRACE.csv
    rate_per_s: float = RATE_PER_S  # mean over time
    seeds: int = 1  # runs of every agent on every machine
    decisions: int = 100  # in a run
    requests_per_interval: int = 100
    objective: str = "latency"
    slo_p95_ms: float | None = None
    knobs: str = ""  # as ConfigurationSpace.parse reads them; empty: `default_space`
    cores: int | None = None  # what the agents are told of each machine; machines of files have as many
    tell_cores: bool = False  # tells the agents each machine's own

    def __post_init__(self) -> None:
        if not self.agents:
            raise ValueError(f"name at least one agent; known: {', '.join(AGENTS)}")
        repeated = {name for name in self.agents if self.agents.count(name) > 1}
        if repeated:
            raise ValueError(f"each agent may be named once, got {', '.join(sorted(repeated))} twice")
        for name in ("seeds", "decisions", "requests_per_interval"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.cores is not None and self.cores < 1:
            raise ValueError(f"cores must be at least 1, got {self.cores}")
        check_simulated(self.objective)
        make_objective(self.objective, self.slo_p95_ms)
        self.make_workload()
        if self.knobs:
            ConfigurationSpace.parse(self.knobs)

    def check_agents(self, known: Mapping[str, AgentFactory]) -> None:
        for name in self.agents:
            if name not in known:
                raise ValueError(unknown_agent(name, known))

    def make_objective(self) -> Objective:
        return make_objective(self.objective, self.slo_p95_ms)

    def make_workload(self) -> Workload:
        return make_workload(self.workload, self.rate_per_s, self.requests_per_interval)

    def make_scenarios(self) -> list[Scenario]:
        """The machines in order; ValueError unless each has a name of its own and slows down in time."""
        found = scenarios(self.machine, self.truth, self.cores)
        names = [scenario.name for scenario in found]
        repeated = {name for name in names if names.count(name) > 1}
        if repeated:
            raise ValueError(f"each machine needs a name of its own, got {', '.join(sorted(repeated))} twice")
        for scenario in found:
            if scenario.slowdown is not None and scenario.slowdown[0] >= self.decisions:
                raise ValueError(
                    f"machine {scenario.name} slows down at decision {scenario.slowdown[0]}, "
                    f"give --decisions above that, got {self.decisions}"
                )
        return found

    def make_space(self, found: Sequence[Scenario]) -> ConfigurationSpace:
        return ConfigurationSpace.parse(self.knobs) if self.knobs else default_space(found, self.truth)

    def bench(self, found: Sequence[Scenario]) -> dict[str, Any]:
        """What two comparisons must share for their runs to be comparable: all but agents and seeds."""
        values = dataclasses.asdict(self)
        del values["agents"], values["seeds"]
        trace = trace_of(self.workload)
        if trace is not None:
            values["trace"] = {"crc32": zlib.crc32(trace.read_bytes())}
        tables = {s.name: zlib.crc32(s.machine.service_time_s.tobytes()) for s in found}
        return values | {"service_time_tables": tables}


def default_space(found: Sequence[Scenario], truth: str) -> ConfigurationSpace:
    """The grid that suits the truth, without values beyond any machine's table."""
    grids = [space_of(truth, scenario.machine).knobs for scenario in found]
    return ConfigurationSpace(
        tuple(min(knobs, key=lambda knob: len(knob.values)) for knobs in zip(*grids, strict=True))
    )
