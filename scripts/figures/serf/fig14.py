"""SERF, Fig. 14: the model's errors on other workloads than image classification by the paper's DNNs.

The paper ranks web pages. Here are five served models, of text, speech and images: their service times were
measured on the real server (`speedups`), and their queue is simulated. The model predicts from a light
profile of 10 requests a tuple with its noise (`profiling`), one for each seed. Beside it stands what it
would predict from exact service times. Configurations have 1 to 4 instances with 1 and 2 intra-op threads.
Loads are shares of each one's own capacity, as in Fig. 11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from envs.scenarios.profiled import MODELS, measured
from rrl.queueing.interference import capacity_per_s, predict
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.profiling import AS_THE_RANGES, exact_times_s, profiled_times_s
from scripts.figures.serf.workloads import LOADS, enough_requests, measured_means_s, name_of

CONFIGURATIONS = tuple(
    {"instances": c, "nodes_per_unit": 1, "intra_op_threads": a} for a in (1, 2) for c in range(1, 5)
)
PAPER = {"mean": 1.07, "90th percentile": 3.0, "95th percentile": 5.0}


def run(
    out: Path, seeds: int, models: Sequence[str] = MODELS, loads: Sequence[float] = tuple(LOADS)
) -> FigureResult:
    rows = [row for model in models for seed in range(seeds) for row in _cases(model, seed, loads)]
    write_csv(out / "serf-fig14.csv", rows)
    errors = {
        note: np.array(
            [[row[column] for row in rows if row["seed"] == seed] for seed in range(seeds)], dtype=float
        )
        for note, column in (
            ("light profile", "error_percent"),
            ("exact service times", "exact_error_percent"),
        )
    }
    _draw(out / "serf-fig14.png", rows, models)
    return FigureResult(
        title="SERF, Fig. 14: errors on other workloads",
        setting=(
            f"{len(CONFIGURATIONS)} configurations of {len(models)} served models x {len(loads)} loads: "
            f"measured service times, simulated queue, {seeds} light profiles each."
        ),
        seeds=seeds,
        claims=tuple(claim for note, each in errors.items() for claim in _claims(note, each)),
        pictures=("serf-fig14.png",),
        tables=("serf-fig14.csv",),
    )


def _claims(note: str, errors: np.ndarray) -> list[Claim]:
    """From `errors`, (seeds, cases) in percent. Partly: at most twice the paper's figure."""
    figures = {
        "mean": errors.mean(axis=1),
        "90th percentile": np.percentile(errors, 90, axis=1),
        "95th percentile": np.percentile(errors, 95, axis=1),
    }
    return [
        Claim(
            f"{what} of the errors, five served models, {note}",
            f"{PAPER[what]:g} %" if what == "mean" else f"< {PAPER[what]:g} %",
            bootstrap_mean(each).text(".2f", " %"),
            REPRODUCES if each.mean() <= PAPER[what] else PARTLY if each.mean() <= 2 * PAPER[what] else FAILS,
        )
        for what, each in figures.items()
    ]


def _cases(model: str, seed: int, loads: Sequence[float]) -> list[dict[str, str | int | float]]:
    machine = measured(model)
    instances = np.array([configuration["instances"] for configuration in CONFIGURATIONS])
    exact_s = exact_times_s(CONFIGURATIONS, machine)
    capacities_per_s = capacity_per_s(exact_s, instances)
    times_s = profiled_times_s(CONFIGURATIONS, machine, 1000 * MODELS.index(model) + seed)
    rows: list[dict[str, str | int | float]] = []
    for load in loads:
        rates_per_s = load * capacities_per_s
        predicted_s, by_exact_s = (
            predict(each_s, instances, rates_per_s).mean_latency_s for each_s in (times_s, exact_s)
        )
        for k, configuration in enumerate(CONFIGURATIONS):
            measured_s = measured_means_s(
                machine,
                configuration,
                float(rates_per_s[k]),
                enough_requests(load),
                [seed, len(rows)],
                scv=AS_THE_RANGES.scv(1),
            ).latency_s
            rows.append(
                {
                    "model": model,
                    "seed": seed,
                    "configuration": name_of(configuration),
                    "utilisation": float(load),
                    "measured_ms": 1e3 * measured_s,
                    "predicted_ms": 1e3 * float(predicted_s[k]),
                    "error_percent": _error_percent(float(predicted_s[k]), measured_s),
                    "exact_error_percent": _error_percent(float(by_exact_s[k]), measured_s),
                }
            )
    return rows


def _error_percent(predicted_s: float, measured_s: float) -> float:
    """Without sign. A configuration that the profile makes look unstable has no prediction: 100 % off."""
    return 100.0 if math.isinf(predicted_s) else 100 * abs(predicted_s / measured_s - 1)


def _draw(path: Path, rows: list[dict[str, str | int | float]], models: Sequence[str]) -> None:
    figure, axes = drawing.new_figure(
        width=5.6,
        height=3.2,
        title="Errors of SERF's model on served models (SERF, Fig. 14)",
        subtitle="Share of configurations x loads x profiles whose mean latency is predicted that well",
    )
    ax = axes[0, 0]
    for colour, model in zip(figure_style.COLOURS, models, strict=False):
        errors = np.sort([float(row["error_percent"]) for row in rows if row["model"] == model])
        shares = 100 * np.arange(1, len(errors) + 1) / len(errors)
        ax.plot(errors, shares, color=colour, linewidth=1.7, label=model)
    for share, percent in ((90, PAPER["90th percentile"]), (95, PAPER["95th percentile"])):
        ax.plot(percent, share, marker="x", color=figure_style.BLACK, linestyle="none")
    ax.set_xlim(0, 15)
    ax.legend(fontsize=8, frameon=False, loc="lower right")
    drawing.names(ax, "error of the mean latency (%)", "cases (%)")
    drawing.save(figure, path)
