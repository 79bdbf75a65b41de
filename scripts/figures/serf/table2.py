"""SERF, Table II: how long it takes to fill the reference table, by exhaustive profiling and by SERF.

| profiling | for each | measures |
|---|---|---|
| exhaustive | configuration at each of 10 loads | the latency of 5,000 requests, which takes 5,000/λ |
| SERF | parallelism tuple (c, inter, intra) | 10 requests, c of them at a time |
| at high load only | configuration at 0.9 of the largest capacity | the latency of 5,000 requests |

SERF's round of c requests ends with the slowest of them. So there is a row with service times that vary
(`profiling`), and one with times that are all alike.

A ratio is *yes* where it is at least the paper's in the mean over machines, and *partly* where it is at least
half of that (`headlines`). The paper also says that SERF's cost is lower by more than three orders of
magnitude, and by more than two where profiling is at high load only. That must hold on every machine, and in
the mean alone it holds *partly*.

All are counted in the simulated time of the workload's machine, one for each seed. The workloads' service
times are invented, so that only the ratios compare with the paper's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from baselines.serf import PROFILE_REQUESTS
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.headlines import verdict_of_factor
from scripts.figures.result import FAILS, NOT_COMPARABLE, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.profiling import ALIKE, AS_THE_RANGES, exact_times_s, light_profile
from scripts.figures.serf.workloads import (
    CIFAR_10,
    DNN,
    IMAGENET_1K,
    IMAGENET_22K,
    LOADS,
    WORKLOADS,
    measured_means_s,
    node_capacities_per_s,
)

EXHAUSTIVE_REQUESTS = 5000  # below it "the results become very unstable" (section V-D)
PAPER_MINUTES = {
    IMAGENET_22K.name: (27_600.0, 5.52),
    IMAGENET_1K.name: (4332.0, 0.87),
    CIFAR_10.name: (72.0, 1.44e-2),
}
REPEATS = 20  # runs whose spread is shown


def run(out: Path, seeds: int, workloads: Sequence[DNN] = WORKLOADS, repeats: int = REPEATS) -> FigureResult:
    rows = [_row(workload, seed) for workload in workloads for seed in range(seeds)]
    write_csv(out / "serf-table2.csv", rows)
    _draw(out / "serf-table2.png", workloads, rows)
    claims = []
    for workload in workloads:
        exhaustive_min, serf_min = PAPER_MINUTES[workload.name]
        mine = [row for row in rows if row["workload"] == workload.name]
        for kind, note in (("", "times that vary"), ("alike_", "times all alike")):
            ratios = np.array([row[f"{kind}ratio"] for row in mine], dtype=float)
            ratio = bootstrap_mean(ratios)
            minutes = [np.mean([row[name] for row in mine]) for name in ("exhaustive_min", f"{kind}serf_min")]
            claims.append(
                Claim(
                    f"exhaustive profiling / SERF's, time, {workload.name} "
                    f"({len(workload.configurations)} configurations, {len(LOADS)} loads), {note}",
                    f"{exhaustive_min / serf_min:,.0f}x ({exhaustive_min:g} / {serf_min:g} min)",
                    f"{ratio.text(',.0f', 'x')} ({minutes[0]:.4g} / {minutes[1]:.3g} min)",
                    verdict_of_factor(exhaustive_min / serf_min, ratio.estimate),
                )
            )
    for what, column, orders in (
        ("exhaustive profiling", "ratio", 3),
        ("profiling at high load only", "high_load_ratio", 2),
    ):
        ratios = np.array([[row[column] for row in rows if row["workload"] == w.name] for w in workloads])
        least = ratios.mean(axis=1).argmin()
        claims.append(
            Claim(
                f"{what} / SERF's, time, {workloads[least].name}, where it is least",
                f"more than {10**orders:,}x",
                bootstrap_mean(ratios[least]).text(",.0f", "x"),
                verdict_of_orders(ratios, orders),
            )
        )
    for requests in (EXHAUSTIVE_REQUESTS // 10, EXHAUSTIVE_REQUESTS):
        spread = bootstrap_mean(np.array([_spread(IMAGENET_22K, s, requests, repeats) for s in range(seeds)]))
        claims.append(
            Claim(
                f"spread (standard deviation / mean) of the mean latency of {requests:,} requests at "
                "0.9 of a configuration's capacity",
                "very unstable below 5,000",
                spread.text(".0f", " %"),
                NOT_COMPARABLE,
            )
        )
    return FigureResult(
        title="SERF, Table II: profiling cost against exhaustive profiling",
        setting=(
            f"{EXHAUSTIVE_REQUESTS:,} requests for each configuration and load against {PROFILE_REQUESTS} "
            f"for each parallelism tuple, in simulated time, on {seeds} machines a workload."
        ),
        seeds=seeds,
        claims=tuple(claims),
        pictures=("serf-table2.png",),
        tables=("serf-table2.csv",),
    )


def verdict_of_orders(ratios: np.ndarray, orders: int) -> str:
    """The verdict on "more than so many orders of magnitude" of (workloads, seeds) ratios of times."""
    if ratios.min() > 10**orders:
        return REPRODUCES
    return PARTLY if ratios.mean(axis=1).min() > 10**orders else FAILS


def _row(workload: DNN, seed: int) -> dict[str, str | int | float]:
    machine = workload.machine(seed)
    exact_s = exact_times_s(workload.configurations, machine)
    capacities_per_s = node_capacities_per_s(exact_s, workload.configurations)
    units_per_s = np.outer(LOADS * capacities_per_s.max(), workload.unit_loads)  # (loads, K)
    one_each_s = (EXHAUSTIVE_REQUESTS / units_per_s).mean(axis=1)
    exhaustive_s = len(capacities_per_s) * float(one_each_s.sum())
    high_load_s = len(capacities_per_s) * float(one_each_s[-1])
    serf_s, alike_s = (
        light_profile(workload.configurations, machine, seed, variation).cost_s
        for variation in (AS_THE_RANGES, ALIKE)
    )
    return {
        "workload": workload.name,
        "seed": seed,
        "configurations": len(capacities_per_s),
        "exhaustive_experiments": len(capacities_per_s) * len(LOADS),
        "serf_experiments": len(capacities_per_s),
        "exhaustive_each_min": exhaustive_s / 60 / len(capacities_per_s) / len(LOADS),
        "serf_each_min": serf_s / 60 / len(capacities_per_s),
        "exhaustive_min": exhaustive_s / 60,
        "serf_min": serf_s / 60,
        "alike_serf_min": alike_s / 60,
        "ratio": exhaustive_s / serf_s,
        "alike_ratio": exhaustive_s / alike_s,
        "high_load_ratio": high_load_s / serf_s,
    }


def _spread(workload: DNN, seed: int, requests: int, repeats: int) -> float:
    """The spread over runs with two instances of four threads, in percent."""
    machine = workload.machine(seed)
    configuration = {"instances": 2, "nodes_per_unit": 1, "intra_op_threads": 4}
    rate_per_s = 0.9 * 2 / float(machine.table(configuration)[-1, 0])
    means_s = [
        measured_means_s(machine, configuration, rate_per_s, requests, [seed, k]).latency_s
        for k in range(repeats)
    ]
    return 100 * float(np.std(means_s, ddof=1) / np.mean(means_s))


def _draw(path: Path, workloads: Sequence[DNN], rows: Sequence[dict[str, str | int | float]]) -> None:
    figure, axes = drawing.new_figure(
        width=6.0,
        height=3.2,
        title="What a reference table costs (SERF, Table II)",
        subtitle="Time to fill it; bars: here, in simulated time; crosses: the paper's",
    )
    ax = axes[0, 0]
    for offset, (method, colour) in enumerate(
        (("exhaustive_min", figure_style.VERMILION), ("serf_min", figure_style.BLUE))
    ):
        for k, workload in enumerate(workloads):
            mean = np.mean([float(row[method]) for row in rows if row["workload"] == workload.name])
            x = k + 0.35 * (offset - 0.5)
            ax.bar(
                x, mean, width=0.32, color=colour, label=("exhaustive", "SERF")[offset] if k == 0 else None
            )
            ax.plot(x, PAPER_MINUTES[workload.name][offset], marker="x", color=figure_style.BLACK)
    figure_style.log_axis(ax, "y", (1.0,))
    ax.set_xticks(range(len(workloads)), [workload.name for workload in workloads])
    ax.legend(fontsize=8, frameon=False)
    drawing.names(ax, "", "minutes")
    drawing.save(figure, path)
