"""The latency of every interval over time, against the start's, the best's and the limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from rrl.records import Record
from rrl.views import time_axis
from rrl.views.html_report import charts
from rrl.views.html_report.markup import Children, percent
from rrl.views.html_report.numbers import count, in_figures, log_ticks, ms, share_of_log
from rrl.views.html_report.run_view import RunView

HEIGHT = 250.0  # In pixels.
NAME_HEIGHT = 15.0
PHASES = {"baseline": "start", "validation": "validation", "wait": "waiting"}


def latency_chart(run: RunView) -> Element:
    means = np.array([r.measurement.latency.mean_ms for r in run.records])
    p95s = np.array([r.measurement.latency.p95_ms for r in run.records])
    middles = (run.begins_min + run.ends_min) / 2 / run.length_min
    low, high = _range([*means, *p95s, run.header.slo_p95_ms or math.nan])

    def y(value_ms: float) -> float:
        return HEIGHT * (1 - share_of_log(min(max(value_ms, low), high), low, high))

    levels = _levels(run)
    lines = [
        charts.line(_points(time_axis.medians(middles, values), y), class_)
        for values, class_ in ((p95s, "p95-line"), (means, "mean-line"))
    ]
    return charts.plot(
        HEIGHT,
        f"Mean{' and p95' if run.tells_percentiles else ''} latency of each interval; mean at the start "
        f"{ms(run.summary.start.mean_ms)} ms, of the best {ms(run.summary.best.mean_ms)} ms",
        _phases(run),
        unmeasured(run, HEIGHT),
        (
            (charts.level(y(t), "grid"), charts.words("-8", y(t) + 4, in_figures(t), "end"))
            for t in log_ticks(low, high)
        ),
        (charts.level(y(level.at_ms), f"level {level.class_}") for level in levels),
        charts.stretched(HEIGHT, charts.area(list(time_axis.reach(middles, means)), y, "mean-reach"), lines),
        () if is_long(run) else _dots(middles, means, y),
        _marks(run, middles, means, y),
        _level_names(levels, y),
        class_="latency",
    )


def is_long(run: RunView) -> bool:
    """True if its intervals are too many to be shown one by one."""
    return time_axis.is_long(run.records)


def _points(course: Iterable[charts.Point], y: Callable[[float], float]) -> Iterator[charts.Point | None]:
    for x, value in course:
        yield (x, y(value)) if _drawn(value) else None


def _dots(middles: np.ndarray, means: np.ndarray, y: Callable[[float], float]) -> Iterator[Element]:
    for x, mean in zip(middles, means, strict=True):
        if _drawn(mean):
            yield charts.dot(x, y(mean), 2.3, "mean-dot")


def _marks(
    run: RunView, middles: np.ndarray, means: np.ndarray, y: Callable[[float], float]
) -> Iterator[Element]:
    for record, x, mean in zip(run.records, middles, means, strict=True):
        for symbol, title in marks_of(record, is_long(run)):
            yield charts.mark(symbol, x, y(mean) if _drawn(mean) else 10.0, title)


class Level(NamedTuple):
    """A latency worth a line right across."""

    name: str
    at_ms: float
    class_: str


def _levels(run: RunView) -> list[Level]:
    """The limit and the means of start and best, highest latency first."""
    summary, limit_ms = run.summary, run.header.slo_p95_ms
    levels = [Level("start", summary.start.mean_ms, "start")]
    if summary.found_better:
        levels.append(Level("best", summary.best.mean_ms, "best"))
    if limit_ms is not None:
        levels.append(Level("p95 limit", limit_ms, "limit"))
    return sorted((level for level in levels if _drawn(level.at_ms)), key=lambda level: -level.at_ms)


def _level_names(levels: Sequence[Level], y: Callable[[float], float]) -> Children:
    """At the line's end where there is a margin, or on it; never one over the other."""
    names: list[Element] = []
    lowest = -math.inf
    for name, at_ms, class_ in levels:
        lowest = max(y(at_ms) + 4, lowest + NAME_HEIGHT)
        names += [
            charts.words("100%", lowest, f"{name} {ms(at_ms)}", class_=f"level-name {class_} roomy", dx=7),
            charts.words("100%", lowest - 8, f"{name} {ms(at_ms)}", "end", f"level-name {class_} cramped"),
        ]
    return names


def _phases(run: RunView) -> Children:
    """Shades what is no tuning, and names it where there is room."""
    shapes: list[Element] = []
    i = 0
    while i < len(run.records):
        last, kind = i, run.records[i].kind
        while last + 1 < len(run.records) and run.records[last + 1].kind == kind:
            last += 1
        begin, end = run.share(run.begins_min[i]), run.share(run.ends_min[last])
        if kind != "tune":
            shapes.append(charts.band(begin, end, HEIGHT, "phase"))
            if end - begin > 0.03 or i == 0:  # The first has room beside it.
                at = "start" if begin < 0.05 else "end" if end > 0.95 else "middle"
                x = {"start": begin, "end": end, "middle": (begin + end) / 2}[at]
                shapes.append(charts.words(percent(x), -5, PHASES.get(kind, kind), at))
        i = last + 1
    return shapes


def unmeasured(run: RunView, height: float) -> Children:
    """Hatches the intervals in which there was no target, or no requests."""
    spans: list[tuple[float, float, str]] = []
    for record, begin, end in zip(run.records, run.begins_min, run.ends_min, strict=True):
        if record.counted:
            continue
        why = record.measurement.gap or "no requests arrived"
        if spans and spans[-1][1] == begin and spans[-1][2] == why:
            spans[-1] = (spans[-1][0], end, why)
        else:
            spans.append((begin, end, why))
    return [charts.band(run.share(b), run.share(e), height, "gap", why) for b, e, why in spans]


def marks_of(record: Record, long: bool) -> list[tuple[str, str]]:
    """What happened in an interval. Of a long run, what the changes show is left out."""
    marks = []
    if record.decision == "rollback" and not long:
        marks.append(("rolled-back", f"rolled back to the best known: {record.reason}"))
    if record.measurement.aborted:
        marks.append(("aborted", f"aborted by the guard: {record.measurement.aborted}"))
    if record.failures:
        marks.append(("failed", f"{count(record.failures, 'request')} failed"))
    return marks


def _range(values_ms: Sequence[float]) -> tuple[float, float]:
    shown = [value for value in values_ms if _drawn(value)]
    if not shown:
        return 1.0, 10.0
    return min(shown) / 1.35, max(shown) * 1.25


def _drawn(value_ms: float) -> bool:
    return math.isfinite(value_ms) and value_ms > 0
