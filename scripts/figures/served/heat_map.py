"""Heat maps of latency over two knobs, the whole grid beside a small region of it (RRL, Figs. 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm

from rrl.views.figure_style import INK, SOFT
from scripts.figures import drawing
from scripts.figures.bootstrap import LEVEL, BootstrapInterval
from scripts.figures.result import FAILS, NO_CLAIM, PARTLY, REPRODUCES, Claim
from scripts.figures.served.cross_validation import SURELY, cheapest, dearest, judged, ratio, ratio_claim
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
    ms = coarse.latency_ms
    spread = ratio(judged(ms, dearest(ms)), judged(ms, cheapest(ms)))
    smooth = _smoothness(coarse, fine)
    noise = coarse.noise
    return [
        ratio_claim(
            f"{coarse.label}: dearest configuration, over the cheapest",
            "quite versatile globally",
            spread,
            VERSATILE,
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
    ms = other.latency_ms
    regret = ratio(judged(ms, cheapest(one.latency_ms)), judged(ms, cheapest(ms)))
    ranks = rank_correlation(one.mean_ms, other.mean_ms)
    regret_text = "one round" if np.isnan(regret.estimate) else regret.text(".2f")
    return [
        _unevenness_claim(f"{one.label} to {other.label}", np.log(ms / one.latency_ms)),
        Claim(
            f"{other.label}: latency of what is best at the other load, over the best",
            "–",
            f"{regret_text}; rank correlation of the two loads {ranks:.2f}",
            NO_CLAIM,
        ),
    ]


def _unevenness_claim(where: str, slower: np.ndarray) -> Claim:
    """Of (configurations, rounds) logarithms. Nothing reproduces that permutation would show as well."""
    what = f"{where}: how unevenly configurations slow down (95th over 5th percentile)"
    paper = "quite different even with a slight change"
    count, rounds = slower.shape
    if rounds == 1:
        return Claim(what, paper, "one round", NO_CLAIM)
    means = slower.mean(axis=1)
    draws = np.random.default_rng(0).choice(means, (_DRAWS, count))
    found = interval(float(unevenness(means)), unevenness(draws))
    median, bound = np.percentile(permuted_unevenness(slower), [50, 100 * LEVEL])
    verdict = REPRODUCES if found.low >= DIFFERENT else PARTLY if found.low > SURELY else FAILS
    return Claim(
        what,
        paper,
        f"{found.text('.2f')}; permuted within rounds {median:.2f}, {100 * LEVEL:g} % below {bound:.2f}",
        verdict if found.estimate > bound else FAILS,
    )


def unevenness(slower: np.ndarray) -> np.ndarray:
    """The 95th over the 5th percentile of (..., configurations) logarithms of slow-downs."""
    uneven: np.ndarray = np.exp(np.ptp(np.percentile(slower, [5, 95], axis=-1), axis=0))
    return uneven


def permuted_unevenness(slower: np.ndarray) -> np.ndarray:
    """(draws,) the unevenness that noise alone would show.

    In every round the slow-downs are dealt anew to the configurations. So none of them slows down more than
    another in more than one round, unless by chance.
    """
    rng = np.random.default_rng(0)
    rounds = np.broadcast_to(slower.T, (_DRAWS, *slower.T.shape))
    return unevenness(rng.permuted(rounds, axis=2).mean(axis=1))


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
