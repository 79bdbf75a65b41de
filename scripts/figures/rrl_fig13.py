"""RRL, Fig. 13: latency over time of RRL, CAPES and DeepRM, batching knobs (sections 6.3 and 6.4).

There is no GPU here. The machines are simulated stand-ins, invented with strong batching gains. 95 % of a
batch's work is paid once, whatever its size. Two batches in service fill the machine, and more of them share
it.

| the paper | here |
|---|---|
| parallel batch threads | `instances`, 1 to 8 |
| batch size | `max_batch_size`, 1 to 64 |
| batch timeout | `max_queue_delay_us`, 0 to 200 ms |
| Inception-V3 on a GTX 1080 Ti | `gpu_stand_in` |
| 61 requests/s (Fig. 5) | the same in the mean |
| some 2,000 minutes | `decisions` intervals of 200 requests; of 100 intervals each stands for 20 minutes |
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from baselines.comparison import ComparisonSettings
from envs.scenarios.families import FIRST_FOR_JUDGING
from rrl.queueing.machine import Machine
from scripts.figures.result import FigureResult
from scripts.figures.rrl_agents import WITH_RELEASED, announce, compared, runs_of
from scripts.figures.rrl_latency import (
    Reduction,
    convergence_claims,
    default_claims,
    draw,
    reduction_claims,
    write_tables,
)

NAME = "rrl-fig13"
RATE_PER_S = 61.0
REQUESTS_PER_INTERVAL = 200  # a batch of 64 is no rarity here
KNOBS = (
    "instances=1:8,max_batch_size=1,2,4,8,16,32,64,max_queue_delay_us=0,5000,10000,20000,50000,100000,200000"
)
PROCESSES = {"WiKi": "wiki", "Dynamic": "dynamic"}
WORKLOAD = "Inception-like, GPU stand-in"
UTILISATION = (0.3, 0.6)  # share of the largest throughput that the mean rate takes

REDUCTIONS = (  # the text's sentence on WiKi is damaged: it names 47.1 % for CAPES, and no number for DeepRM
    Reduction(WORKLOAD, "WiKi", "capes", -47.1),
    Reduction(WORKLOAD, "Dynamic", "capes", -38.0),
    Reduction(WORKLOAD, "Dynamic", "deeprm", -69.1),
)


@dataclass(frozen=True)
class Figure13Setting:
    agents: tuple[str, ...] = WITH_RELEASED
    decisions: int = 100
    knobs: str = KNOBS


def gpu_stand_in(seed: int) -> Machine:
    """A simulated machine on which a larger batch costs almost nothing, and batches slow each other down."""
    machine = Machine.invent(
        seed,
        cores=2,
        batching_gain=0.95,
        inter_op_threads=(1,),
        intra_op_threads=(1,),
        busy_instances=range(1, 9),
        batch_size=(1, 2, 4, 8, 16, 32, 64),
    )
    n, b = machine.busy_instances[:, None], machine.batch_size
    largest_per_s = float(np.max(n * b / machine.service_time_s[0, 0]))
    utilisation = np.random.default_rng([seed, 1]).uniform(*UTILISATION)
    return machine.slower(utilisation * largest_per_s / RATE_PER_S)


def write_stand_ins(folder: Path, count: int) -> list[str]:
    """Writes the stand-ins' machine files, and names each as `rrl-compare --machine` takes it."""
    paths = [folder / f"gpu-stand-in-{FIRST_FOR_JUDGING + k}.npz" for k in range(count)]
    for k, path in enumerate(paths):
        gpu_stand_in(FIRST_FOR_JUDGING + k).save(path)
    return [str(path) for path in paths]


def on_stand_ins(settings: ComparisonSettings, knobs: str = KNOBS) -> ComparisonSettings:
    """The comparison with the stand-ins' load and knobs, on those that `machine` names."""
    return replace(settings, rate_per_s=RATE_PER_S, requests_per_interval=REQUESTS_PER_INTERVAL, knobs=knobs)


def run(out: Path, seeds: int, setting: Figure13Setting | None = None) -> FigureResult:
    """Writes rrl-fig13.png and its CSVs."""
    setting = setting or Figure13Setting()
    machine_count, per_machine = runs_of(seeds)
    with tempfile.TemporaryDirectory(prefix="rrl-figure-") as folder:
        machines = write_stand_ins(Path(folder), machine_count)
        panels: dict[tuple[str, str], np.ndarray] = {}
        for process, load in PROCESSES.items():
            settings = ComparisonSettings(
                agents=setting.agents,
                machine=",".join(machines),
                workload=load,
                seeds=per_machine,
                decisions=setting.decisions,
            )
            settings = on_stand_ins(settings, setting.knobs)
            announce(settings, machine_count)
            panels[process, WORKLOAD] = compared(settings)
    draw(
        out / f"{NAME}.png",
        panels,
        setting.agents,
        "RRL, Fig. 13: expected latency of the configurations chosen, batching knobs",
        f"mean of the last 10 decisions over {seeds} runs, two on each simulated stand-in of a GPU; "
        "band: 95 % bootstrap interval",
    )
    claims = convergence_claims(panels["WiKi", WORKLOAD], setting.agents)
    claims += reduction_claims(panels, REDUCTIONS)
    claims += default_claims(panels, setting.agents)
    return FigureResult(
        title="RRL, Fig. 13: latency over time, batching knobs",
        setting="Simulated stand-ins of a GPU, with strong batching gains, two runs each. 392 "
        f"configurations, {setting.decisions} decisions of {REQUESTS_PER_INTERVAL} requests "
        f"at {RATE_PER_S:g}/s in the mean. Mean latency over the whole run.",
        seeds=seeds,
        claims=tuple(claims),
        pictures=(f"{NAME}.png",),
        tables=write_tables(out, NAME, panels, setting.agents),
    )
