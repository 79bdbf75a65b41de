"""How values over the decisions of long runs are drawn and tabled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes

from rrl.views import figure_style
from scripts.figures import drawing
from scripts.figures.bootstrap import bootstrap_band
from scripts.figures.rrl.contenders import Contender

WINDOW = 21
"""The decisions whose mean is a point of the pictures."""

POINTS = 200
"""A line has about so many, so that its table is small."""


def smoothed(values: np.ndarray, window: int = WINDOW) -> np.ndarray:
    """(runs, decisions): the mean over the last `window` decisions, fewer at the start."""
    sums = np.cumsum(np.pad(values.astype(float), ((0, 0), (1, 0))), axis=1)
    last = np.arange(1, values.shape[1] + 1)
    first = np.maximum(0, last - window)
    result: np.ndarray = (sums[:, last] - sums[:, first]) / (last - first)
    return result


def shown(decisions: int) -> np.ndarray:
    """The indices of the decisions that are drawn, the last one among them."""
    step = max(1, decisions // POINTS)
    return np.arange(decisions - 1, -1, -step)[::-1]


def course(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of (runs, decisions) values: the decisions drawn (from 1 on), mean, low and high, each (points,)."""
    at = shown(values.shape[1])
    return at + 1, *bootstrap_band(smoothed(values)[:, at])


def rows(values: np.ndarray) -> Iterator[dict[str, object]]:
    """A row for each point of a course."""
    for decision, *band in zip(*course(values), strict=True):
        mean, low, high = map(float, band)
        yield {"decision": int(decision), "mean": mean, "low": low, "high": high}


def draw_load(ax: Axes, rates_per_s: np.ndarray, title: str) -> None:
    """Draws the (runs, decisions) arrival rates, with the first run's in front.

    Axes may share their scale, so it reaches as far as what was drawn before.
    """
    others_reach = ax.get_ylim()[1]
    for k, rates in reversed(list(enumerate(rates_per_s))):
        colour, width = (figure_style.INK, 1.2) if k == 0 else ("#d5dae0", 0.7)
        ax.plot(np.arange(1, len(rates) + 1), rates, color=colour, linewidth=width, drawstyle="steps-mid")
    ax.set_ylim(0, max(others_reach, 1.1 * rates_per_s.max()))
    drawing.names(ax, "", "requests/s", f"{title} (black: run 1)")


def draw_over_time(
    ax: Axes, values: Mapping[str, np.ndarray], looks: Mapping[str, Contender], name: str
) -> None:
    """Draws each contender's (runs, decisions) on a log axis."""
    figure_style.log_axis(ax, "y")
    for each, of_runs in values.items():
        draw_line(ax, looks[each], *course(of_runs))
    drawing.names(ax, "", name)
    drawing.label_lines_at_end(ax, gap=0.08)


def draw_line(
    ax: Axes, look: Contender, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray
) -> None:
    """Draws a contender's line. A whole one has its interval as a band."""
    if look.linestyle == "-":
        drawing.band(ax, x, mean, low, high, look.colour, look.label)
    else:
        ax.plot(x, mean, color=look.colour, linewidth=1.4, linestyle=look.linestyle, label=look.label)


def draw_oracle(ax: Axes, oracle: np.ndarray) -> None:
    """Draws the lowest possible of (runs, decisions), dashed."""
    x, mean, _, _ = course(oracle)
    ax.plot(x, mean, color=figure_style.BLACK, linewidth=1.4, linestyle="--", label="oracle")
