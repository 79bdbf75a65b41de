"""What can be had for how many threads: every configuration measured at one load, and Pareto's front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree.ElementTree import Element

from rrl.knobs import in_words
from rrl.views.html_report import charts
from rrl.views.html_report.markup import Children, percent, scrolled, tag
from rrl.views.html_report.numbers import count, in_figures, log_ticks, lower_or_higher, ms, share_of_log
from rrl.views.html_report.run_view import RunView
from rrl.views.tradeoff import Tradeoff, TradeoffPoint, keeps_limit

HEIGHT = 220.0
MARGIN = 0.04  # of the width, so that no mark stands on the edge
NAME_HEIGHT = 14.0

Axis = tuple[str, Callable[[TradeoffPoint], float]]
THREADS: Axis = ("threads", lambda point: float(point.threads))
ANSWERS: Axis = ("answers/s", lambda point: point.answered_per_s)


def tradeoff_section(run: RunView) -> Children:
    measured = run.tradeoff
    if len(measured.points) < 2:
        return None
    low, high = measured.rates_per_s
    what = (
        f"At {ms(low)} to {ms(high)} requests/s: {count(len(measured.points), 'configuration')} measured. "
        f"Those of the front ({len(measured.front)}) are beaten by none in {measured.statistic} latency, "
        f"answers and threads together."
    )
    axes = [THREADS, *([ANSWERS] if measured.answers_differ else [])]
    return [
        tag("p", what, class_="note"),
        [_plot(run, measured, axis) for axis in axes],
        _table(run, measured),
        None if measured.answers_differ else tag("p", _ALL_ANSWERED, class_="note"),
    ]


_ALL_ANSWERED = (
    "All of them answered as many requests as came, so answers tell none apart. "
    "How many more each would bear is asked with --bench."
)


def _plot(run: RunView, measured: Tradeoff, axis: Axis) -> Element:
    name, of = axis
    points, front = measured.points, measured.front
    low, high = _range([point.latency_ms for point in points] + [run.header.slo_p95_ms or 0.0] * _shows(run))
    least, most = min(map(of, points)), max(map(of, points))

    def x(value: float) -> float:
        if most <= least:
            return 0.5
        return MARGIN + (1 - 2 * MARGIN) * share_of_log(value, least, most)

    def y(latency_ms: float) -> float:
        return HEIGHT * (1 - share_of_log(latency_ms, low, high))

    shapes: list[Children] = [
        (charts.level(y(t), "grid"), charts.words("-8", y(t) + 4, in_figures(t), "end"))
        for t in log_ticks(low, high, 6)
    ]
    shapes.append(_ticks(axis, points, x, least, most))
    if _shows(run):
        limit_ms = run.header.slo_p95_ms or 0.0
        shapes.append(charts.level(y(limit_ms), "level limit"))
        name_of_limit = f"p95 limit {ms(limit_ms)}"
        shapes.append(charts.words("0", y(limit_ms) - 5, name_of_limit, class_="level-name limit"))
    if axis is THREADS and not measured.answers_differ:
        edges = [*(x(of(point)) for point in front), 1.0]
        stairs = charts.stairs(edges, [y(point.latency_ms) for point in front], "front-line")
        shapes.append(charts.stretched(HEIGHT, stairs))
    for point in sorted(points, key=lambda each: each in front):  # The front is drawn last.
        shapes.append(_dot(measured, point, x(of(point)), y(point.latency_ms)))
    shapes.append(_names(run, points, lambda point: (x(of(point)), y(point.latency_ms))))
    label = f"{measured.statistic} latency by {name} of {count(len(points), 'configuration')}"
    caption = f"{measured.statistic} latency (ms) against {name}, both logarithmic; the front is filled"
    plot = charts.plot(HEIGHT + 20, label, *shapes, class_="tradeoff")
    return tag("figure", tag("div", plot, class_="track-plot"), tag("figcaption", caption))


def _shows(run: RunView) -> bool:
    """Whether there is a limit to draw, and percentiles to hold against it."""
    return run.header.slo_p95_ms is not None and run.tradeoff.statistic == "p95"


def _range(values_ms: Sequence[float]) -> tuple[float, float]:
    shown = [value for value in values_ms if value > 0]
    return min(shown) / 1.3, max(shown) * 1.3


def _ticks(
    axis: Axis, points: Sequence[TradeoffPoint], x: Callable[[float], float], least: float, most: float
) -> Children:
    """The values themselves where they are few, else round numbers between."""
    own = sorted({axis[1](point) for point in points})
    values = own if axis is THREADS and len(own) <= 7 else log_ticks(least, most, 6) if most > least else own
    return [charts.words(percent(x(value)), HEIGHT + 15, in_figures(value), "middle") for value in values]


def _dot(measured: Tradeoff, point: TradeoffPoint, x: float, y: float) -> Element:
    on_front = point in measured.front
    title = (
        f"{in_words(point.configuration)}: {measured.statistic} {ms(point.latency_ms)} ms, "
        f"{count(point.threads, 'thread')}, {ms(point.answered_per_s)} answers/s"
    )
    dot = charts.dot(x, y, 4.5 if on_front else 3.2, "front-dot" if on_front else "behind-dot")
    dot.append(tag("title", title))
    return dot


def _names(
    run: RunView, points: Sequence[TradeoffPoint], at: Callable[[TradeoffPoint], charts.Point]
) -> Children:
    """Says which are the start and the best: above and below their marks, at the edges beside them."""
    summary = run.summary
    named = [("start", summary.start.configuration, -9.0)]
    if summary.found_better:
        named.append(("best", summary.kept, NAME_HEIGHT + 4))
    shapes = []
    for name, configuration, dy in named:
        for point in points:
            if point.configuration == configuration:
                x, y = at(point)
                anchor, dx = ("start", 8.0) if x < 0.1 else ("end", -8.0) if x > 0.9 else ("middle", 0.0)
                dy = 4.0 if dx else dy
                shapes.append(charts.words(percent(x), y + dy, name, anchor, f"level-name {name}", dx))
    return shapes


def _table(run: RunView, measured: Tradeoff) -> Element:
    limit = any(keeps_limit(run.header, measured, point) is not None for point in measured.front)
    names = ["threads", f"{measured.statistic} (ms)", *(["answers/s"] * measured.answers_differ)]
    names += ["configuration", *(["limit"] * limit), "against the row above"]
    rows = []
    before: Sequence[TradeoffPoint | None] = [None, *measured.front[:-1]]
    for above, point in zip(before, measured.front, strict=True):
        kept = keeps_limit(run.header, measured, point)
        cells = [f"{point.threads}", ms(point.latency_ms)]
        cells += [ms(point.answered_per_s)] * measured.answers_differ
        cells += [in_words(point.configuration), *(["kept" if kept else "broken"] * limit)]
        cells.append("" if above is None else _step(measured, above, point))
        rows.append(tag("tr", *(tag("td", cell) for cell in cells)))
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    return scrolled(tag("table", head, tag("tbody", *rows), class_="front"), "Pareto's front")


def _step(measured: Tradeoff, above: TradeoffPoint, point: TradeoffPoint) -> str:
    """`1.62x lower p95 for 2 threads more`."""
    change = lower_or_higher(above.latency_ms, point.latency_ms)
    more = point.threads - above.threads
    price = f"for {count(more, 'thread')} more" if more else "for as many threads"
    answers = ""
    if measured.answers_differ and above.answered_per_s > 0:
        answers = f", {point.answered_per_s / above.answered_per_s:.2f}x the answers"
    return f"{change} {measured.statistic}{answers}, {price}"
