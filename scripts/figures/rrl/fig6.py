"""RRL, Fig. 6: difference in performance by difference in configuration, the premise of its regions.

| the paper | here |
|---|---|
| configurations of one system | those of Fig. 4 on the real server, and 1,000 of simulated machines |
| difference in configurations | Euclidean distance in the knobs' values |
| difference in performance | the ratio of two mean latencies, at least 1 (`served.landscape`) |

The real server's rows are those of Fig. 4. What is missing of them is measured first. In simulation the
expected latency of every configuration is known, so that nothing is noise there.

The premise holds where the rank correlation of distance and difference is surely positive. And pairs at most
2 apart must differ by at most half of what others do (medians, in logarithms).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes

from envs.scenarios.expected_costs import ExpectedCosts
from envs.scenarios.families import FIRST_FOR_JUDGING, RATE_PER_S, scenarios
from envs.simulated import PAPER_SPACE
from rrl.objective import MeanLatency
from rrl.space import ConfigurationSpace
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval, bootstrap_mean
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.rrl.fig4 import ROWS, Figure4Setting, served_landscapes
from scripts.figures.served.landscape import (
    NEAR,
    DistanceFigures,
    LatencyLandscape,
    Pairs,
    distance_figures,
    pairs,
)

NAME = "rrl-fig6"
NEAR_SHARE = 0.5  # of the logarithm of what far pairs differ by
SHOWN_PAIRS = 3000  # in a picture
PERCENTILES = (25, 50, 75)


@dataclass(frozen=True)
class Figure6Setting:
    served: Figure4Setting = field(default_factory=Figure4Setting)
    machines: int = 5
    knobs: str = PAPER_SPACE
    rate_per_s: float = RATE_PER_S


class DistancesOfMachines(NamedTuple):
    """What `DistanceFigures` has, each with its interval over machines."""

    rank_correlation: BootstrapInterval
    near: BootstrapInterval
    far: BootstrapInterval
    near_by_far: BootstrapInterval


def run(out: Path, seeds: int, setting: Figure6Setting | None = None) -> FigureResult:
    """Writes rrl-fig6.png and its CSV. `seeds` is the number of rounds on the real server."""
    setting = setting or Figure6Setting()
    served = served_landscapes(out, seeds, setting.served)
    simulated = [_simulated(FIRST_FOR_JUDGING + k, setting) for k in range(setting.machines)]
    claims: list[Claim] = []
    for each in served:
        claims += _claims(f"real server, {each.label}", distance_figures(each))
        claims.append(_noise_claim(each))
    claims += _claims(f"{len(simulated)} simulated machines", _of_machines(simulated))
    panels = [*served, simulated[0]]
    _draw(out / f"{NAME}.png", panels)
    write_csv(out / f"{NAME}.csv", [row for each in [*served, *simulated] for row in _table(each)])
    return FigureResult(
        title="RRL, Fig. 6: difference in performance by difference in configuration",
        setting=f"Real server: the measurements of Fig. 4, {len(setting.served.places)} configurations of "
        f"each model. Simulation: the expected latency of {len(simulated[0].values):,} configurations at "
        f"{setting.rate_per_s:g}/s on machines {FIRST_FOR_JUDGING} to "
        f"{FIRST_FOR_JUDGING + setting.machines - 1} of the family. Differences are ratios of mean "
        "latencies, medians over pairs. One round on the real server for each seed:",
        seeds=seeds,
        claims=tuple(claims),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv", ROWS),
    )


def _simulated(seed: int, setting: Figure6Setting) -> LatencyLandscape:
    (scenario,) = scenarios(f"family:{seed}")
    space = ConfigurationSpace.parse(setting.knobs)
    latency_ms = ExpectedCosts(scenario, space, MeanLatency()).mean_latency_ms(setting.rate_per_s)
    label = f"simulated machine {seed}, {setting.rate_per_s:g}/s"
    return LatencyLandscape(label, space.names, space.values, latency_ms[:, None])


def _of_machines(simulated: Sequence[LatencyLandscape]) -> DistancesOfMachines:
    each = [[of.estimate for of in distance_figures(landscape)] for landscape in simulated]
    return DistancesOfMachines(*(bootstrap_mean(np.array(column)) for column in zip(*each, strict=True)))


def _claims(where: str, of: DistanceFigures | DistancesOfMachines) -> list[Claim]:
    grows = of.rank_correlation.low > 0
    is_near = grows and of.near_by_far.high <= NEAR_SHARE
    verdict = REPRODUCES if is_near else PARTLY if grows and of.near_by_far.high < 1 else FAILS
    return [
        Claim(
            f"{where}: rank correlation of distance and difference",
            "differences grow with distance",
            of.rank_correlation.text(".2f"),
            REPRODUCES if grows else FAILS,
        ),
        Claim(
            f"{where}: typical difference at most {NEAR:g} apart, and further",
            "similar configurations perform alike",
            f"{of.near.text('.2f')} and {of.far.text('.2f')} times; {of.near_by_far.text('.2f')} of it in "
            "logarithms",
            verdict,
        ),
    ]


def _noise_claim(landscape: LatencyLandscape) -> Claim:
    noise = "one round" if np.isnan(landscape.noise) else f"{landscape.noise:.2f} times"
    what = f"real server, {landscape.label}: typical difference of two rounds of one configuration"
    return Claim(what, "–", noise, NO_CLAIM)


def _draw(path: Path, landscapes: Sequence[LatencyLandscape]) -> None:
    columns = min(3, len(landscapes))
    rows = -(-len(landscapes) // columns)
    figure, axes = drawing.new_figure(
        rows,
        columns,
        width=4.4,
        height=3.2,
        title="RRL, Fig. 6: difference in performance by difference in configuration",
        subtitle="a dot for each pair of configurations; lines: quartiles of the pairs at a distance",
    )
    for ax, landscape in zip(axes.flat, landscapes, strict=False):
        _draw_pairs(ax, pairs(landscape))
        drawing.names(ax, "distance", "ratio of latencies", landscape.label)
    for ax in axes.flat[len(landscapes) :]:
        ax.set_visible(False)
    drawing.save(figure, path)


def _draw_pairs(ax: Axes, of: Pairs) -> None:
    chosen = np.random.default_rng(0).permutation(len(of.distance))[:SHOWN_PAIRS]
    figure_style.log_axis(ax, "y")
    ax.plot(of.distance[chosen], of.difference[chosen], ".", color=figure_style.FAINT, markersize=2)
    x, quartiles = _by_distance(of)
    for line, width in zip(quartiles, (0.9, 1.8, 0.9), strict=True):
        ax.plot(x, line, color=figure_style.BLUE, linewidth=width)


def _by_distance(of: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Whole distances, and (quartiles, distances) of the differences of the pairs that round to each."""
    steps = np.rint(of.distance)
    x = np.unique(steps)
    quartiles = np.array([np.percentile(of.difference[steps == step], PERCENTILES) for step in x])
    return x, quartiles.T


def _table(landscape: LatencyLandscape) -> list[dict[str, object]]:
    x, quartiles = _by_distance(pairs(landscape))
    return [
        {"landscape": landscape.label, "distance": int(step), "lower_quartile": float(low)}
        | {"median": float(middle), "upper_quartile": float(high)}
        for step, low, middle, high in zip(x, *quartiles, strict=True)
    ]
