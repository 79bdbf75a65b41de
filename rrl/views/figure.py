"""The picture of a run: latency over time, the load, and the knobs, from its journal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rrl.knobs import in_words, shown, words_of
from rrl.records import Header, Record
from rrl.views import time_axis
from rrl.views.figure_style import INK, SOFT, blank_figure, log_axis, plain
from rrl.views.html_report.numbers import lower_or_higher, ms
from rrl.views.summary import LEFT_UNKNOWN, RunSummary

MEAN, P95, START, BEST, ALARM, HOLD = "#2563eb", "#93b4f5", SOFT, "#059669", "#dc2626", "#f59e0b"
MAX_LABELS = 4  # So many configurations at most are named in the picture.


@rc_context({"text.parse_math": False})  # a name may hold any $
def draw(header: Header, records: Sequence[Record], summary: RunSummary, path: Path) -> None:
    """Writes the PNG. Without a counted interval the picture says so."""
    shown = [r for r in records if r.counted]
    knobs = header.space.knobs
    heights = [5.2, 1.1] + [0.8] * len(knobs)
    figure = blank_figure(10, 1.3 + 0.66 * sum(heights))
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax in axes:
        plain(ax)
    if not shown:
        axes[0].text(0.5, 0.5, "no interval with requests yet", ha="center", transform=axes[0].transAxes)
    else:
        ends_min = time_axis.ends_min(shown, header.interval_s)
        _title(figure, header, summary)
        _latency(axes[0], shown, ends_min, summary)
        _steps(axes[1], ends_min, [r.measurement.arrival_rate_per_s for r in shown], INK, fill=True)
        axes[1].set_ylim(0, 1.25 * max(r.measurement.arrival_rate_per_s for r in shown))
        axes[1].yaxis.set_major_locator(MaxNLocator(2))
        _row_name(axes[1], "load\n(req/s)")
        for ax, knob in zip(axes[2:], knobs, strict=True):
            _knob(ax, knob.name, knob.values, ends_min, [r.configuration[knob.name] for r in shown])
        axes[-1].set_xlim(0, ends_min[-1])
        axes[-1].set_xlabel("minutes", color=SOFT, fontsize=9)
    figure.subplots_adjust(
        left=0.105, right=0.98, top=1 - 0.86 / figure.get_figheight(), bottom=0.075, hspace=0.2
    )
    figure.savefig(path)


def _title(figure: Figure, header: Header, summary: RunSummary) -> None:
    height = figure.get_figheight()
    start, best = summary.start, summary.best
    if summary.found_better and not math.isfinite(start.mean_ms + best.mean_ms):
        title = LEFT_UNKNOWN
    elif summary.found_better:  # Where threads count the latency may be higher.
        change = lower_or_higher(start.mean_ms, best.mean_ms)
        title = f"Mean latency {ms(start.mean_ms)} → {ms(best.mean_ms)} ms: {change}"
    else:
        known = f"{ms(start.mean_ms)} ms" if math.isfinite(start.mean_ms) else "not measured"
        title = f"Mean latency {known}: nothing better than the start is known"
    load = f"{ms(best.arrival_rate_per_s)} requests/s"
    line = f"{header.model} at {load}, agent {header.agent}, intervals of {header.interval_s:g} s"
    figure.text(0.105, 1 - 0.3 / height, title, fontsize=14, fontweight="bold", color=INK, va="center")
    at = (0.105, 1 - 0.56 / height)
    figure.text(*at, line, fontsize=9.5, color=SOFT, va="center")


def _latency(ax: Axes, shown: Sequence[Record], ends_min: np.ndarray, summary: RunSummary) -> None:
    middles = ends_min - np.diff(ends_min, prepend=0.0) / 2
    means = np.array([r.measurement.latency.mean_ms for r in shown])
    p95s = np.array([r.measurement.latency.p95_ms for r in shown])
    _phases(ax, shown, ends_min)
    _log_scale(ax, np.concatenate([means, p95s]))
    ax.plot(middles, p95s, color=P95, linewidth=1.3, label="p95", zorder=2)
    ax.plot(middles, means, color=MEAN, linewidth=1.8, marker="o", markersize=3.2, label="mean", zorder=3)
    for name, chosen, colour, marker in (
        ("aborted by the guard", [bool(r.measurement.aborted) for r in shown], ALARM, "X"),
        ("rolled back to the best known", [r.decision == "rollback" for r in shown], HOLD, "D"),
    ):
        where = np.flatnonzero(np.asarray(chosen) & np.isfinite(means))
        if len(where):
            ax.scatter(middles[where], means[where], marker=marker, s=42, color=colour, label=name,
                       edgecolors="white", linewidths=0.8, zorder=5)  # fmt: skip
    where = _changes(shown)
    ax.plot(ends_min[where], np.full(len(where), 0.012), "|", color=SOFT, markersize=5, markeredgewidth=0.8,
            transform=ax.get_xaxis_transform(), label="configuration changed")  # fmt: skip
    _level(ax, summary.start.mean_ms, "mean at the start", START, at=0.6)
    if summary.found_better:
        _level(ax, summary.best.mean_ms, "mean of the best", BEST, at=0.07)
    _label_improvements(ax, shown, middles, means)
    ax.set_ylabel("latency (ms)", color=INK, fontsize=9.5)
    ax.legend(loc="upper right", fontsize=8, ncols=5, frameon=False, bbox_to_anchor=(1.0, 1.085),
              borderaxespad=0, handlelength=1.4, columnspacing=1.4, labelcolor=INK)  # fmt: skip


def _level(ax: Axes, level_ms: float, name: str, colour: str, at: float) -> None:
    """A dashed line right across, named where the curve seldom is: early for the best, late for the start.

    There is none where the level was not measured.
    """
    if not math.isfinite(level_ms):
        return
    ax.axhline(level_ms, color=colour, linestyle=(0, (5, 4)), linewidth=1.2, zorder=1)
    ax.annotate(
        name,
        (at, level_ms),
        xycoords=("axes fraction", "data"),
        ha="center",
        va="center",
        fontsize=8.5,
        color=colour,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85},
        zorder=4,
    )


def _label_improvements(ax: Axes, shown: Sequence[Record], middles: np.ndarray, means: np.ndarray) -> None:
    """Names the configurations that were the best known when first measured, best last, well apart."""
    records = [i for i, r in enumerate(shown) if r.learned and r.kind == "tune" and math.isfinite(means[i])]
    lowest, improvements = math.inf, []
    for i in records:
        if shown[i].cost < 0.93 * lowest:
            improvements.append(i)
            lowest = shown[i].cost
    apart_min = middles[-1] / 4.5
    chosen: list[int] = []
    for i in reversed(improvements):
        if len(chosen) < MAX_LABELS and all(abs(middles[i] - middles[k]) > apart_min for k in chosen):
            chosen.append(i)
    for i in chosen:
        ax.scatter([middles[i]], [means[i]], s=60, marker="o", facecolors="white", edgecolors=BEST,
                   linewidths=1.8, zorder=6)  # fmt: skip
        share = middles[i] / middles[-1]
        side = "right" if share > 0.75 else "center" if share > 0.15 else "left"
        words = in_words(shown[i].configuration).split(" · ")
        half = math.ceil(len(words) / 2)
        text = f"{ms(means[i])} ms: " + " · ".join(words[:half]) + "\n" + " · ".join(words[half:])
        ax.annotate(
            text.strip(),
            (middles[i], means[i]),
            xytext=(0, -13),
            textcoords="offset points",
            ha=side,
            va="top",
            fontsize=8,
            color=BEST,
            linespacing=1.25,
            bbox={"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
            zorder=7,
        )


def _phases(ax: Axes, shown: Sequence[Record], ends_min: np.ndarray) -> None:
    """Shades what is no tuning: the baseline and the validation."""
    begins_min = np.concatenate([[0.0], ends_min[:-1]])
    i = 0
    while i < len(shown):
        last = i
        while last + 1 < len(shown) and shown[last + 1].kind == shown[i].kind:
            last += 1
        if shown[i].kind != "tune":
            ax.axvspan(begins_min[i], ends_min[last], color="#f5f7fa", zorder=0, linewidth=0)
            middle = (begins_min[i] + ends_min[last]) / 2
            at_min, side = (0.0, "left") if i == 0 else (middle, "center")  # The first may be narrow.
            ax.annotate(shown[i].kind, (at_min, 0.985), ha=side, va="top",
                        xycoords=("data", "axes fraction"), fontsize=8, color=SOFT)  # fmt: skip
        i = last + 1


def _knob(ax: Axes, name: str, values: Sequence[int], ends_min: np.ndarray, in_force: Sequence[int]) -> None:
    """Steps over the knob's values, equally spaced whatever they are."""
    _steps(ax, ends_min, [values.index(v) for v in in_force], MEAN)
    margin = 0.35 + 0.1 * (len(values) - 1)
    ax.set_ylim(-margin, len(values) - 1 + margin)
    ticks = sorted({0, len(values) - 1})
    ax.set_yticks(ticks, [shown(name, values[t]) for t in ticks])
    _row_name(ax, words_of(name).label.replace(" ", "\n", 1))


def _steps(ax: Axes, ends_min: np.ndarray, values: Sequence[float], colour: str, fill: bool = False) -> None:
    edges = np.concatenate([[0.0], ends_min])
    ax.stairs(values, edges, baseline=0 if fill else None, color=colour, linewidth=1.4)
    if fill:
        ax.stairs(values, edges, baseline=0, color=colour, alpha=0.08, fill=True)


def _row_name(ax: Axes, name: str) -> None:
    ax.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5, color=INK, labelpad=22)
    ax.yaxis.set_label_coords(-0.035, 0.5)


def _log_scale(ax: Axes, values_ms: np.ndarray) -> None:
    """Logarithmic, because a bad configuration can be a hundred times worse than a good one."""
    finite = values_ms[np.isfinite(values_ms) & (values_ms > 0)]
    log_axis(ax, "y")
    if len(finite):
        ax.set_ylim(finite.min() / 2.4, finite.max() * 1.6)


def _changes(shown: Sequence[Record]) -> np.ndarray:
    """The intervals after which the configuration changed."""
    numbers = np.array([r.number for r in shown])
    return np.flatnonzero(np.diff(numbers) != 0)
