"""SERF, Fig. 4: the speed-up of intra-node parallelism, by the degree of inter-node parallelism.

Simulated testbed: ImageNet-22K, one machine for each seed. By its law (`rrl.queueing.inter_node`) threads do
not speed up what nodes send each other, which takes a larger share with more nodes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_mean
from scripts.figures.result import NOT_COMPARABLE, Claim, FigureResult, write_csv
from scripts.figures.serf.speedups import simulated_times_s
from scripts.figures.serf.workloads import CORES, IMAGENET_22K


def run(out: Path, seeds: int) -> FigureResult:
    speedups = {inter: _speedups(seeds, inter) for inter in IMAGENET_22K.inter}  # (seeds, threads)
    write_csv(
        out / "serf-fig4.csv",
        [
            {"inter": inter, "seed": seed, "intra": k + 1, "speedup": float(speedup)}
            for inter, rows in speedups.items()
            for seed, row in enumerate(rows)
            for k, speedup in enumerate(row)
        ],
    )
    _draw(out / "serf-fig4.png", speedups)
    most = IMAGENET_22K.inter[-1]
    ratio = speedups[most][:, -1] / speedups[1][:, -1]
    return FigureResult(
        title="SERF, Fig. 4: intra-node speed-up by inter-node parallelism",
        setting=f"Simulated testbed: ImageNet-22K on {seeds} machines.",
        seeds=seeds,
        claims=(
            Claim(
                f"speed-up by {CORES} threads with {most} nodes a unit over that with 1, simulated (its law)",
                "lower",
                bootstrap_mean(ratio).text(".2f"),
                NOT_COMPARABLE,
            ),
        ),
        pictures=("serf-fig4.png",),
        tables=("serf-fig4.csv",),
    )


def _speedups(seeds: int, inter: int) -> np.ndarray:
    times_s = [
        simulated_times_s(IMAGENET_22K, seeds, inter=inter, intra=intra, most=1)[:, 0]
        for intra in range(1, CORES + 1)
    ]
    return times_s[0][:, None] / np.stack(times_s, axis=1)


def _draw(path: Path, speedups: dict[int, np.ndarray]) -> None:
    figure, axes = drawing.new_figure(
        width=5.0,
        height=3.2,
        title="Intra-node speed-up (SERF, Fig. 4)",
        subtitle="By inter-node parallelism; simulated, mean and 95 % over machines",
    )
    ax = axes[0, 0]
    for colour, (inter, rows) in zip(drawing.SEQUENCE, speedups.items(), strict=False):
        drawing.band(ax, np.arange(1, CORES + 1), *bootstrap_band(rows), colour, f"{inter} nodes")
    drawing.names(ax, "intra-node parallelism", "speed-up")
    drawing.label_lines_at_end(ax)
    drawing.save(figure, path)
