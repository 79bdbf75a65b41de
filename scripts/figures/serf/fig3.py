"""SERF, Fig. 3: the speed-up of a request's service by intra-node, inter-node and service parallelism.

| panel | simulated testbed (ImageNet-22K, one machine for each seed) | real server (`speedups`) |
|---|---|---|
| intra-node | 1 .. 8 threads, by a law (`workloads`) | 1 and 2 threads on 2 cores |
| inter-node | 1 .. 4 nodes a unit, by a law | none |
| service | 1 .. 8 in service, by a law | 1 and 2 in service on 2 cores |

A speed-up is the time with degree 1 over the time with the degree. The other degrees stay 1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from envs.scenarios.profiled import MODELS
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_mean
from scripts.figures.result import FAILS, NOT_COMPARABLE, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.serf.speedups import almost_constant, served_times_s, simulated_times_s
from scripts.figures.serf.workloads import CORES, IMAGENET_22K

NEARLY_LINEAR = 0.85  # of the degree
PANELS = ("intra-node", "inter-node", "service")


def run(out: Path, seeds: int) -> FigureResult:
    simulated = _simulated(seeds)
    served = {
        "intra-node": served_times_s(1)[:, :1] / np.stack([served_times_s(a)[:, 0] for a in (1, 2)], axis=1),
        "service": served_times_s(1)[:, :1] / served_times_s(1),
    }  # (models, degrees)
    write_csv(
        out / "serf-fig3.csv",
        [
            {"parallelism": panel, "of": of, "degree": degree + 1, "speedup": float(speedup)}
            for curves, names in ((simulated, [f"machine {k}" for k in range(seeds)]), (served, MODELS))
            for panel, rows in curves.items()
            for of, row in zip(names, rows, strict=True)
            for degree, speedup in enumerate(row)
        ],
    )
    _draw(out / "serf-fig3.png", simulated, served)
    return FigureResult(
        title="SERF, Fig. 3: speed-up by parallelism",
        setting=(
            f"Simulated testbed: ImageNet-22K on {seeds} machines. Real server: {len(MODELS)} served models "
            "profiled on 2 cores."
        ),
        seeds=seeds,
        claims=_claims(simulated, served),
        pictures=("serf-fig3.png",),
        tables=("serf-fig3.csv",),
    )


def _simulated(seeds: int) -> dict[str, np.ndarray]:
    """(seeds, degrees) speed-ups of each panel."""
    one_s = simulated_times_s(IMAGENET_22K, seeds, most=1)
    intra_s = [simulated_times_s(IMAGENET_22K, seeds, intra=a, most=1)[:, 0] for a in range(1, CORES + 1)]
    inter_s = [simulated_times_s(IMAGENET_22K, seeds, inter=i, most=1)[:, 0] for i in IMAGENET_22K.inter]
    service_s = simulated_times_s(IMAGENET_22K, seeds, most=CORES)
    return {
        "intra-node": one_s / np.stack(intra_s, axis=1),
        "inter-node": one_s / np.stack(inter_s, axis=1),
        "service": one_s / service_s,
    }


def _claims(simulated: dict[str, np.ndarray], served: dict[str, np.ndarray]) -> tuple[Claim, ...]:
    intra, inter, service = (simulated[panel] for panel in PANELS)
    two_threads, two_requests = served["intra-node"][:, 1], served["service"][:, 1]
    slower = 1 / two_requests - 1
    return (
        Claim(
            "intra-node speed-up with 3 threads, simulated (its law)",
            "close to linear",
            bootstrap_mean(intra[:, 2]).text(".2f", "x"),
            NOT_COMPARABLE,
        ),
        Claim(
            "intra-node speed-up with 8 threads, simulated (its law)",
            "slows down beyond 4",
            bootstrap_mean(intra[:, 7]).text(".2f", "x"),
            NOT_COMPARABLE,
        ),
        Claim(
            "intra-node speed-up with 2 threads, real server, five models",
            "close to linear",
            bootstrap_mean(two_threads).text(".2f", "x"),
            _nearly_linear(float(two_threads.mean()), 2),
        ),
        Claim(
            "inter-node speed-up with 2 nodes, simulated (its law)",
            "2x",
            bootstrap_mean(inter[:, 1]).text(".2f", "x"),
            NOT_COMPARABLE,
        ),
        Claim(
            "inter-node speed-up from 2 nodes to 4, simulated (its law)",
            "super-linear (above 2x)",
            bootstrap_mean(inter[:, 3] / inter[:, 1]).text(".2f", "x"),
            NOT_COMPARABLE,
        ),
        Claim(
            "service time with 2 in service over 1, simulated (its law)",
            "as 1",
            bootstrap_mean(1 / service[:, 1]).text(".2f", "x"),
            NOT_COMPARABLE,
        ),
        Claim(
            "service time with 4 in service over 1, simulated (its law)",
            "longer",
            bootstrap_mean(1 / service[:, 3]).text(".2f", "x"),
            NOT_COMPARABLE,
        ),
        Claim(
            "service time with 2 in service over 1, real server, five models on 2 cores",
            "as 1",
            bootstrap_mean(1 / two_requests).text(".2f", "x"),
            almost_constant(float(slower.mean())),
        ),
    )


def _nearly_linear(speedup: float, degree: int) -> str:
    """Partly: more than half of what the degree could gain."""
    if speedup >= NEARLY_LINEAR * degree:
        return REPRODUCES
    return PARTLY if speedup - 1 > (degree - 1) / 2 else FAILS


def _draw(path: Path, simulated: dict[str, np.ndarray], served: dict[str, np.ndarray]) -> None:
    figure, axes = drawing.new_figure(
        1,
        3,
        width=3.4,
        height=3.0,
        title="Speed-up of a request's service (SERF, Fig. 3)",
        subtitle="Blue: simulated, mean and 95 % over machines. Orange: served models, profiled on 2 cores",
    )
    for ax, panel in zip(axes[0], PANELS, strict=True):
        _draw_one(ax, panel, simulated[panel], served.get(panel))
    drawing.save(figure, path)


def _draw_one(ax: Axes, panel: str, simulated: np.ndarray, served: np.ndarray | None) -> None:
    degrees = np.arange(1, simulated.shape[1] + 1)
    drawing.band(ax, degrees, *bootstrap_band(simulated), figure_style.BLUE, "simulated")
    for row in [] if served is None else served:
        ax.plot(np.arange(1, len(row) + 1), row, color=figure_style.ORANGE, marker="o", markersize=3)
    if panel != "service":
        ax.plot(degrees, degrees, color=figure_style.GREY, linewidth=1, linestyle=":")
    drawing.names(ax, f"{panel} parallelism", "speed-up", panel)
