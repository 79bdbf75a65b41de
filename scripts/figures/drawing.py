"""The layout, bands and direct labels that the papers' figures share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rrl.views.figure_style import INK, SOFT, blank_figure, plain, spread

SEQUENCE = ("#440154", "#414487", "#2a788e", "#22a884", "#7ad151", "#d4b100")
"""Six ordered shades from dark to light (the viridis map, its pale end darkened)."""


def new_figure(
    rows: int = 1, columns: int = 1, *, width: float = 5.0, height: float = 3.4, title: str = "",
    subtitle: str = "", **subplots: Any,
) -> tuple[Figure, np.ndarray]:  # fmt: skip
    """A white figure and its (rows, columns) array of plain axes, each of a width and height in inches."""
    head = 0.75 if title else 0.15
    figure = blank_figure(columns * width, rows * height + head)
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
    """Writes the PNG, with a layout that fits what was drawn."""
    height = figure.get_figheight()
    figure.tight_layout(rect=(0, 0, 1, 1 - (0.65 if figure.texts else 0.05) / height))
    figure.savefig(path)


def names(ax: Axes, x: str, y: str, title: str = "") -> None:
    ax.set_xlabel(x, color=INK, fontsize=9)
    ax.set_ylabel(y, color=INK, fontsize=9)
    if title:
        ax.set_title(title, color=INK, fontsize=10, loc="left")


def band(
    ax: Axes, x: np.ndarray, mean: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, label: str,
    linestyle: str = "-",
) -> None:  # fmt: skip
    """Draws a line with its interval as a band."""
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
    heights = spread(np.array([end[0] for end in ends]), gap)
    for (_, label, colour), height in zip(ends, heights, strict=True):
        ax.annotate(label, (1.01, height), xycoords="axes fraction", color=colour, fontsize=8, va="center")
