"""The picture of a run: latency over time, the load, and the knobs, from its journal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rrl.knobs import in_words, model_and_knob, shown, words_of
from rrl.records import Header, Record
from rrl.views import time_axis
from rrl.views.figure_style import INK, SOFT, blank_figure, log_axis, plain
from rrl.views.html_report.numbers import lower_or_higher, minute_ticks, ms
from rrl.views.summary import KEPT_UNKNOWN, RunSummary

MEAN, P95, START, BEST, ALARM, HOLD = "#2563eb", "#93b4f5", SOFT, "#059669", "#dc2626", "#f59e0b"
MAX_LABELS = 4  # So many configurations at most are named in the picture.
MAX_LETTERS = 30  # Of a model's name under the title. A longer one has its middle left out.
MAX_LETTERS_OF_SEVERAL = 16  # Of the name of one of several models, beside a knob.
MAX_LETTERS_OF_LINE = 44  # Of the configurations named in the picture.
MAX_LINES = 3
MAX_TIMES = 8  # So many times at most stand at the axis.
LEFT_INCHES = 1.05  # The margin, where the names of the rows need no more.
NAME_INCHES_FROM_AXES = 0.3  # Where the ticks between need no more.


@rc_context({"text.parse_math": False})  # a name may hold any $
def draw(header: Header, records: Sequence[Record], summary: RunSummary, path: Path) -> None:
    """Writes the PNG. Without a counted interval the picture says so."""
    counted = [r for r in records if r.counted]
    if not counted:
        _draw_nothing(header, path)
        return
    knobs = header.space.knobs
    heights = [5.2, 1.1] + [0.8] * len(knobs)
    figure = blank_figure(10, 1.3 + 0.66 * sum(heights))
    axes = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for ax in axes:
        plain(ax)
    ends_min = time_axis.ends_min(records, header.interval_s)
    rates_per_s = [r.measurement.arrival_rate_per_s if r.counted else math.nan for r in records]
    _title(figure, header, summary)
    _latency(axes[0], records, ends_min, summary, header.slo_p95_ms)
    _steps(axes[1], ends_min, rates_per_s, INK, fill=True)
    axes[1].set_ylim(0, 1.25 * max(r.measurement.arrival_rate_per_s for r in counted) or 1.0)
    axes[1].yaxis.set_major_locator(MaxNLocator(2))
    _row_name(axes[1], "load\n(req/s)")
    for ax, knob in zip(axes[2:], knobs, strict=True):
        in_force = [r.configuration[knob.name] if r.was_in_force else None for r in records]
        _knob(ax, knob.name, knob.values, ends_min, in_force)
    _time(axes[-1], float(ends_min[-1]))
    _arrange(figure, list(axes))
    figure.savefig(path)


def _draw_nothing(header: Header, path: Path) -> None:
    figure = blank_figure(10, 1.2)
    line = f"{_shortened(header.model, MAX_LETTERS)}, agent {header.agent}: no interval with requests yet"
    _head(figure, "Nothing was measured", line)
    figure.savefig(path)


def _time(ax: Axes, length_min: float) -> None:
    """Round times in the unit that suits the run's length, as in the report."""
    ax.set_xlim(0, length_min)
    ax.set_xticks(*zip(*minute_ticks(length_min, MAX_TIMES), strict=True))
    ax.set_xlabel("since the first interval began", color=SOFT, fontsize=9)


def _title(figure: Figure, header: Header, summary: RunSummary) -> None:
    start, best = summary.start, summary.best
    doubt = "" if summary.validated else ", not validated"
    if summary.found_better and not math.isfinite(start.mean_ms + best.mean_ms):
        title = KEPT_UNKNOWN
    elif summary.found_better:  # Where threads count the latency may be higher.
        start_ms = summary.start_to_compare_ms
        change = lower_or_higher(start_ms, best.mean_ms)
        title = f"Mean latency {ms(start_ms)} → {ms(best.mean_ms)} ms: {change}{doubt}"
    else:
        known = f"{ms(start.mean_ms)} ms" if math.isfinite(start.mean_ms) else "not measured"
        title = f"Mean latency {known}: nothing better than the start is known"
    load = f"{ms(best.arrival_rate_per_s)} requests/s"
    if doubt and summary.is_start_told_beside_best:
        load += ", the start as expected there"
    model = _shortened(header.model, MAX_LETTERS)
    line = f"{model} at {load}, agent {header.agent}, intervals of {header.interval_s:g} s"
    _head(figure, title, line)


def _head(figure: Figure, title: str, line: str) -> None:
    height = figure.get_figheight()
    figure.text(0.105, 1 - 0.3 / height, title, fontsize=14, fontweight="bold", color=INK, va="center")
    figure.text(0.105, 1 - 0.56 / height, line, fontsize=9.5, color=SOFT, va="center")


def _latency(
    ax: Axes, shown: Sequence[Record], ends_min: np.ndarray, summary: RunSummary, limit_ms: float | None
) -> None:
    middles = ends_min - np.diff(ends_min, prepend=0.0) / 2
    means = np.array([r.measurement.latency.mean_ms if r.counted else math.nan for r in shown])
    p95s = np.array([r.measurement.latency.p95_ms if r.counted else math.nan for r in shown])
    _unmeasured(ax, shown, ends_min)
    _phases(ax, shown, ends_min)
    _log_scale(ax, np.concatenate([means, p95s, [limit_ms or math.nan]]))
    _courses(ax, middles, means, p95s)
    is_long = time_axis.is_long(shown)  # Of a long run, what the changes show is left out.
    for name, chosen, colour, marker in (
        ("aborted by the guard", [bool(r.measurement.aborted) for r in shown], ALARM, "X"),
        ("rolled back", [r.decision == "rollback" and not is_long for r in shown], HOLD, "D"),
        ("requests failed", [bool(r.failures) for r in shown], ALARM, "^"),
    ):
        where = np.flatnonzero(np.asarray(chosen) & np.isfinite(means))
        if len(where):
            ax.scatter(middles[where], means[where], marker=marker, s=42, color=colour, label=name,
                       edgecolors="white", linewidths=0.8, zorder=5)  # fmt: skip
    where = _changes(shown)
    if len(where):
        ax.plot(ends_min[where], np.full(len(where), 0.012), "|", color=SOFT, markersize=5,
                markeredgewidth=0.8, transform=ax.get_xaxis_transform(),
                label="configuration changed")  # fmt: skip
    if limit_ms is not None:
        _level(ax, limit_ms, "p95 limit", ALARM, at=0.36, dashes=(2, 3))
    _level(ax, summary.start.mean_ms, "mean at the start", START, at=0.6)
    if summary.found_better:
        _level(ax, summary.best.mean_ms, "mean of the best", BEST, at=0.07)
    _label_improvements(ax, shown, middles, means)
    ax.set_ylabel("latency (ms)", color=INK, fontsize=9.5)
    ax.legend(loc="upper right", fontsize=8, ncols=7, frameon=False, bbox_to_anchor=(1.0, 1.085),
              borderaxespad=0, handlelength=1.4, columnspacing=1.2, labelcolor=INK)  # fmt: skip


def _courses(ax: Axes, middles: np.ndarray, means: np.ndarray, p95s: np.ndarray) -> None:
    """Mean and p95 of each interval. Of a long run the medians of its spans, and how far the mean reaches."""
    mean, p95 = (np.array(list(time_axis.medians(middles, values))) for values in (means, p95s))
    if np.isfinite(p95s).any():
        ax.plot(*p95.T, color=P95, linewidth=1.3, label="p95", zorder=2)
    reach = np.array(list(time_axis.reach(middles, means)))
    marker = "" if len(reach) else "o"
    ax.plot(*mean.T, color=MEAN, linewidth=1.8, marker=marker, markersize=3.2, label="mean", zorder=3)
    if len(reach):
        ax.fill_between(*reach.T, color=MEAN, alpha=0.22, linewidth=0, label="reach of the mean", zorder=1.5)


def _level(
    ax: Axes, level_ms: float, name: str, colour: str, at: float, dashes: tuple[float, float] = (5, 4)
) -> None:
    """A dashed line right across, named where the curve seldom is: early for the best, late for the start.

    There is none where the level was not measured.
    """
    if not math.isfinite(level_ms):
        return
    ax.axhline(level_ms, color=colour, linestyle=(0, dashes), linewidth=1.2, zorder=1)
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
        words = _in_short_words(shown[i].configuration)
        ax.annotate(
            "\n".join(_in_lines([f"{ms(means[i])} ms: {words[0]}", *words[1:]])),
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


def _unmeasured(ax: Axes, records: Sequence[Record], ends_min: np.ndarray) -> None:
    """Shades the intervals in which there was no target, or no requests."""
    begins_min = np.concatenate([[0.0], ends_min[:-1]])
    name = "nothing measured"
    for record, begin_min, end_min in zip(records, begins_min, ends_min, strict=True):
        if not record.counted:
            ax.axvspan(begin_min, end_min, color=ALARM, alpha=0.13, zorder=0.5, linewidth=0, label=name)
            name = ""  # The legend has it once.


def _knob(
    ax: Axes, name: str, values: Sequence[int], ends_min: np.ndarray, in_force: Sequence[int | None]
) -> None:
    """Steps over the knob's values, equally spaced whatever they are."""
    _steps(ax, ends_min, [math.nan if v is None else values.index(v) for v in in_force], MEAN)
    margin = 0.35 + 0.1 * (len(values) - 1)
    ax.set_ylim(-margin, len(values) - 1 + margin)
    ticks = sorted({0, len(values) - 1})
    ax.set_yticks(ticks, [shown(name, values[t]) for t in ticks])
    model, knob = model_and_knob(name)
    if model:
        _row_name(ax, f"{_shortened(model, MAX_LETTERS_OF_SEVERAL)}\n{words_of(knob).label}")
    else:
        _row_name(ax, words_of(name).label.replace(" ", "\n", 1))


def _steps(ax: Axes, ends_min: np.ndarray, values: Sequence[float], colour: str, fill: bool = False) -> None:
    edges = np.concatenate([[0.0], ends_min])
    width = 0.5 if len(values) > time_axis.MAX_DOTS else 1.4
    ax.stairs(values, edges, baseline=0 if fill else None, color=colour, linewidth=width)
    if fill:
        ax.stairs(values, edges, baseline=0, color=colour, alpha=0.08, fill=True)


def _row_name(ax: Axes, name: str) -> None:
    ax.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8.5, color=INK, labelpad=22)


def _arrange(figure: Figure, axes: Sequence[Axes]) -> None:
    """Makes the left margin as wide as the rows' names and ticks are, and puts the names beside the ticks."""
    width, height = figure.get_size_inches()
    figure.draw_without_rendering()  # The ticks are only known then.
    ticks = [label.get_window_extent().width for ax in axes[1:] for label in ax.get_yticklabels()]
    names = [ax.yaxis.label.get_window_extent().width for ax in axes[1:]]
    from_axes = max(NAME_INCHES_FROM_AXES, max(ticks) / figure.dpi + 0.17)
    left = max(LEFT_INCHES, from_axes + max(names) / figure.dpi + 0.1) / width
    right = 0.98
    figure.subplots_adjust(left=left, right=right, top=1 - 0.86 / height, bottom=0.075, hspace=0.2)
    for ax in axes[1:]:
        ax.yaxis.set_label_coords(-from_axes / ((right - left) * width), 0.5)


def _in_short_words(configuration: Mapping[str, int]) -> list[str]:
    """A phrase for each knob, the names of several models shortened."""
    phrases = []
    for name, value in configuration.items():
        model, knob = model_and_knob(name)
        short = f"{_shortened(model, MAX_LETTERS_OF_SEVERAL)}.{knob}" if model else name
        phrases.append(in_words({short: value}))
    return phrases


def _in_lines(phrases: Sequence[str]) -> list[str]:
    """Two lines of as many phrases; where these would be too long, as many lines as there is room for."""
    half = math.ceil(len(phrases) / 2)
    lines = [" · ".join(part) for part in (phrases[:half], phrases[half:]) if part]
    if max(map(len, lines)) <= MAX_LETTERS_OF_LINE:
        return lines
    lines = [phrases[0]]
    for phrase in phrases[1:]:
        if len(f"{lines[-1]} · {phrase}") <= MAX_LETTERS_OF_LINE:
            lines[-1] += f" · {phrase}"
        elif len(lines) < MAX_LINES:
            lines.append(phrase)
        else:  # The rows of the knobs tell the rest.
            lines[-1] += " …"
            break
    return lines


def _shortened(name: str, letters: int) -> str:
    """The name, or its beginning and its end: names that begin alike often differ there."""
    if len(name) <= letters:
        return name
    end = (letters - 1) // 2
    return f"{name[: letters - 1 - end]}…{name[-end:]}"


def _log_scale(ax: Axes, values_ms: np.ndarray) -> None:
    """Logarithmic, because a bad configuration can be a hundred times worse than a good one."""
    finite = values_ms[np.isfinite(values_ms) & (values_ms > 0)]
    log_axis(ax, "y")
    if len(finite):
        ax.set_ylim(finite.min() / 2.4, finite.max() * 1.6)


def _changes(records: Sequence[Record]) -> np.ndarray:
    """The intervals after which the configuration changed, where it is known to have been in force."""
    known = [i for i, r in enumerate(records) if r.was_in_force]
    after = [b - 1 for a, b in pairwise(known) if records[a].number != records[b].number]
    return np.array(after, dtype=np.intp)
