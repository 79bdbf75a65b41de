"""RRL, Theorem 4.1 by numbers: the gap and the rate of Algorithm 1 against their bounds (section 4.3).

| statement | bound | yes | partly |
|---|---|---|---|
| distance of Q_t and Q̂_t, at any t (Lemma 4.2) | Δ/(1 - γ) | in every run | in the mean |
| distance of Q_t and Q*, as t goes to infinity | Δ/(1 - γ) | in the end | with what Q̂ has left |
| exponent by which that of Q̂ and Q* falls (Lemma 4.3) | κ | at most 0.05 less | perhaps |
| how many times sooner regions are there | n_δ | three quarters of it | sooner |

κ is R (1 - γ) where that is below ½, and else ½. R is 1: `small_world` draws loads and configurations
uniformly. Beside ½ the theorem has a factor of logarithms, which is left out. All gaps are the largest
over all pairs of load and configuration, divided by the largest Q*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from envs.scenarios.families import scenarios
from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band, bootstrap_mean
from scripts.figures.result import FAILS, PARTLY, REPRODUCES, Claim, FigureResult, write_csv
from scripts.figures.rrl.long_runs import FIRST_MACHINE
from scripts.figures.rrl.small_world import (
    ALIKE,
    BIASED,
    ESTIMATES,
    EXACT,
    RATES_PER_S,
    CoursesOfQ,
    SmallWorld,
    learn,
)

NAME = "rrl-theorem"
SHORT_OF_EXPONENT = 0.05
AS_MANY = 0.75  # of n_δ
ROUNDING = 1e-9  # relative


@dataclass(frozen=True)
class TheoremSetting:
    radii: tuple[int, ...] = (0, 1, 2)
    discounts: tuple[float, ...] = (0.0, 0.5, 0.8)
    decisions: int = 30_000
    intervals: int = 300  # simulated for each pair


Courses = Mapping[tuple[int, float], CoursesOfQ]
"""By radius and discount."""


def run(out: Path, seeds: int, setting: TheoremSetting | None = None) -> FigureResult:
    """Writes rrl-theorem.png and its CSV."""
    setting = setting or TheoremSetting()
    (scenario,) = scenarios(f"family:{FIRST_MACHINE}")
    world = SmallWorld.of(scenario.machine, setting.intervals)
    courses = {
        (radius, discount): learn(world, radius, discount, setting.decisions, seeds)
        for radius, discount in product(setting.radii, setting.discounts)
    }
    _draw(out / f"{NAME}.png", courses, seeds)
    rows = [row for where, course in courses.items() for row in _rows(*where, course)]
    write_csv(out / f"{NAME}.csv", rows)
    return FigureResult(
        title="RRL, Theorem 4.1 by numbers",
        setting=f"One simulated machine, {len(world.space)} configurations, {len(RATES_PER_S)} load levels, "
        f"{setting.decisions:,} decisions drawn uniformly. Distances: the largest of all pairs, by the "
        "largest Q*.",
        seeds=seeds,
        claims=tuple(_claims(courses)),
        pictures=(f"{NAME}.png",),
        tables=(f"{NAME}.csv",),
    )


def rate_bound(discount: float) -> float:
    """κ, without the logarithms."""
    return min(0.5, 1.0 - discount)


def exponents(course: CoursesOfQ) -> np.ndarray:
    """(runs,) by which power of t the gap of Q̂ fell over the last decade."""
    last = course.decisions >= course.decisions[-1] / 10
    x = np.log(course.decisions[last])
    return np.array([-np.polyfit(x, np.log(gap[last]), 1)[0] for gap in course.gap[EXACT]])


def times_sooner(of_points: CoursesOfQ, of_regions: CoursesOfQ) -> float:
    """How many times sooner regions are at the gap that points end with; 0 if they never are."""
    mean = of_regions.gap[EXACT].mean(axis=0)
    above = np.flatnonzero(mean > of_points.gap[EXACT][:, -1].mean())
    first = int(above[-1]) + 1 if len(above) else 0
    return float(of_points.decisions[-1] / of_regions.decisions[first]) if first < len(mean) else 0.0


class Judged(NamedTuple):
    """One number beside its bound."""

    bound: str
    measured: str
    verdict: str


def _claims(courses: Courses) -> list[Claim]:
    """A row for each statement, kind of estimates and radius, with all discounts in it."""
    radii, discounts = (list(dict.fromkeys(values)) for values in zip(*courses, strict=True))
    claims = [
        _row(
            f"{what}, {estimates} estimates, δ = {radius}",
            {γ: judge(courses[radius, γ], estimates, γ) for γ in discounts},
        )
        for what, judge in (("largest distance from Q̂", _apart), ("distance from Q* in the end", _gap))
        for estimates in (ALIKE, BIASED)
        for radius in radii
        if radius > 0
    ]
    claims += [
        _row(
            f"exponent by which the distance of Q̂ from Q* falls, δ = {radius}",
            {γ: _rate(courses[radius, γ], γ) for γ in discounts},
        )
        for radius in radii
    ]
    return claims + [
        _row(
            f"times sooner than δ = 0 at the same distance of Q̂ from Q*, δ = {radius}",
            {γ: _speed(courses[0, γ], courses[radius, γ]) for γ in discounts},
        )
        for radius in radii
        if radius > 0
    ]


def _row(what: str, judged: Mapping[float, Judged]) -> Claim:
    """All discounts' numbers, and the worst of their verdicts."""
    bounds, measured = ("; ".join(each[k] for each in judged.values()) for k in range(2))
    worst = max((each.verdict for each in judged.values()), key=(REPRODUCES, PARTLY, FAILS).index)
    return Claim(f"{what}, γ = {', '.join(f'{γ:g}' for γ in judged)}", bounds, measured, worst)


def _apart(course: CoursesOfQ, estimates: str, discount: float) -> Judged:
    apart, bound = course.apart[estimates], course.error_bound[estimates] / (1 - discount)
    most = bound * (1 + ROUNDING)
    verdict = REPRODUCES if apart.max() <= most else PARTLY if apart.mean() <= most else FAILS
    return Judged(f"at most {bound:.3f}", f"{apart.max():.3f}", verdict)


def _gap(course: CoursesOfQ, estimates: str, discount: float) -> Judged:
    gap, bound = bootstrap_mean(course.gap[estimates][:, -1]), course.error_bound[estimates] / (1 - discount)
    left = float(course.gap[EXACT][:, -1].mean())
    verdict = REPRODUCES if gap.high <= bound else PARTLY if gap.estimate <= bound + left else FAILS
    return Judged(f"at most {bound:.3f}", f"{gap.estimate:.3f} (Q̂: {left:.3f})", verdict)


def _rate(course: CoursesOfQ, discount: float) -> Judged:
    measured, bound = bootstrap_mean(exponents(course)), rate_bound(discount)
    least = bound - SHORT_OF_EXPONENT
    verdict = REPRODUCES if measured.estimate >= least else PARTLY if measured.high >= least else FAILS
    return Judged(f"at least {bound:.2g}", measured.text(".2f"), verdict)


def _speed(of_points: CoursesOfQ, of_regions: CoursesOfQ) -> Judged:
    times, size = times_sooner(of_points, of_regions), of_regions.region_size
    verdict = REPRODUCES if times >= AS_MANY * size else PARTLY if times > 1 else FAILS
    return Judged(f"n_δ = {size:.1f}", f"{times:.1f}", verdict)


def _rows(radius: int, discount: float, course: CoursesOfQ) -> list[dict[str, object]]:
    return [
        {"radius": radius, "discount": discount, "estimates": estimates, "decision": int(t)}
        | {"gap": float(mean), "low": float(low), "high": float(high)}
        | {"bound": course.error_bound[estimates] / (1 - discount)}
        for estimates in ESTIMATES
        for t, mean, low, high in zip(course.decisions, *bootstrap_band(course.gap[estimates]), strict=True)
    ]


def _draw(path: Path, courses: Courses, seeds: int) -> None:
    discounts = list(dict.fromkeys(discount for _, discount in courses))
    figure, axes = drawing.new_figure(
        2,
        len(discounts),
        width=4.3,
        height=3.2,
        title="RRL, Theorem 4.1: the largest |Q - Q*| over the decisions",
        subtitle=f"{seeds} runs. Above: real latencies, dashed: the bound's slope. Below: biased estimates, "
        "dashed: the bound Δ/(1 - γ)",
        sharex=True,
        sharey="row",
    )
    shades = dict(zip(dict.fromkeys(radius for radius, _ in courses), drawing.SEQUENCE[::2], strict=False))
    for (above, below), discount in zip(axes.T, discounts, strict=True):
        for ax in (above, below):
            figure_style.log_axis(ax, "x", subs=(1.0,))
            figure_style.log_axis(ax, "y", subs=(1.0, 3.0))
        for (radius, γ), course in courses.items():
            if γ == discount:
                x, colour = course.decisions, shades[radius]
                for ax, estimates in ((above, EXACT), (below, BIASED)):
                    drawing.band(ax, x, *bootstrap_band(course.gap[estimates]), colour, f"δ = {radius}")
                slope = course.gap[EXACT][:, -1].mean() * (x / x[-1]) ** -rate_bound(discount)
                above.plot(x, slope, color=colour, linewidth=1.0, linestyle="--")
                if radius > 0:
                    bound = course.error_bound[BIASED] / (1 - discount)
                    below.axhline(bound, color=colour, linewidth=1.0, linestyle="--")
        drawing.names(above, "", "largest |Q - Q*|", f"γ = {discount:g}, real latencies")
        drawing.names(below, "decision", "largest |Q - Q*|", f"γ = {discount:g}, biased estimates")
        above.legend(fontsize=8, frameon=False, labelcolor="linecolor", loc="lower left")
    drawing.save(figure, path)
