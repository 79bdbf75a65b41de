"""SERF, Fig. 11: how far the model's mean latency is from the measured one, over configurations and loads.

Every configuration of each workload runs at 10 loads, shares of its own capacity c·μ_c from 0.09 to 0.9.
There is one machine for each seed. 20, 40 and 80 configurations give the paper's 200, 400 and 800 cases a
machine. The model predicts from a light profile: 10 requests for each parallelism tuple, with their noise.

| testbed, a long simulation | variation of service times (`profiling`) |
|---|---|
| homogeneous: a time is set when service starts | as Fig. 5's ranges |
| processor sharing: service slows down whenever another request joins | as Fig. 5's ranges |
| SCV as printed | as Fig. 5's SCVs |

In the first and the third the testbed is what the model describes, but for the variation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrl.queueing.interference import capacity_per_s, predict
from rrl.queueing.simulator import Discipline
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_mean
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.profiling import (
    AS_PRINTED,
    AS_THE_RANGES,
    Variation,
    exact_times_s,
    profiled_times_s,
)
from scripts.figures.serf.workloads import (
    DNN,
    LOADS,
    WORKLOADS,
    enough_requests,
    measured_means_s,
    name_of,
)

MEAN_PERCENT, P90_PERCENT, P95_PERCENT = 4.0, 10.0, 12.0  # the paper's, for every workload


class Testbed(NamedTuple):
    name: str
    variation: Variation
    discipline: Discipline = "fcfs"


TESTBEDS = (
    Testbed("homogeneous", AS_THE_RANGES),
    Testbed("processor sharing", AS_THE_RANGES, discipline="ps"),
    Testbed("SCV as printed", AS_PRINTED),
)


def run(
    out: Path,
    seeds: int,
    workloads: Sequence[DNN] = WORKLOADS,
    loads: Sequence[float] = tuple(LOADS),
    testbeds: Sequence[Testbed] = TESTBEDS,
) -> FigureResult:
    rows = [
        row
        for workload in workloads
        for seed in range(seeds)
        for testbed in testbeds
        for row in _cases(workload, seed, testbed, loads)
    ]
    write_csv(out / "serf-fig11.csv", rows)
    errors = {
        (workload.name, testbed.name): np.array(
            [
                [
                    row["error_percent"]
                    for row in rows
                    if (row["workload"], row["testbed"], row["seed"]) == (workload.name, testbed.name, seed)
                ]
                for seed in range(seeds)
            ],
            dtype=float,
        )
        for workload in workloads
        for testbed in testbeds
    }
    _draw(out / "serf-fig11.png", errors, workloads, testbeds)
    return FigureResult(
        title="SERF, Fig. 11: prediction errors of the M/D_interf/c model",
        setting=(
            f"{sum(len(w.configurations) for w in workloads)} configurations of three simulated workloads x "
            f"{len(loads)} loads on {seeds} machines; errors of the mean latency, without sign."
        ),
        seeds=seeds,
        claims=tuple(
            claim
            for (workload, testbed), each in errors.items()
            for claim in _claims(workload, testbed, each)
        ),
        pictures=("serf-fig11.png",),
        tables=("serf-fig11.csv",),
    )


def _cases(workload: DNN, seed: int, testbed: Testbed, loads: Sequence[float]) -> list[dict[str, object]]:
    machine = workload.machine(seed)
    times_s = profiled_times_s(workload.configurations, machine, seed, testbed.variation)
    capacities_per_s = capacity_per_s(exact_times_s(workload.configurations, machine), workload.instances)
    rows: list[dict[str, object]] = []
    for load in loads:
        rates_per_s = load * capacities_per_s
        predicted_s = predict(times_s, workload.instances, rates_per_s).mean_latency_s
        for k, configuration in enumerate(workload.configurations):
            measured_s = measured_means_s(
                machine,
                configuration,
                rates_per_s[k],
                enough_requests(load),
                [seed, len(rows)],
                testbed.discipline,
                testbed.variation.scv(configuration["nodes_per_unit"]),
            ).latency_s
            rows.append(
                {
                    "workload": workload.name,
                    "testbed": testbed.name,
                    "seed": seed,
                    "configuration": name_of(configuration),
                    "utilisation": float(load),
                    "rate_per_s": float(rates_per_s[k]),
                    "measured_ms": 1e3 * measured_s,
                    "predicted_ms": 1e3 * float(predicted_s[k]),
                    "error_percent": _error_percent(float(predicted_s[k]), measured_s),
                }
            )
    return rows


def _error_percent(predicted_s: float, measured_s: float) -> float:
    """Without sign. A configuration that the profile makes look unstable has no prediction: 100 % off."""
    return 100.0 if math.isinf(predicted_s) else 100 * abs(predicted_s / measured_s - 1)


def _claims(workload: str, testbed: str, errors: np.ndarray) -> list[Claim]:
    """The claims from `errors`, (seeds, cases) in percent, with intervals over machines."""
    figures = (
        ("mean error", "2-4 %", MEAN_PERCENT, errors.mean(axis=1)),
        ("90th percentile of errors", "< 10 %", P90_PERCENT, np.percentile(errors, 90, axis=1)),
        ("95th percentile of errors", "< 12 %", P95_PERCENT, np.percentile(errors, 95, axis=1)),
    )
    return [
        Claim(
            f"{what}, {workload}, {testbed}",
            paper,
            bootstrap_mean(each).text(".1f", " %"),
            _verdict(each.mean(), limit),
        )
        for what, paper, limit, each in figures
    ]


def _verdict(percent: float, limit: float) -> str:
    """Reproduces: at most the paper's figure. Partly: above it, by less than as much again."""
    return REPRODUCES if percent <= limit else PARTLY if percent <= 2 * limit else FAILS


def _draw(
    path: Path,
    errors: Mapping[tuple[str, str], np.ndarray],
    workloads: Sequence[DNN],
    testbeds: Sequence[Testbed],
) -> None:
    figure, axes = drawing.new_figure(
        1,
        len(workloads),
        width=3.6,
        height=3.0,
        title="Errors of SERF's model (SERF, Fig. 11)",
        subtitle="Share of configurations x loads x machines whose mean latency is predicted that well",
        sharey=True,
    )
    colours = (figure_style.BLUE, figure_style.ORANGE, figure_style.GREEN)
    for ax, workload in zip(axes[0], workloads, strict=True):
        for colour, testbed in zip(colours, testbeds, strict=False):
            sorted_errors = np.sort(errors[workload.name, testbed.name].ravel())
            shares = np.arange(1, len(sorted_errors) + 1) / len(sorted_errors)
            ax.plot(sorted_errors, 100 * shares, color=colour, linewidth=1.7, label=testbed.name)
        for percent, share in ((P90_PERCENT, 90), (P95_PERCENT, 95)):
            ax.plot(percent, share, marker="x", color=figure_style.BLACK, linestyle="none")
        ax.set_xlim(0, 20)
        drawing.names(ax, "error of the mean latency (%)", "cases (%)", workload.name)
    axes[0, -1].plot(
        [], [], marker="x", color=figure_style.BLACK, linestyle="none", label="the paper's bounds"
    )
    axes[0, -1].legend(fontsize=7.5, frameon=False, loc="lower right")
    drawing.save(figure, path)
