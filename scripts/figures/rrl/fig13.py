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
| 61 requests/s (Fig. 5) | the same in the mean, 200 in an interval |

Lengths, starts and agents are those of Fig. 12 (`long_runs`, `contenders`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rrl.queueing.machine import Machine
from scripts.figures.result import FigureResult
from scripts.figures.rrl.contenders import contenders
from scripts.figures.rrl.latency import LatencyFigure, Panels, Reduction
from scripts.figures.rrl.long_runs import DYNAMIC, FIRST_MACHINE, WIKI, LongRunsSetting, Panel, run_panel

NAME = "rrl-fig13"
RATE_PER_S = 61.0
REQUESTS_PER_INTERVAL = 200  # a batch of 64 is no rarity here
KNOBS = (
    "instances=1:8,max_batch_size=1,2,4,8,16,32,64,max_queue_delay_us=0,5000,10000,20000,50000,100000,200000"
)
WORKLOAD = "Inception-like, GPU stand-in"
CORES = 2  # batches in service that fill a stand-in
UTILISATION = (0.3, 0.6)  # share of the largest throughput that the mean rate takes

REDUCTIONS = (  # the text's sentence on WiKi is damaged: it names 47.1 % for CAPES, and no number for DeepRM
    Reduction(WORKLOAD, WIKI, "capes", -47.1),
    Reduction(WORKLOAD, DYNAMIC, "capes", -38.0),
    Reduction(WORKLOAD, DYNAMIC, "deeprm", -69.1),
)


def gpu_stand_in(seed: int) -> Machine:
    """A simulated machine on which a larger batch costs almost nothing, and batches slow each other down."""
    machine = Machine.invent(
        seed,
        cores=CORES,
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


def write_stand_ins(folder: Path, count: int) -> tuple[str, ...]:
    """Writes the stand-ins' machine files, and names each as `rrl-compare --machine` takes it."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"gpu-stand-in-{FIRST_MACHINE + k}.npz" for k in range(count)]
    for k, path in enumerate(paths):
        gpu_stand_in(FIRST_MACHINE + k).save(path)
    return tuple(map(str, paths))


def gpu_panel(process: str, runs: int, setting: LongRunsSetting, folder: str = "gpu") -> Panel:
    """The panel of one load on the stand-ins."""
    return Panel(
        folder=f"{folder}-{process}".lower(),
        machines=write_stand_ins(setting.kept / "stand-ins", runs),
        process=process,
        knobs=setting.gpu_knobs or KNOBS,
        rate_per_s=RATE_PER_S,
        requests=REQUESTS_PER_INTERVAL,
    )


def run(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-fig13.png and its CSVs."""
    setting = setting or LongRunsSetting()
    agents = contenders(RATE_PER_S)
    panels: Panels = {
        (process, WORKLOAD): run_panel(gpu_panel(process, seeds, setting), agents, setting)
        for process in (WIKI, DYNAMIC)
    }
    return LatencyFigure(
        NAME,
        "RRL, Fig. 13: batching knobs",
        "Simulated stand-ins of a GPU, with strong batching gains, one for each run. "
        f"{len(panels[WIKI, WORKLOAD].panel.space)} configurations, {setting.decisions} decisions "
        f"of {REQUESTS_PER_INTERVAL} requests at {RATE_PER_S:g}/s in the mean. Mean latency over the whole "
        "run.",
        panels,
        agents,
        REDUCTIONS,
    ).result(out, seeds)
