"""How all pictures look: plain axes, colours that the colour-blind can tell apart, names kept apart."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK, SOFT, FAINT, GRID = "#1f2933", "#616e7c", "#c9d0d8", "#e4e7eb"

# Okabe and Ito's palette (2008), told apart by people of every kind of colour vision.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7", "#8a8f98",
)  # fmt: skip

COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
"""For lines, in the order in which they are told apart best."""


def blank_figure(width: float, height: float) -> Figure:
    """A white figure of so many inches that can be saved without a display."""
    figure = Figure(figsize=(width, height), dpi=140, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain(ax: Axes) -> None:
    """The look of all axes: no frame, no ticks, a faint grid."""
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(GRID)
    ax.tick_params(which="both", colors=SOFT, labelsize=8.5, length=0)
    ax.grid(axis="y", color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def log_axis(ax: Axes, which: str, subs: tuple[float, ...] = (1.0, 2.0, 5.0)) -> None:
    """Makes the "x" or "y" axis logarithmic, with plain numbers (1,000 and not 10³) at its ticks."""
    (ax.set_xscale if which == "x" else ax.set_yscale)("log")
    axis = ax.xaxis if which == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(base=10, subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axis.set_minor_formatter(NullFormatter())


def spread(wanted: np.ndarray, apart: float) -> np.ndarray:
    """Ascending places in [0, 1], each as near to the (ascending) wanted as keeping `apart` allows.

    Where there is no room for all, they end at 1 and begin below 0.
    """
    offsets = apart * np.arange(len(wanted))
    blocks: list[list[float]] = []  # (sum, count) of neighbours that share one place
    for place in np.asarray(wanted, dtype=float) - offsets:
        blocks.append([float(place), 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    places = np.repeat([total / count for total, count in blocks], [int(count) for _, count in blocks])
    room = 1.0 - float(offsets[-1]) if len(offsets) else 1.0
    return np.asarray(np.clip(places, min(0.0, room), room) + offsets)
