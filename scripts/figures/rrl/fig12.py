"""RRL, Fig. 12: latency over time of RRL, CAPES and DeepRM, CPU knobs (sections 6.3 and 6.4).

| the paper | here |
|---|---|
| 10 servers with TensorFlow Serving | the family's simulated machines, or profiled ones (`run_served`) |
| request, inter-op, intra-op parallelism | `instances`, `inter_op_threads`, `intra_op_threads`: 1 to 10 |
| two of them, as in Fig. 4 | `run_small`: 10 intra-op threads |
| Inception-V3: requests of one size | all requests alike |
| DeepSpeech 2: TED talks, sizes differ | two sizes, 1 and 4, a quarter of them large |

Loads, lengths and starts are in `long_runs` and `contenders`, the rules in `rules`. A profiled machine is
loaded so that its capacity is used as much as that of the family in the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from envs.scenarios.families import RATE_PER_S
from envs.scenarios.paper_load import UTILISATION
from rrl.queueing.machine import Machine
from scripts.figures.result import FigureResult
from scripts.figures.rrl.contenders import contenders
from scripts.figures.rrl.latency import LatencyFigure, Panels, Reduction
from scripts.figures.rrl.long_runs import DYNAMIC, WIKI, LongRunsSetting, Panel, family_machines, run_panel

NAME = "rrl-fig12"
SMALL = "cpu-small"  # folder of the runs with two knobs
INCEPTION, DEEPSPEECH = "Inception-like", "DeepSpeech-like"
TRUTHS = {INCEPTION: "model", DEEPSPEECH: "two-sizes"}
PAPER_PERCENT = {  # sections 6.3 and 6.4: of DeepSpeech and Inception, by CAPES and DeepRM
    (DEEPSPEECH, WIKI, "capes"): -79.0,
    (DEEPSPEECH, WIKI, "deeprm"): -51.7,
    (INCEPTION, WIKI, "capes"): -50.6,
    (INCEPTION, WIKI, "deeprm"): -52.9,
    (DEEPSPEECH, DYNAMIC, "capes"): -69.3,
    (DEEPSPEECH, DYNAMIC, "deeprm"): -49.2,
    (INCEPTION, DYNAMIC, "capes"): -58.1,
    (INCEPTION, DYNAMIC, "deeprm"): -45.8,
}
REDUCTIONS = [Reduction(*where, percent) for where, percent in PAPER_PERCENT.items()]


def run(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-fig12.png and its CSVs: three knobs."""
    figure = _of_family(NAME, "RRL, Fig. 12: three CPU knobs", "cpu", seeds, setting or LongRunsSetting())
    return figure.result(out, seeds)


def run_small(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-fig12-small.png and its CSVs: the two knobs of Fig. 4."""
    title = "RRL, Fig. 12 with two knobs"
    figure = _of_family(f"{NAME}-small", title, SMALL, seeds, setting or LongRunsSetting())
    return figure.result(out, seeds)


def run_served(out: Path, seeds: int, setting: LongRunsSetting | None = None) -> FigureResult:
    """Writes rrl-fig12-served.png and its CSVs: on machine files, `--machines` or those of `rrl-machines`."""
    setting = setting or LongRunsSetting()
    files = setting.machines or tuple(out / f"served-{name}.npz" for name in ("inception_v3", "deepspeech2"))
    panels = {
        (process, path.stem): served_panel(process, path, seeds, setting)
        for process, path in product((WIKI, DYNAMIC), files)
    }
    rates = {panel.rate_per_s for panel in panels.values()}
    reductions = [
        Reduction(path.stem, process, against, percent)
        for path in files
        for (workload, process, against), percent in PAPER_PERCENT.items()
        if workload == _workload_of(path)
    ]
    runs = {where: run_panel(panel, contenders(panel.rate_per_s), setting) for where, panel in panels.items()}
    return LatencyFigure(
        f"{NAME}-served",
        "RRL, Fig. 12 on served models",
        f"Simulated machines of profiled models, {len(files)} files. {setting.decisions} decisions of 100 "
        f"requests at {', '.join(f'{rate:.3g}' for rate in sorted(rates))}/s in the mean. Mean latency.",
        runs,
        contenders(RATE_PER_S),
        reductions,
    ).result(out, seeds)


def cpu_panel(process: str, workload: str, runs: int, setting: LongRunsSetting, folder: str = "cpu") -> Panel:
    """The panel of one workload on the family's machines."""
    return Panel(
        folder=f"{folder}-{process}-{TRUTHS[workload]}".lower(),
        machines=family_machines(runs),
        process=process,
        knobs=setting.small_knobs if folder == SMALL else setting.knobs,
        truth=TRUTHS[workload],
    )


def served_panel(process: str, path: Path, runs: int, setting: LongRunsSetting) -> Panel:
    """The panel of one machine file, all runs on it."""
    machine = Machine.load(path)
    capacity_per_s = float(np.max(machine.busy_instances / machine.service_time_s[..., 0]))
    return Panel(
        folder=f"served-{process}-{path.stem}".lower(),
        machines=(str(path),),
        process=process,
        knobs=setting.knobs,
        truth=TRUTHS[_workload_of(path)],
        rate_per_s=round(float(np.mean(UTILISATION)) * capacity_per_s, 2),
        seeds=runs,
    )


def _wanted(panels: Sequence[str]) -> list[tuple[str, str]]:
    """The panels asked for, PROCESS:WORKLOAD each, or all of them."""
    known = {
        f"{process}:{workload}": (process, workload) for process, workload in product((WIKI, DYNAMIC), TRUTHS)
    }
    for panel in panels:
        if panel not in known:
            raise ValueError(f"unknown panel {panel!r}; known: {', '.join(known)}")
    return [known[panel] for panel in panels or known]


def _workload_of(path: Path) -> str:
    """The paper's workload that a machine file stands for, by its name."""
    return DEEPSPEECH if "deepspeech" in path.stem else INCEPTION


def _of_family(name: str, title: str, folder: str, seeds: int, setting: LongRunsSetting) -> LatencyFigure:
    """The figure on the family's machines."""
    agents = contenders(RATE_PER_S)
    runs: Panels = {
        (process, workload): run_panel(cpu_panel(process, workload, seeds, setting, folder), agents, setting)
        for process, workload in _wanted(setting.panels)
    }
    size = len(next(iter(runs.values())).panel.space)
    return LatencyFigure(
        name,
        title,
        f"Simulated machines of the family, one for each run, {size:,} configurations. {setting.decisions} "
        f"decisions of 100 requests at {RATE_PER_S:g}/s in the mean. Mean latency over the whole run. "
        f"Panels: {'; '.join(', '.join(where) for where in runs)}.",
        runs,
        agents,
        REDUCTIONS,
    )
