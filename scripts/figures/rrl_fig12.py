"""RRL, Fig. 12: latency over time of RRL, CAPES and DeepRM, CPU knobs (sections 6.3 and 6.4).

| the paper | here |
|---|---|
| 10 servers with TensorFlow Serving | the family's simulated machines |
| request, inter-op, intra-op parallelism | `instances`, `inter_op_threads`, `intra_op_threads`: 1 to 10 |
| Inception-V3: requests of one size | all requests alike |
| DeepSpeech 2: TED talks, sizes differ | two sizes, 1 and 4, a quarter of them large |
| WiKi, Dynamic | `wiki`, `dynamic`, 14 requests/s in the mean |
| some 2,000 minutes | `decisions` intervals of 100 requests; of 100 intervals each stands for 20 minutes |
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from baselines.comparison import ComparisonSettings
from envs.simulated import PAPER_SPACE
from scripts.figures.result import FigureResult
from scripts.figures.rrl_agents import WITH_RELEASED, announce, compared, family, runs_of
from scripts.figures.rrl_latency import (
    Reduction,
    convergence_claims,
    default_claims,
    draw,
    reduction_claims,
    write_tables,
)

NAME = "rrl-fig12"
PROCESSES = {"WiKi": "wiki", "Dynamic": "dynamic"}
WORKLOADS = {"Inception-like": "model", "DeepSpeech-like": "two-sizes"}

REDUCTIONS = (  # sections 6.3 and 6.4
    Reduction("DeepSpeech-like", "WiKi", "capes", -79.0),
    Reduction("DeepSpeech-like", "WiKi", "deeprm", -51.7),
    Reduction("Inception-like", "WiKi", "capes", -50.6),
    Reduction("Inception-like", "WiKi", "deeprm", -52.9),
    Reduction("DeepSpeech-like", "Dynamic", "capes", -69.3),
    Reduction("DeepSpeech-like", "Dynamic", "deeprm", -49.2),
    Reduction("Inception-like", "Dynamic", "capes", -58.1),
    Reduction("Inception-like", "Dynamic", "deeprm", -45.8),
)


@dataclass(frozen=True)
class Figure12Setting:
    agents: tuple[str, ...] = WITH_RELEASED
    decisions: int = 100
    requests_per_interval: int = 100
    knobs: str = PAPER_SPACE


def run(out: Path, seeds: int, setting: Figure12Setting | None = None) -> FigureResult:
    """Writes rrl-fig12.png and its CSVs."""
    setting = setting or Figure12Setting()
    machines, per_machine = runs_of(seeds)
    panels: dict[tuple[str, str], np.ndarray] = {}
    for (process, load), (workload, truth) in product(PROCESSES.items(), WORKLOADS.items()):
        settings = ComparisonSettings(
            agents=setting.agents,
            machine=family(machines),
            seeds=per_machine,
            truth=truth,
            workload=load,
            decisions=setting.decisions,
            requests_per_interval=setting.requests_per_interval,
            knobs=setting.knobs,
        )
        announce(settings, machines)
        panels[process, workload] = compared(settings)
    draw(
        out / f"{NAME}.png",
        panels,
        setting.agents,
        "RRL, Fig. 12: expected latency of the configurations chosen, CPU knobs",
        f"mean of the last 10 decisions over {seeds} runs on {machines} simulated machines; "
        "band: 95 % bootstrap interval",
    )
    claims = convergence_claims(panels["WiKi", "Inception-like"], setting.agents)
    claims += reduction_claims(panels, REDUCTIONS)
    claims += default_claims(panels, setting.agents)
    return FigureResult(
        title="RRL, Fig. 12: latency over time, CPU knobs",
        setting=f"Simulated machines of the family, two runs each, 1,000 configurations, {setting.decisions} "
        f"decisions of {setting.requests_per_interval} requests at 14/s in the mean. Mean latency over the "
        "whole run.",
        seeds=seeds,
        claims=tuple(claims),
        pictures=(f"{NAME}.png",),
        tables=write_tables(out, NAME, panels, setting.agents),
    )
