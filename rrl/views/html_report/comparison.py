"""Start against best: every statistic with its confidence interval, and the intervals behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from rrl.guarding.gain import CONFIDENCE, pooled_noise
from rrl.knobs import in_words
from rrl.objective import tells_broken_limit, unit_of
from rrl.records import Record
from rrl.views.confidence import Estimate, mean_interval
from rrl.views.html_report import charts
from rrl.views.html_report.headline import AIMS
from rrl.views.html_report.markup import Children, percent, scrolled, tag
from rrl.views.html_report.numbers import (
    NOTHING,
    bounds,
    count,
    in_figures,
    linear_ticks,
    log_ticks,
    lower_or_higher,
    ms,
    share_of_log,
)
from rrl.views.html_report.run_view import RunView
from rrl.views.html_report.wording import cost_in_words

ROW_HEIGHT = 34.0
MIN_RATIO_FOR_LOG_SCALE = 5.0  # A longer range is drawn logarithmically.


class Statistic(NamedTuple):
    name: str
    of: Callable[[Record], float]


STATISTICS = (
    Statistic("mean", lambda r: r.measurement.latency.mean_ms),
    Statistic("p50", lambda r: r.measurement.latency.p50_ms),
    Statistic("p95", lambda r: r.measurement.latency.p95_ms),
    Statistic("p99", lambda r: r.measurement.latency.p99_ms),
    Statistic("queue", lambda r: r.measurement.queue.mean_ms),
    Statistic("service", lambda r: r.measurement.service.mean_ms),
)
COST = Statistic("cost", lambda r: r.cost)


def comparison(run: RunView) -> Children:
    summary = run.summary
    if not summary.start_records:
        return tag("p", "The start was not measured yet.", class_="note")
    compares = summary.best.configuration != summary.start.configuration
    what = f"Latency in ms: mean over the intervals, and its {CONFIDENCE:.0%} interval"
    return [
        tag("p", what, class_="note"),
        _table(run, compares),
        _strip(run, compares),
        _notes(run, compares),
    ]


def _table(run: RunView, compares: bool) -> Element:
    summary = run.summary
    names = ["start", *(["best" if summary.found_better else "best candidate"] * compares)]
    configurations = [summary.start.configuration, summary.best.configuration][: len(names)]
    head = [
        tag("th", name, tag("span", in_words(c), class_="under"), scope="col")
        for name, c in zip(names, configurations, strict=True)
    ]
    rows = [_row(run, statistic, compares) for statistic in STATISTICS]
    if run.header.objective != "latency":
        rows.append(_row(run, COST, compares))
    last = [tag("th", "change", scope="col")] if compares else []
    table = tag(
        "table",
        tag("thead", tag("tr", tag("td"), head, last)),
        tag("tbody", *rows),
        class_="figures",
    )
    return scrolled(table, "Start against best")


def _row(run: RunView, statistic: Statistic, compares: bool) -> Element:
    start = estimate(run, statistic, run.summary.start_records)
    cells = [_cell(run, statistic, start)]
    if compares:
        best = estimate(run, statistic, run.summary.best_records)
        change = lower_or_higher(start.value, best.value)
        if statistic is COST and _tells_broken_limit(run, start, best):
            change = NOTHING
        cells += [
            _cell(run, statistic, best),
            tag("td", change, class_="lower" if change.endswith("lower") else None),
        ]
    return tag("tr", tag("th", statistic.name, scope="row"), *cells)


def _tells_broken_limit(run: RunView, *costs: Estimate) -> bool:
    unit = unit_of(run.header.objective)
    return any(tells_broken_limit(cost.value, unit) for cost in costs)


def _cell(run: RunView, statistic: Statistic, estimate: Estimate) -> Element:
    if not estimate.known:
        return tag("td", NOTHING)
    if statistic is COST and _tells_broken_limit(run, estimate):
        return tag("td", cost_in_words(run.header, estimate.value))
    return tag("td", ms(estimate.value), " ", tag("span", bounds(estimate), class_="bounds"))


def estimate(run: RunView, statistic: Statistic, records: Sequence[Record]) -> Estimate:
    """The mean of these intervals and how sure it is.

    How much one interval scatters is estimated from all of the start's and of the best's, as for the gain.
    The start has too few of its own.
    """
    learned = [r for r in run.records if r.learned and not r.measurement.aborted]
    compared = {each[0].number for each in (run.summary.start_records, run.summary.best_records) if each}
    return mean_interval(
        [statistic.of(r) for r in records],
        [r.measurement.completions for r in records],
        pooled_noise([[statistic.of(r) for r in learned if r.number == number] for number in compared]),
        [r.share for r in records],
    )


def _notes(run: RunView, compares: bool) -> Children:
    summary = run.summary
    n = count(summary.start.intervals, "interval")
    if compares and summary.best.intervals != summary.start.intervals:
        n = f"{n} of the start, {summary.best.intervals} of the best"
    elif compares:
        n += " of each"
    if any(r.share < 1 for r in summary.start_records):
        n += " (the first of the start a short one, so that its users bore it for less)"
    whose = "both" if compares else "it"
    notes = []
    if compares and not summary.loads_compare:
        notes.append(
            "The start met {} requests/s on average and the best {}, so these figures do not compare. "
            "The gain is told at the same arrivals.".format(*map(ms, summary.loads_met_per_s))
        )
    notes += [
        f"n = {n}. The {CONFIDENCE:.0%} intervals are Student's t of the logarithms; how much one "
        f"of the n scatters is taken from all that {whose} had in this run, and from what is usual."
    ]
    if not run.tells_percentiles:
        notes.append(
            f"{NOTHING}: the target tells no percentiles, as a stock Triton does not. Measure tails where "
            "the requests are sent."
        )
    if run.header.objective != "latency":
        notes.append(f"Cost is {AIMS[run.header.objective].cost}.")
    return [tag("p", note, class_="note") for note in notes]


def _strip(run: RunView, compares: bool) -> Element | None:
    """Every interval of both as a dot, the mean with its interval under them."""
    summary, mean = run.summary, STATISTICS[0]
    rows = [("start", summary.start_records, "start")]
    if compares:
        rows.append(("best", summary.best_records, "best"))
    values = [
        v for _, records, _ in rows for v in (mean.of(r) for r in records) if math.isfinite(v) and v > 0
    ]
    estimates = [estimate(run, mean, records) for _, records, _ in rows]
    ends = [*values, *(x for e in estimates if e.known for x in (e.low, e.high))]
    if not values:
        return None
    logarithmic, place, ticks = _scale(ends)
    unit = "ms, logarithmic" if logarithmic else "ms"
    height = ROW_HEIGHT * len(rows)
    shapes: list[Element] = []
    for tick in ticks:
        shapes += [
            charts.upright(place(tick), 0, height, "grid"),
            charts.words(percent(place(tick)), height + 15, in_figures(tick), "middle"),
        ]
    for k, ((name, records, class_), e) in enumerate(zip(rows, estimates, strict=True)):
        y = ROW_HEIGHT * (k + 0.5)
        shapes.append(charts.words("-8", y + 4, name, "end"))
        if e.known:
            shapes.append(_span(place(e.low), place(e.high), y + 9, f"whisker {class_}"))
        shapes.append(charts.upright(place(e.value), y + 4, y + 14, f"whisker {class_}"))
        shapes += [
            charts.dot(place(v), y - 3, 3.4, f"turn {class_}") for r in records if (v := mean.of(r)) > 0
        ]
    what = " and ".join(f"{name} {ms(e.value)} ms" for (name, _, _), e in zip(rows, estimates, strict=True))
    plot = charts.plot(height + 20, f"Mean latency of each interval: {what}", *shapes, class_="strip-plot")
    return tag(
        "figure",
        tag("div", plot, class_="track-plot"),
        tag(
            "figcaption",
            f"Mean latency ({unit}) of each interval measured, and below it their mean with its interval",
        ),
        class_="strip",
    )


def _scale(values: Sequence[float]) -> tuple[bool, Callable[[float], float], list[float]]:
    """Where a latency is across the strip: from 0 on, or logarithmically (True) where the range is long."""
    high = max(values) * 1.03
    positive = min(v for v in values if v > 0)
    if high > MIN_RATIO_FOR_LOG_SCALE * positive:
        floor = max(positive / 1.15, high / 1e4)
        ticks = log_ticks(floor, high, 6)
        return True, lambda v: min(max(share_of_log(max(v, floor), floor, high), 0.0), 1.0), ticks
    return False, lambda v: v / high, linear_ticks(high, 5)


def _span(begin: float, end: float, y: float, class_: str) -> Element:
    return tag("line", x1=percent(begin), x2=percent(end), y1=y, y2=y, class_=class_)
