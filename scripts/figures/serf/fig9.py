"""SERF, Fig. 9: the latency of the best configuration by load, measured and by four queueing models.

The workload is the one with interference (ImageNet-22K), with one machine for each seed. It runs at 10 loads
up to 0.9 of the largest capacity of the cluster. The paper's model predicts from a light profile
(`profiling`), at each load the configuration that is best by measurement, a long simulation. So do three
models that leave out interference, or deterministic service times, or both. The second panel has the same
errors over all configurations that are stable at the load (ρ up to 0.95).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rrl.queueing.interference import Queue, predict
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.loads import MeasuredLoads, landscape
from scripts.figures.serf.workloads import DNN, IMAGENET_22K, LOADS, name_of

LOOKS = {
    Queue.MD_INTERF_C: (figure_style.BLUE, "M/D_interf/c (SERF)"),
    Queue.MM_INTERF_C: (figure_style.ORANGE, "M/M_interf/c"),
    Queue.MD_C: (figure_style.GREEN, "M/D/c"),
    Queue.MM_C: (figure_style.VERMILION, "M/M/c"),
}
GOOD_PERCENT, POOR_PERCENT = 4.0, 10.0  # the paper gives the first, for its model, and none for others


def run(out: Path, seeds: int, workload: DNN = IMAGENET_22K, loads: np.ndarray = LOADS) -> FigureResult:
    landscapes = [landscape(workload, seed, loads) for seed in range(seeds)]
    predicted_s = {queue: np.array([_predicted_s(each, queue) for each in landscapes]) for queue in LOOKS}
    measured_s = np.array([each.measured_s for each in landscapes])  # (seeds, loads, K), inf where unstable
    best = measured_s.argmin(axis=2)[:, :, None]
    best_measured_s = np.take_along_axis(measured_s, best, axis=2)[:, :, 0]
    best_predicted_s = {
        queue: np.take_along_axis(each, best, axis=2)[:, :, 0] for queue, each in predicted_s.items()
    }
    write_csv(
        out / "serf-fig9.csv",
        [
            {
                "seed": seed,
                "load": float(load),
                "rate_per_s": float(landscapes[seed].rates_per_s[k]),
                "best_configuration": name_of(workload.configurations[best[seed, k, 0]]),
                "measured_ms": 1e3 * float(best_measured_s[seed, k]),
            }
            | {f"{q.value}_ms": 1e3 * float(each[seed, k]) for q, each in best_predicted_s.items()}
            for seed in range(seeds)
            for k, load in enumerate(loads)
        ],
    )
    of_best = {q: _mean_errors(each, best_measured_s) for q, each in best_predicted_s.items()}
    of_all = {q: _mean_errors(each, measured_s) for q, each in predicted_s.items()}
    _draw(out / "serf-fig9.png", loads, best_measured_s, best_predicted_s, of_all)
    return FigureResult(
        title="SERF, Fig. 9: queueing models against measurement",
        setting=(
            f"{len(workload.configurations)} configurations of a simulated {workload.name} at {len(loads)} "
            f"loads up to 0.9 of the largest capacity, on {seeds} machines."
        ),
        seeds=seeds,
        claims=(*_claims("best configurations", of_best), *_claims("all stable configurations", of_all)),
        pictures=("serf-fig9.png",),
        tables=("serf-fig9.csv",),
    )


def _predicted_s(each: MeasuredLoads, queue: Queue) -> np.ndarray:
    """(loads, K) mean latency; infinite where the model holds the configuration to be unstable."""
    return np.array(
        [
            predict(each.times_s, each.instances, rate * each.unit_loads, queue).mean_latency_s
            for rate in each.rates_per_s
        ]
    )


def _mean_errors(predicted_s: np.ndarray, measured_s: np.ndarray) -> np.ndarray:
    """(seeds,) mean error without sign, in percent, over the configurations that are stable by measurement.

    Where a model holds such a configuration to be unstable, it predicts no latency and is 100 % off.
    """
    stable = np.isfinite(measured_s)
    ratios = np.divide(predicted_s, measured_s, out=np.full_like(measured_s, np.nan), where=stable)
    ratios[np.isposinf(ratios)] = 2.0
    return np.array([100 * np.nanmean(np.abs(each - 1)) for each in ratios])


def _claims(what: str, errors: dict[Queue, np.ndarray]) -> list[Claim]:
    ours = errors[Queue.MD_INTERF_C].mean()
    claims = []
    for queue, each in errors.items():
        if queue is Queue.MD_INTERF_C:
            near = PARTLY if ours <= 2 * GOOD_PERCENT else FAILS
            paper, verdict = "2-4 % (Fig. 11)", REPRODUCES if ours <= GOOD_PERCENT else near
        else:
            paper = "poor (no figure given)"
            poor = each.mean() >= POOR_PERCENT
            verdict = REPRODUCES if poor else PARTLY if each.mean() > GOOD_PERCENT else FAILS
        text = bootstrap_mean(each).text(".1f", " %")
        claims.append(Claim(f"mean error of {queue.value}, {what}", paper, text, verdict))
    return claims


def _draw(
    path: Path,
    loads: np.ndarray,
    measured_s: np.ndarray,
    predicted_s: dict[Queue, np.ndarray],
    of_all: dict[Queue, np.ndarray],
) -> None:
    figure, axes = drawing.new_figure(
        1,
        2,
        width=4.6,
        height=3.2,
        title="Four queueing models against measurement (SERF, Fig. 9)",
        subtitle="Left: the best configuration at each load, machine 0. Right: every stable one, all",
    )
    left, right = axes[0]
    left.plot(
        loads, 1e3 * measured_s[0], color=figure_style.BLACK, marker="o", markersize=4, label="measured"
    )
    for queue, (colour, label) in LOOKS.items():
        left.plot(loads, 1e3 * predicted_s[queue][0], color=colour, linewidth=1.5, label=label)
    left.set_ylim(0, 2.5e3 * measured_s[0, -1])
    left.legend(fontsize=7.5, frameon=False)
    drawing.names(left, "load (share of the largest capacity)", "mean latency (ms)")
    for k, (queue, (colour, _)) in enumerate(LOOKS.items()):
        interval = bootstrap_mean(of_all[queue])
        right.barh(k, interval.estimate, color=colour, height=0.6)
        right.plot([interval.low, interval.high], [k, k], color=figure_style.BLACK, linewidth=1.2)
        right.annotate(
            f"{interval.estimate:.1f} %",
            (interval.high, k),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    right.set_yticks(range(len(LOOKS)), [label for _, label in LOOKS.values()])
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    drawing.names(right, "mean error (%)", "")
    drawing.save(figure, path)
