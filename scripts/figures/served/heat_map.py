"""Heat maps of latency over two knobs, the whole grid beside a small region of it (RRL, Figs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from rrl.views.figure_style import INK, SOFT
from scripts.figures import drawing
from scripts.figures.bootstrap import BootstrapInterval
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim
from scripts.figures.served.landscape import (
    LatencyLandscape,
    interval,
    median_interval,
    pairs,
    rank_correlation,
)

NEIGHBOURS = 1.5  # at most so many steps apart, diagonal ones included
VERSATILE = 2.0  # the dearest configuration costs at least so many times the cheapest
SMOOTH_SHARE = 0.5  # neighbours differ by at most this share of what any two do, in logarithms
DIFFERENT = 2.0  # a change of load slows one configuration so many times more than another
PALETTE = "viridis_r"  # the lighter the colour, the lower the latency
_DRAWS = 1000


def draw(path: Path, title: str, subtitle: str, panels: Sequence[Sequence[LatencyLandscape]]) -> None:
    """A row for each load of a model, the whole grid on the left and the fine region on the right."""
    figure, axes = drawing.new_figure(
        len(panels), max(map(len, panels)), width=4.6, height=3.5, title=title, subtitle=subtitle
    )
    for row, landscapes in zip(axes, panels, strict=True):
        for ax, landscape in zip(row, landscapes, strict=True):
            _draw(ax, landscape)
    drawing.save(figure, path)


def _draw(ax: Axes, landscape: LatencyLandscape) -> None:
    x, y, grid_ms = landscape.grid_ms()
    low, high = np.nanmin(grid_ms), np.nanmax(grid_ms)
    norm = LogNorm(low, max(high, 1.01 * low))
    ax.imshow(grid_ms, origin="lower", aspect="auto", cmap=PALETTE, norm=norm)
    for (row, column), ms in np.ndenumerate(grid_ms):
        if np.isfinite(ms):
            dark = ms > np.sqrt(low * high)
            ax.text(
                column, row, f"{ms:.0f}", ha="center", va="center", fontsize=6.5,
                color="white" if dark else INK,
            )  # fmt: skip
    ax.set_xticks(range(len(x)), [str(value) for value in x])
    ax.set_yticks(range(len(y)), [str(value) for value in y])
    ax.grid(visible=False)
    ax.tick_params(colors=SOFT)
    x_name, y_name = (knob.replace("_", " ") for knob in landscape.knobs)
    drawing.names(ax, x_name, y_name, f"{landscape.label} (ms)")


def shape_claims(coarse: LatencyLandscape, fine: LatencyLandscape) -> list[Claim]:
    """That latency varies globally and is smooth locally. Neighbours are so by their place in the grid."""
    ratio = _spread(coarse)
    smooth = _smoothness(coarse, fine)
    noise = coarse.noise
    return [
        Claim(
            f"{coarse.label}: dearest configuration, over the cheapest",
            "quite versatile globally",
            ratio.text(".2f"),
            REPRODUCES if ratio.low >= VERSATILE else PARTLY if ratio.low > 1.1 else FAILS,
        ),
        Claim(
            f"{coarse.label}: typical ratio of neighbours in the fine grid, as a share of that of any two "
            "in the coarse one (logarithms)",
            "smooth locally",
            smooth.text(".2f"),
            REPRODUCES if smooth.high <= SMOOTH_SHARE else PARTLY if smooth.high < 1 else FAILS,
        ),
        Claim(
            f"{coarse.label}: typical ratio of two rounds of one configuration",
            "–",
            "one round" if np.isnan(noise) else f"{noise:.3f}",
            NO_CLAIM,
        ),
    ]


def load_claims(one: LatencyLandscape, other: LatencyLandscape) -> list[Claim]:
    """That the latencies are distributed differently at another load. Both are of the same configurations."""
    slower = np.log(other.mean_ms / one.mean_ms)
    rng = np.random.default_rng(0)
    draws = rng.choice(slower, (_DRAWS, len(slower)))
    ratio = interval(
        float(np.exp(np.ptp(np.percentile(slower, [5, 95])))),
        np.exp(np.ptp(np.percentile(draws, [5, 95], axis=1), axis=0)),
    )
    best = int(np.argmin(one.mean_ms))
    regret = float(other.mean_ms[best] / other.mean_ms.min())
    ranks = rank_correlation(one.mean_ms, other.mean_ms)
    what = f"{one.label} to {other.label}: how unevenly configurations slow down (95th over 5th percentile)"
    verdict = REPRODUCES if ratio.low >= DIFFERENT else PARTLY if ratio.low > 1.1 else FAILS
    return [
        Claim(what, "quite different even with a slight change", ratio.text(".2f"), verdict),
        Claim(
            f"{other.label}: latency of what is best at the other load, over the best",
            "–",
            f"{regret:.2f}; rank correlation of the two loads {ranks:.2f}",
            NO_CLAIM,
        ),
    ]


def _spread(landscape: LatencyLandscape) -> BootstrapInterval:
    """Largest over smallest latency, over rounds drawn with replacement."""
    logs = np.log(landscape.latency_ms)
    rounds = logs.shape[1]
    rng = np.random.default_rng(0)
    draws = [np.exp(np.ptp(logs[:, rng.integers(rounds, size=rounds)].mean(axis=1))) for _ in range(_DRAWS)]
    return interval(float(landscape.mean_ms.max() / landscape.mean_ms.min()), np.array(draws))


def _smoothness(coarse: LatencyLandscape, fine: LatencyLandscape) -> BootstrapInterval:
    """ln of the neighbours' median ratio in the fine grid, over that of all pairs of the coarse one."""
    near = pairs(by_place(fine))
    any_two = median_interval(pairs(coarse).difference)
    logs = np.log(near.difference[near.distance <= NEIGHBOURS])
    of_neighbours = median_interval(logs)
    typical = float(np.log(any_two.estimate))
    return BootstrapInterval(*(value / typical if typical > 0 else np.inf for value in of_neighbours))


def by_place(landscape: LatencyLandscape) -> LatencyLandscape:
    """The landscape with each value replaced by its place among the values of its knob."""
    places = np.column_stack([np.unique(column, return_inverse=True)[1] for column in landscape.values.T])
    return LatencyLandscape(landscape.label, landscape.knobs, places, landscape.latency_ms)
