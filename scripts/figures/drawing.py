"""How every figure looks: plain axes, colours that the colour-blind can tell apart, direct labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

INK, SOFT, GRID = "#1f2933", "#616e7c", "#e4e7eb"

# Okabe and Ito's palette (2008), told apart by people of every kind of colour vision.
BLACK, ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#000000", "#e69f00", "#56b4e9", "#009e73", "#0072b2", "#d55e00", "#cc79a7", "#8a8f98",
)  # fmt: skip

SEQUENCE = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#d4b100")
"""Six ordered shades from dark to light (the viridis map, its pale end darkened)."""


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 5.0, height: float = 3.4, title: str = "",
    subtitle: str = "", **subplots: Any,
) -> tuple[Figure, np.ndarray]:  # fmt: skip
    """A white figure and its (rows, columns) array of plain axes; width and height in inches of one."""
    head = 0.75 if title else 0.15
    figure = Figure(figsize=(columns * width, rows * height + head), dpi=140, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False, **subplots)
    for ax in axes.flat:
        plain(ax)
    total = rows * height + head
    if title:
        figure.text(0.012, 1 - 0.22 / total, title, fontsize=13, fontweight="bold", color=INK, va="center")
        figure.text(0.012, 1 - 0.48 / total, subtitle, fontsize=9, color=SOFT, va="center")
    figure.tight_layout(rect=(0, 0, 1, 1 - (head - 0.1) / total))
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Writes the PNG, laid out for what was drawn."""
    height = figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.65 if figure.texts else 0.05) / height))
    figure.savefig(path)


def plain(ax: Axes) -> None:
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#9aa5b1")
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


def names(ax: Axes, x: str, y: str, title: str = "") -> None:
    ax.set_xlabel(x, color=INK, fontsize=9)
    ax.set_ylabel(y, color=INK, fontsize=9)
    if title:
        ax.set_title(title, color=INK, fontsize=10, loc="left")


def band(
    ax: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, label: str,
    linestyle: str = "-",
) -> None:  # fmt: skip
    """A line with its interval as a band."""
    ax.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)
    ax.plot(x, mean, color=colour, linewidth=1.7, linestyle=linestyle, label=label)


def label_lines_at_end(ax: Axes, gap: float = 0.055) -> None:
    """Names every labelled line at its right end, moved apart by `gap` of the axis's height."""
    ends = []
    for line in ax.get_lines():
        label, y = str(line.get_label()), np.asarray(line.get_ydata(), dtype=float)
        finite = np.flatnonzero(np.isfinite(y))
        if not label.startswith("_") and len(finite):
            x = np.asarray(line.get_xdata(), dtype=float)[finite[-1]]
            height = ax.transAxes.inverted().transform(ax.transData.transform((x, y[finite[-1]])))[1]
            ends.append((float(np.clip(height, 0.0, 1.0)), label, line.get_color()))
    ends.sort(key=lambda end: end[0])
    heights = _apart(np.array([end[0] for end in ends]), gap)
    for (_, label, colour), height in zip(ends, heights, strict=True):
        ax.annotate(label, (1.01, height), xycoords="axes fraction", color=colour, fontsize=8, va="center")


def _apart(heights: np.ndarray, gap: float) -> np.ndarray:
    """The nearest ascending heights that are at least `gap` apart and, if there is room, within [0, 1]."""
    moved = np.array(heights)
    for _ in range(200):
        for k in range(1, len(moved)):
            overlap = gap - (moved[k] - moved[k - 1])
            if overlap > 0:
                moved[k - 1] -= overlap / 2
                moved[k] += overlap / 2
        if len(moved) * gap <= 1:
            moved = np.clip(moved, 0.0, 1.0)
    return moved
