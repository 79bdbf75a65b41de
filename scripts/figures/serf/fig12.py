"""SERF, Fig. 12: the best configuration and its latency by load, with little and with much interference.

All configurations of a workload are measured by a long simulation, at 10 loads up to 0.9 of the largest
capacity. There is one machine for each seed. Beside the best by measurement stands the one that SERF's model
takes from a light profile (`profiling`). Not more than 8 cores are used: c·a is at most 8.

| statement of the paper | yes | partly |
|---|---|---|
| SERF takes the best | at more than 99 % of the loads | at more than 80 % |
| ... and so its latency is the best's | at most 1 % above, in the mean over all loads | at most 2 % |
| little interference: where the best configuration goes by load | on every machine | on more than half |

With much interference the best has at most two instances. That follows from the law, by which interference
begins with the third, so it is not judged.

An excess above 1 % exceeds the noise of the measurement. A configuration that cannot bear the
load, or whose utilisation is too high to measure it, has an infinite latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from rrl.queueing.interference import Queue, predict
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.result import FAILS, NOT_COMPARABLE, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.loads import MeasuredLoads, landscape
from scripts.figures.serf.workloads import CIFAR_10, DNN, IMAGENET_22K, LOADS, name_of

INTERFERENCE = {CIFAR_10.name: "little interference", IMAGENET_22K.name: "much interference"}
AS_GOOD_AS = 1.01  # times the best is a tie, within the noise of the measurement
NEARLY_AS_GOOD_AS = 1.02  # times the best is partly the best's latency


def run(
    out: Path,
    seeds: int,
    workloads: Sequence[DNN] = (CIFAR_10, IMAGENET_22K),
    loads: np.ndarray = LOADS,
) -> FigureResult:
    landscapes = {w.name: [landscape(w, seed, loads) for seed in range(seeds)] for w in workloads}
    rows = [
        row
        for workload in workloads
        for seed, each in enumerate(landscapes[workload.name])
        for row in _rows(workload, seed, each, loads)
    ]
    write_csv(out / "serf-fig12.csv", rows)
    _draw(out / "serf-fig12.png", workloads, landscapes, loads)
    return FigureResult(
        title="SERF, Fig. 12: best configuration and latency by load",
        setting=(
            f"Every configuration of {' and '.join(w.name for w in workloads)} (simulated) at {len(loads)} "
            f"loads up to 0.9 of the largest capacity, on {seeds} machines each."
        ),
        seeds=seeds,
        claims=tuple(c for w in workloads for c in _claims(w, landscapes[w.name])),
        pictures=("serf-fig12.png",),
        tables=("serf-fig12.csv",),
    )


def _chosen(each: MeasuredLoads, queue: Queue = Queue.MD_INTERF_C) -> np.ndarray:
    """(loads,) index of the configuration that a model takes; the largest capacity where all are unstable."""
    chosen = []
    for rate_per_s in each.rates_per_s:
        prediction = predict(each.times_s, each.instances, rate_per_s * each.unit_loads, queue)
        stable = np.isfinite(prediction.mean_latency_s).any()
        chosen.append(np.argmin(prediction.mean_latency_s if stable else prediction.utilisation))
    return np.array(chosen)


def _rows(workload: DNN, seed: int, each: MeasuredLoads, loads: np.ndarray) -> list[dict[str, object]]:
    best, chosen = each.measured_s.argmin(axis=1), _chosen(each)
    return [
        {
            "workload": workload.name,
            "seed": seed,
            "load": float(loads[k]),
            "rate_per_s": float(each.rates_per_s[k]),
            "best": name_of(workload.configurations[best[k]]),
            "best_ms": 1e3 * float(each.measured_s[k, best[k]]),
            "serf": name_of(workload.configurations[chosen[k]]),
            "serf_ms": 1e3 * float(each.measured_s[k, chosen[k]]),
        }
        for k in range(len(loads))
    ]


def _over_best(each: MeasuredLoads, chosen: np.ndarray) -> np.ndarray:
    """(loads,) measured latency of what was chosen, divided by that of the best."""
    rows = np.arange(len(chosen))
    return np.asarray(each.measured_s[rows, chosen] / each.measured_s.min(axis=1))


def _claims(workload: DNN, landscapes: list[MeasuredLoads]) -> list[Claim]:
    ratios = np.array([_over_best(each, _chosen(each)) for each in landscapes])  # (seeds, loads)
    blind = np.array([_over_best(each, _chosen(each, Queue.MD_C)) for each in landscapes])
    best = np.array([each.measured_s.argmin(axis=1) for each in landscapes])
    service = workload.instances[best]  # (seeds, loads)
    intra = np.array([c["intra_op_threads"] for c in workload.configurations])[best]
    identified = 100 * (ratios <= AS_GOOD_AS).mean(axis=1)
    name = workload.name
    high_load = service[:, -1]
    if INTERFERENCE[name] == "little interference":
        story, law = "intra-node parallelism at low, service parallelism at high load", ""
        verdict = verdict_of_machines((high_load > service[:, 0]) & (intra[:, -1] < intra[:, 0]))
    else:
        story, law = "service parallelism of only 2 at high load", " (its law)"
        verdict = NOT_COMPARABLE
    return [
        Claim(
            f"loads where SERF takes the best configuration (within 1 % of it), {name}",
            "100 %",
            bootstrap_mean(identified).text(".0f", " %"),
            REPRODUCES if identified.mean() > 99 else PARTLY if identified.mean() > 80 else FAILS,
        ),
        Claim(
            f"latency of what SERF takes, over the best's, {name}",
            "0 %",
            _text_of_ratios(ratios, ".2f"),
            verdict_of_latency(ratios),
        ),
        Claim(
            f"the same with service times profiled one at a time (M/D/c), {name}",
            "not given",
            _text_of_ratios(blind, ".1f"),
            NOT_COMPARABLE,
        ),
        Claim(
            f"best (service, intra) from the lowest to the highest load, {name}, means over machines{law}",
            story,
            f"({service[:, 0].mean():.1f}, {intra[:, 0].mean():.1f}) to "
            f"({high_load.mean():.1f}, {intra[:, -1].mean():.1f})",
            verdict,
        ),
    ]


def verdict_of_latency(ratios: np.ndarray) -> str:
    """The verdict on (seeds, loads) latencies of what SERF takes, divided by those of the best."""
    mean = float(ratios.mean())
    return REPRODUCES if mean <= AS_GOOD_AS else PARTLY if mean <= NEARLY_AS_GOOD_AS else FAILS


def verdict_of_machines(moves: np.ndarray) -> str:
    """The verdict on (seeds,) machines, of which those are true where the paper's statement holds."""
    return REPRODUCES if moves.all() else PARTLY if moves.mean() > 0.5 else FAILS


def _text_of_ratios(ratios: np.ndarray, digits: str) -> str:
    """The mean excess over (seeds, loads) where stable, and how often what was chosen is not."""
    stable = np.isfinite(ratios)
    excess = np.array([np.mean(each[np.isfinite(each)]) for each in ratios if np.isfinite(each).any()])
    text = bootstrap_mean(100 * (excess - 1)).text(digits, " %")
    return text if stable.all() else f"{text}, and unstable at {100 * (1 - stable.mean()):.0f} % of the loads"


def _draw(
    path: Path, workloads: Sequence[DNN], landscapes: dict[str, list[MeasuredLoads]], loads: np.ndarray
) -> None:
    figure, axes = drawing.new_figure(
        1,
        len(workloads),
        width=4.8,
        height=3.4,
        title="Best configuration by load (SERF, Fig. 12)",
        subtitle="Machine 0; labels: (service, inter, intra) parallelism of the best by measurement",
    )
    for ax, workload in zip(axes[0], workloads, strict=True):
        _draw_one(ax, workload, landscapes[workload.name][0], loads)
    axes[0, 0].legend(fontsize=8, frameon=False, loc="upper left")
    drawing.save(figure, path)


def _draw_one(ax: Axes, workload: DNN, each: MeasuredLoads, loads: np.ndarray) -> None:
    best, chosen = each.measured_s.argmin(axis=1), _chosen(each)
    rows = np.arange(len(loads))
    best_ms = 1e3 * each.measured_s[rows, best]
    ax.plot(loads, best_ms, color=figure_style.BLACK, marker="o", markersize=4, label="best by measurement")
    ax.plot(
        loads,
        1e3 * each.measured_s[rows, chosen],
        color=figure_style.BLUE,
        marker="x",
        linestyle="none",
        label="SERF's choice",
    )
    for k in range(len(loads)):
        if k == 0 or best[k] != best[k - 1]:
            ax.annotate(
                name_of(workload.configurations[best[k]]),
                (loads[k], best_ms[k]),
                xytext=(0, -12),
                textcoords="offset points",
                ha="left",
                va="top",
                fontsize=7,
                rotation=-30,
                color=figure_style.SOFT,
            )
    ax.set_ylim(0, 1.15 * best_ms.max())
    title = f"{workload.name}: {INTERFERENCE[workload.name]}"
    drawing.names(ax, "load (share of the largest capacity)", "mean latency (ms)", title)
