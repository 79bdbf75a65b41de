"""SERF, Fig. 2: the latency of every configuration of one node, at a low and at a high load.

Simulated testbed: the workload with interference (ImageNet-22K) on one node of 8 cores, one machine for each
seed. All 20 configurations with c·a at most 8 serve the same 5,000 requests. Loads are the lowest and the
highest of the other figures: 0.09 and 0.9 of the largest capacity. A configuration that cannot bear the load
has a finite latency, as the run ends. A longer run makes it longer.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rrl.queueing.interference import capacity_per_s
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.profiling import AS_THE_RANGES, exact_times_s
from scripts.figures.serf.workloads import IMAGENET_22K, LOADS, measured_means_s, name_of

CONFIGURATIONS = tuple(c for c in IMAGENET_22K.configurations if c["nodes_per_unit"] == 1)
REQUESTS = 5000  # below it "the results become very unstable" (section V-D)
LOW_AND_HIGH = (float(LOADS[0]), float(LOADS[-1]))
ORDERS_OF_MAGNITUDE = 100.0  # at least two


def run(out: Path, seeds: int, requests: int = REQUESTS) -> FigureResult:
    latencies_s = np.array([_latencies_s(seed, requests) for seed in range(seeds)])  # (seeds, 2, K)
    write_csv(
        out / "serf-fig2.csv",
        [
            {
                "seed": seed,
                "load": load,
                "configuration": name_of(configuration),
                "latency_ms": 1e3 * float(latencies_s[seed, row, k]),
            }
            for seed in range(seeds)
            for row, load in enumerate(LOW_AND_HIGH)
            for k, configuration in enumerate(CONFIGURATIONS)
        ],
    )
    _draw(out / "serf-fig2.png", 1e3 * latencies_s[0])
    return FigureResult(
        title="SERF, Fig. 2: latency by service and intra-node parallelism",
        setting=(
            f"Simulated testbed: {len(CONFIGURATIONS)} configurations of one node, {requests:,} requests "
            f"each at {LOW_AND_HIGH[0]:g} and {LOW_AND_HIGH[1]:g} of the largest capacity, {seeds} machines."
        ),
        seeds=seeds,
        claims=_claims(latencies_s),
        pictures=("serf-fig2.png",),
        tables=("serf-fig2.csv",),
    )


def _latencies_s(seed: int, requests: int) -> np.ndarray:
    """(2, K) mean latencies at the two loads."""
    machine = IMAGENET_22K.machine(seed)
    instances = np.array([configuration["instances"] for configuration in CONFIGURATIONS])
    largest_per_s = float(capacity_per_s(exact_times_s(CONFIGURATIONS, machine), instances).max())
    return np.array(
        [
            [
                measured_means_s(
                    machine, each, load * largest_per_s, requests, seed, scv=AS_THE_RANGES.scv(1)
                ).latency_s
                for each in CONFIGURATIONS
            ]
            for load in LOW_AND_HIGH
        ]
    )


def _claims(latencies_s: np.ndarray) -> tuple[Claim, ...]:
    low, high = (latencies_s[:, k].max(axis=1) / latencies_s[:, k].min(axis=1) for k in (0, 1))
    changes = latencies_s[:, 0].argmin(axis=1) != latencies_s[:, 1].argmin(axis=1)
    wide = high.mean() >= ORDERS_OF_MAGNITUDE
    return (
        Claim(
            "configurations of 8 cores on one node",
            "20 (section V-B)",
            str(len(CONFIGURATIONS)),
            REPRODUCES if len(CONFIGURATIONS) == 20 else FAILS,
        ),
        Claim("worst over best latency, low load", "–", bootstrap_mean(low).text(".1f", "x"), NO_CLAIM),
        Claim(
            "worst over best latency, high load",
            "orders of magnitude",
            bootstrap_mean(high).text(".0f", "x"),
            REPRODUCES if wide else PARTLY if high.mean() >= ORDERS_OF_MAGNITUDE**0.5 else FAILS,
        ),
        Claim(
            "machines on which that gap grows with the load",
            "it grows",
            f"{100 * float((high > low).mean()):.0f} %",
            REPRODUCES if (high > low).all() else PARTLY if (high > low).mean() > 0.5 else FAILS,
        ),
        Claim(
            "machines on which the best configuration changes with the load",
            "it changes",
            f"{100 * float(changes.mean()):.0f} %",
            REPRODUCES if changes.all() else PARTLY if changes.mean() > 0.5 else FAILS,
        ),
    )


def _draw(path: Path, latencies_ms: np.ndarray) -> None:
    figure, axes = drawing.new_figure(
        1,
        2,
        width=4.0,
        height=3.4,
        title="Latency of every configuration of one node (SERF, Fig. 2)",
        subtitle="Machine 0; area: mean latency over the best at that load, up to 100 times",
        sharey=True,
    )
    service = [configuration["instances"] for configuration in CONFIGURATIONS]
    intra = [configuration["intra_op_threads"] for configuration in CONFIGURATIONS]
    for ax, each_ms, what in zip(axes[0], latencies_ms, ("low load", "high load"), strict=True):
        areas = 14 * np.minimum(each_ms / each_ms.min(), 100)
        ax.scatter(service, intra, s=areas, color=figure_style.BLUE, alpha=0.5, linewidths=0)
        best = int(each_ms.argmin())
        ax.plot(service[best], intra[best], marker="x", color=figure_style.BLACK)
        drawing.names(ax, "service parallelism", "intra-node parallelism", f"{what}; cross: the best")
    drawing.save(figure, path)
