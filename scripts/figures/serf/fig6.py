"""SERF, Fig. 6: the service time of a request by how many are in service, for a small and for a large DNN.

| what | from |
|---|---|
| simulated CIFAR-10 and ImageNet-22K, 1 .. 8 in service | the law of each stand-in (`workloads`) |
| five served models, 1 and 2 in service | `rrl-profile` on 2 cores (`speedups`) |

Beyond two in service the real ones would share cores, which is no interference of caches and memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from envs.scenarios.profiled import MODELS
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_mean
from scripts.figures.result import NOT_COMPARABLE, Claim, FigureResult, write_csv
from scripts.figures.serf.speedups import almost_constant, served_times_s, simulated_times_s
from scripts.figures.serf.workloads import CIFAR_10, CORES, IMAGENET_22K

PAPER = {CIFAR_10.name: "almost constant", IMAGENET_22K.name: "severe beyond 2"}


def run(out: Path, seeds: int) -> FigureResult:
    simulated = {
        workload.name: _growth(simulated_times_s(workload, seeds, most=CORES))
        for workload in (CIFAR_10, IMAGENET_22K)
    }
    served = _growth(served_times_s(1))
    curves = simulated | {model: row[None] for model, row in zip(MODELS, served, strict=True)}
    write_csv(
        out / "serf-fig6.csv",
        [
            {"of": name, "seed": seed, "in_service": n + 1, "over_one": float(over)}
            for name, rows in curves.items()
            for seed, row in enumerate(rows)
            for n, over in enumerate(row)
        ],
    )
    _draw(out / "serf-fig6.png", simulated, served)
    return FigureResult(
        title="SERF, Fig. 6: interference",
        setting=(
            f"Simulated testbed: two workloads on {seeds} machines. Real server: {len(MODELS)} served models "
            "profiled on 2 cores, one intra-op thread."
        ),
        seeds=seeds,
        claims=(
            *(
                Claim(
                    f"service time with {CORES} in service over 1, simulated {name} (its law)",
                    PAPER[name],
                    bootstrap_mean(rows[:, -1]).text(".2f", "x"),
                    NOT_COMPARABLE,
                )
                for name, rows in simulated.items()
            ),
            *(
                Claim(
                    f"service time with 2 in service over 1, real server, {model}",
                    "almost constant up to 2",
                    f"{row[1]:.2f}x",
                    almost_constant(float(row[1]) - 1),
                )
                for model, row in zip(MODELS, served, strict=True)
            ),
        ),
        pictures=("serf-fig6.png",),
        tables=("serf-fig6.csv",),
    )


def _growth(times_s: np.ndarray) -> np.ndarray:
    return np.asarray(times_s / times_s[:, :1])


def _draw(path: Path, simulated: dict[str, np.ndarray], served: np.ndarray) -> None:
    figure, axes = drawing.new_figure(
        1,
        2,
        width=4.2,
        height=3.1,
        title="Interference among requests in service (SERF, Fig. 6)",
        subtitle="Service time over that of one alone; simulated: mean and 95 % over machines",
    )
    left, right = axes[0]
    for colour, (name, rows) in zip(figure_style.COLOURS, simulated.items(), strict=False):
        drawing.band(left, np.arange(1, CORES + 1), *bootstrap_band(rows), colour, name)
    left.legend(fontsize=8, frameon=False, loc="upper left")
    drawing.names(left, "requests in service", "service time over one's", "simulated")
    right.barh(range(len(MODELS)), served[:, 1], color=figure_style.BLUE, height=0.6)
    right.axvline(1.0, color=figure_style.BLACK, linewidth=1)
    right.set_yticks(range(len(MODELS)), MODELS)
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    drawing.names(right, "service time with 2 over 1", "", "real server, 2 cores")
    drawing.save(figure, path)
