"""What was explored: the cost of every configuration measured, and of the two knobs that matter most.

Costs under unlike loads cannot be compared, so the intervals are grouped by load (`rrl.views.by_load`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from xml.etree.ElementTree import Element

import numpy as np

from rrl.guarding.gain import CONFIDENCE, Noise, pooled_noise
from rrl.knobs import shown, words_of
from rrl.measured_costs import costs_by_configuration
from rrl.objective import unit_of
from rrl.records import Record
from rrl.space import ConfigurationSpace
from rrl.views.confidence import Estimate, mean_interval
from rrl.views.html_report import charts
from rrl.views.html_report.markup import Children, percent, scrolled, tag
from rrl.views.html_report.numbers import bounds, count, finite, in_figures, log_ticks, ms, share_of_log
from rrl.views.html_report.run_view import RunView
from rrl.views.html_report.wording import cost_in_words

MIN_INTERVALS_FOR_TABLE = 3  # At another load; fewer are not worth a table.
MAX_ROWS_UNSCROLLED = 14  # A longer table is scrolled in its place.
SHADES = 6
PALEST_COST_RATIO = 4.0  # Costs from so many times the lowest on have the palest shade of the heat map.


@dataclass(frozen=True)
class Tried:
    """A configuration, and what its intervals at one load cost."""

    number: int
    cost: Estimate
    p95_ms: float
    failures: int


@dataclass(frozen=True)
class Explored:
    """The intervals at about one load."""

    records: Sequence[Record]
    space: ConfigurationSpace

    @cached_property
    def tried(self) -> list[Tried]:
        """By their mean cost, lowest first; all scatter alike."""
        costs = costs_by_configuration((r.number, r.cost) for r in self.records)
        noise = pooled_noise(list(costs.values()))
        return sorted((self._tried(number, noise) for number in costs), key=lambda t: t.cost.value)

    def _tried(self, number: int, noise: Noise) -> Tried:
        own = [r for r in self.records if r.number == number]
        p95s = finite([r.measurement.latency.p95_ms for r in own])
        return Tried(
            number=number,
            cost=mean_interval([r.cost for r in own], [1.0] * len(own), noise),
            p95_ms=sum(p95s) / len(p95s) if p95s else math.nan,
            failures=sum(r.failures for r in own),
        )

    @property
    def rates(self) -> list[float]:
        return [r.measurement.arrival_rate_per_s for r in self.records]


def landscape(run: RunView) -> Children:
    groups = [Explored(group, run.header.space) for group in run.by_load]
    if not groups:
        return tag("p", "No interval tells what its configuration costs.", class_="note")
    first, *others = groups
    shown = [group for group in others if len(group.records) >= MIN_INTERVALS_FOR_TABLE]
    more = [
        tag("details", tag("summary", f"At another load: {_about(group)}"), _table(run, group))
        for group in shown
    ]
    left_out = sum(len(group.records) for group in others) - sum(len(group.records) for group in shown)
    rest = f"{count(left_out, 'interval')} at yet other loads are in intervals.csv." if left_out else None
    return [
        tag("p", f"At {_about(first)}.", class_="note"),
        _heat_map(run, first),
        _table(run, first),
        more,
        tag("p", rest, class_="note") if rest else None,
    ]


def _about(group: Explored) -> str:
    low, high = min(group.rates), max(group.rates)
    return (
        f"{ms(low)} to {ms(high)} requests/s: {count(len(group.tried), 'configuration')} of "
        f"{len(group.space):,} in {count(len(group.records), 'interval')}"
    )


# The table


def _table(run: RunView, group: Explored) -> Children:
    tried = group.tried
    low, high = _range(tried)
    names = [*(words_of(name).label for name in group.space.names), "intervals", f"cost ({_unit(run)})"]
    p95 = run.tells_percentiles
    scale = _axis(low, high)
    head = tag(
        "thead",
        tag("tr",
            *(tag("th", name, scope="col", data_sort="number") for name in names),
            tag("th", f"with its {CONFIDENCE:.0%} interval", scale, scope="col", class_="bar-head"),
            tag("th", "p95 (ms)", scope="col", data_sort="number") if p95 else None,
            tag("th", "", scope="col")),
    )  # fmt: skip
    rows = [_row(run, group.space, each, low, high, p95) for each in tried]
    table = tag("table", head, tag("tbody", *rows), class_="landscape sortable")
    tall = len(rows) > MAX_ROWS_UNSCROLLED
    all_of_them = f"All {len(rows)}, the cheapest first: scroll the table." if tall else None
    return [
        scrolled(table, "Configurations measured", tall),
        tag("p", all_of_them, class_="note") if all_of_them else None,
    ]


def _row(run: RunView, space: ConfigurationSpace, each: Tried, low: float, high: float, p95: bool) -> Element:
    configuration = space.configuration(each.number)
    badges = []
    if configuration == run.summary.start.configuration:
        badges.append(tag("span", "start", class_="badge start"))
    if configuration == run.summary.kept and run.summary.found_better:
        badges.append(tag("span", "best", class_="badge best"))
    if each.failures:
        badges.append(tag("span", f"{each.failures} failed", class_="badge failed"))
    return tag(
        "tr",
        *(tag("td", shown(name, value)) for name, value in configuration.items()),
        tag("td", str(each.cost.intervals)),
        tag("td", cost_in_words(run.header, each.cost.value)),
        tag("td", _bar(each.cost, low, high), class_="bar"),
        tag("td", ms(each.p95_ms)) if p95 else None,
        tag("td", *badges),
    )


def _bar(cost: Estimate, low: float, high: float) -> Element:
    def x(value: float) -> float:
        return min(max(share_of_log(value, low, high), 0.0), 1.0)

    whisker = tag("line", x1=percent(x(cost.low)), x2=percent(x(cost.high)), y1=8, y2=8, class_="whisker")
    return charts.plot(
        16, f"{ms(cost.value)}, {bounds(cost)}", whisker, charts.dot(x(cost.value), 8, 3.5, "cost-dot")
    )


def _axis(low: float, high: float) -> Element:
    ticks = [t for t in log_ticks(low, high, 4) if share_of_log(t, low, high) < 0.93]  # None over the edge.
    return charts.plot(
        14,
        "logarithmic scale",
        [charts.words(percent(share_of_log(t, low, high)), 11, in_figures(t), "middle") for t in ticks],
        class_="bar-axis",
    )


# The heat map


def _heat_map(run: RunView, group: Explored) -> Children:
    """The lowest cost known for each pair of values of the two most influential knobs."""
    pair = most_influential(group)
    if pair is None:
        return None
    best: dict[tuple[int, int], Tried] = {}
    intervals: dict[tuple[int, int], int] = {}
    for each in reversed(group.tried):  # The lowest is drawn last.
        configuration = group.space.configuration(each.number)
        at = configuration[pair[0]], configuration[pair[1]]
        best[at] = each
        intervals[at] = intervals.get(at, 0) + each.cost.intervals
    rows, columns = (sorted({at[k] for at in best}) for k in (0, 1))
    lowest = group.tried[0].cost.value
    down, across = (words_of(name).label for name in pair)
    head = tag(
        "tr",
        tag("td", f"{down} ↓", tag("br"), f"{across} →", class_="corner"),
        *(tag("th", shown(pair[1], value), scope="col") for value in columns),
    )
    body = [
        tag(
            "tr",
            tag("th", shown(pair[0], row), scope="row"),
            *(_heat_cell(run, best.get((row, c)), intervals.get((row, c), 0), lowest) for c in columns),
        )
        for row in rows
    ]
    note = (
        f"The lowest cost known ({_unit(run)}) by the two knobs that mattered most, and below it in how many "
        f"intervals. A stronger colour costs less; the palest {PALEST_COST_RATIO:g}x the lowest or more."
    )
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="heat")
    return [scrolled(table, f"Cost by {down} and {across}"), tag("p", note, class_="note")]


def _heat_cell(run: RunView, each: Tried | None, intervals: int, lowest: float) -> Element:
    if each is None:
        return tag("td", tag("span", "not measured", class_="unseen"), "·", class_="blank")
    share = min(share_of_log(each.cost.value, lowest, PALEST_COST_RATIO * lowest), 1.0)
    cheapest = " cheapest" if each.cost.value == lowest else ""
    shade = min(int(SHADES * (1 - share)), SHADES - 1)
    count_of = tag("span", f"{intervals}", class_="under")
    return tag("td", cost_in_words(run.header, each.cost.value), count_of, class_=f"shade{shade}{cheapest}")


def most_influential(group: Explored) -> tuple[str, str] | None:
    """The pair of knobs, each measured at two values or more, that explains most of the log costs.

    By how far the mean log costs of a knob's values lie apart: their variance, each configuration once.
    """
    space, tried = group.space, group.tried
    values = np.array([list(space.configuration(t.number).values()) for t in tried])
    logs = np.log([t.cost.value for t in tried])
    influence = {}
    for k, name in enumerate(space.names):
        levels = [logs[values[:, k] == value] for value in np.unique(values[:, k])]
        if len(levels) > 1:
            influence[name] = sum(len(level) * (level.mean() - logs.mean()) ** 2 for level in levels)
    if len(influence) < 2:
        return None
    first, second = max(combinations(influence, 2), key=lambda pair: influence[pair[0]] + influence[pair[1]])
    return first, second


def _range(tried: Sequence[Tried]) -> tuple[float, float]:
    return min(t.cost.low for t in tried) / 1.1, max(t.cost.high for t in tried) * 1.1


def _unit(run: RunView) -> str:
    return unit_of(run.header.objective)
