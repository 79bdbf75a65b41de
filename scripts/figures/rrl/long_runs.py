"""The long runs of RRL's Figs. 12 to 15: each is made once, kept in a file, and shared by the figures.

| the paper | here |
|---|---|
| some 2,000 minutes | 2,000 decisions, each an interval of 100 requests (stand-in of a GPU: 200) |
| WiKi: Wikipedia's traffic | a minute of the real trace for each decision, from a random one on |
| | without the trace: `minutes:wiki`, a synthetic load of the same shape |
| Dynamic: periods with random means | `script`: the five loads of the authors' script, 400 decisions each |

One run is one agent on one machine. Every run has a machine of its own, a start of its own, and where it
begins in the trace. So an interval covers machines as well as chance. The machines are `family:1060` and
those after it. None of them had a say in the choice of any setting.

A panel is compared machine by machine, each in a folder of its own below `kept`. A run that is there with the
same settings is not made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from baselines.comparison import ComparisonSettings, run_comparison
from baselines.comparison.endings import told_in_a_sentence, warn
from baselines.comparison.progress import PlainProgress
from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import RATE_PER_S, scenarios
from envs.simulated import PAPER_SPACE
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from scripts.figures.rrl.contenders import Contender
from serving_adapter import resources

FIRST_MACHINE = 1060
SMALL_SPACE = "instances=1:10,inter_op_threads=1:10,intra_op_threads=10"
"""Fig. 4's two knobs, with 10 intra-op threads."""
WIKI, DYNAMIC = "WiKi", "Dynamic"


@dataclass(frozen=True)
class LongRunsSetting:
    """How long runs are, and where they are kept."""

    kept: Path = Path("runs/kept")
    wiki_trace: Path | None = None  # requests by the minute; None: the synthetic load
    machines: tuple[Path, ...] = ()  # machine files, for the figure of served models
    panels: tuple[str, ...] = ()  # of Fig. 12, as PROCESS:WORKLOAD; none: all
    decisions: int = 2000
    knobs: str = PAPER_SPACE
    small_knobs: str = SMALL_SPACE
    gpu_knobs: str | None = None  # None: those of Fig. 13

    def workload(self, process: str) -> str:
        """The load as `rrl-compare --workload` takes it."""
        if process == DYNAMIC:
            return "script"
        return "minutes:wiki" if self.wiki_trace is None else f"minutes:{self.wiki_trace}"


@dataclass(frozen=True)
class Panel:
    """What is compared in one panel of a figure."""

    folder: str  # below `kept`
    machines: tuple[str, ...]  # each as rrl-compare --machine takes it, for one run
    process: str  # WIKI or DYNAMIC
    knobs: str
    truth: str = "model"
    rate_per_s: float = RATE_PER_S
    requests: int = 100  # in an interval
    seeds: int = 1  # runs on each machine

    @property
    def space(self) -> ConfigurationSpace:
        return ConfigurationSpace.parse(self.knobs)

    def limits_ms(self, tightness: float) -> np.ndarray:
        """(machines,) so many times the lowest p95 of any configuration at the mean load."""
        space = self.space
        lowest_ms = []
        for machine in self.machines:
            (scenario,) = scenarios(machine, self.truth)
            expected = ExpectedCosts(scenario, space, MeanLatency(), self.requests)
            lowest_ms.append(float(np.nanmin(expected.p95_ms(self.rate_per_s))))
        return tightness * np.array(lowest_ms)


def family_machines(runs: int) -> tuple[str, ...]:
    """A machine of the family for each run."""
    return tuple(f"family:{FIRST_MACHINE + k}" for k in range(runs))


@dataclass(frozen=True)
class PanelRuns:
    """The runs of a panel."""

    panel: Panel
    decisions: Mapping[str, np.ndarray]  # by contender: (runs, decisions) rows of `run_dtype`

    @property
    def count(self) -> int:
        return len(next(iter(self.decisions.values())))

    def of(self, contender: str, field: str) -> np.ndarray:
        """(runs, decisions) one field of a contender's decisions."""
        values: np.ndarray = self.decisions[contender][field]
        return values

    def latency_ms(self, contender: str) -> np.ndarray:
        """(runs, decisions) what is expected of the configurations chosen."""
        return self.of(contender, "expected_ms")

    def ratio(self, contender: str) -> np.ndarray:
        """(runs, decisions) expected cost of what was chosen, by the lowest possible."""
        quotient: np.ndarray = self.latency_ms(contender) / self.of(contender, "oracle_ms")
        return quotient

    @property
    def knobs(self) -> tuple[str, ...]:
        return self.panel.space.names

    @property
    def oracle_ms(self) -> np.ndarray:
        return self.of(next(iter(self.decisions)), "oracle_ms")

    @property
    def rates_per_s(self) -> np.ndarray:
        return self.of(next(iter(self.decisions)), "arrival_rate_per_s")


def run_panel(
    panel: Panel,
    contenders: Mapping[str, Contender],
    setting: LongRunsSetting,
    least_resources_within_ms: np.ndarray | None = None,
) -> PanelRuns:
    """Makes the runs of a panel that are not kept, and reads them all.

    With (machines,) limits of the p95 the objective is the least resources within them. Else it is the mean
    latency.
    """
    common = ComparisonSettings(
        agents=tuple(f"{name}-{each.mark}" for name, each in contenders.items()),
        truth=panel.truth,
        workload=setting.workload(panel.process),
        rate_per_s=panel.rate_per_s,
        seeds=panel.seeds,
        decisions=setting.decisions,
        requests_per_interval=panel.requests,
        knobs=panel.knobs,
    )
    found: list[list[np.ndarray]] = []
    for k, machine in enumerate(panel.machines):
        settings = replace(common, machine=machine)
        if least_resources_within_ms is not None:
            limit_ms = float(least_resources_within_ms[k])
            settings = replace(settings, objective="least-resources", slo_p95_ms=limit_ms)
        folder = setting.kept / panel.folder / _folder_name(setting, panel, machine)
        print(f"{folder}: {len(contenders)} agents, {setting.decisions} decisions each", flush=True)
        found.append(_compared(settings, folder, contenders))
    by_contender = zip(*found, strict=True)
    return PanelRuns(
        panel, {name: np.concatenate(runs) for name, runs in zip(contenders, by_contender, strict=True)}
    )


def _compared(
    settings: ComparisonSettings, folder: Path, contenders: Mapping[str, Contender]
) -> list[np.ndarray]:
    """For each contender (seeds, decisions) rows of its runs on one machine.

    A run that fails ends the command.
    """
    with told_in_a_sentence(folder):
        table = run_comparison(
            settings,
            folder,
            resources.cores(),
            more_agents=dict(zip(settings.agents, contenders.values(), strict=True)),
            progress=PlainProgress(Console()),
            warn=warn,
        )
    rows = [table[table["agent"] == agent] for agent in settings.agents]
    return [each.reshape(settings.seeds, settings.decisions) for each in rows]


def _folder_name(setting: LongRunsSetting, panel: Panel, machine: str) -> str:
    """The trace is part of it, so that both kinds of WiKi can be kept."""
    trace = setting.wiki_trace if panel.process == WIKI else None
    name = Path(machine).stem if machine.endswith(".npz") else machine.replace(":", "-")
    return name if trace is None else f"{name}-{trace.stem}"
