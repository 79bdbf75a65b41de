"""What the run learned beyond its own load: which knobs matter, and what would be best at other ones."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from rrl.knobs import in_words, shown, words_of
from rrl.objective import Capacity, LeastResources, Objective, in_unit, make_objective
from rrl.records import MOST_CONCURRENCY
from rrl.views.html_report import charts
from rrl.views.html_report.markup import Children, scrolled, tag
from rrl.views.html_report.numbers import in_figures, ms
from rrl.views.html_report.run_view import RunView
from rrl.views.what_if import CONFIDENCE, Learned, Outlook, WhatIf

LOADS = (0.5, 1.0, 1.5, 2.0)  # times the present one
LIMITS = (0.5, 0.7, 1.0, 1.5)  # times the present one
BAR_HEIGHT = 12.0


def knob_importance(run: RunView) -> Children:
    learned = run.learned
    if learned is None:
        return None
    found = learned.importances()
    if not any(knob.share > 0 for knob in found.knobs):
        return None
    rows = [
        tag(
            "tr",
            tag("th", words_of(knob.name).label, scope="row"),
            tag("td", f"{knob.share:.0%}"),
            tag("td", _bar(min(knob.share, 1.0)), class_="bar"),
            tag("td", _by_value(knob.name, knob.times_the_lowest)),
        )
        for knob in found.knobs
    ]
    rows.append(
        tag(
            "tr",
            tag("th", "in combination", scope="row"),
            tag("td", f"{found.together:.0%}"),
            tag("td", _bar(found.together), class_="bar"),
            tag("td"),
        )
    )
    names = ("knob", "share", "of what costs differ by", "cost by value, over that of the cheapest")
    classes = (None, None, "bar-head", None)
    head = tag("tr", *(tag("th", n, scope="col", class_=c) for n, c in zip(names, classes, strict=True)))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="importance")
    note = (
        "How much each knob alone explains of the variance of the log cost expected over the whole grid, at "
        "the load expected next (functional ANOVA: Hutter, Hoos and Leyton-Brown, ICML 2014). It is what "
        "the run believes, of configurations that it never tried, too."
    )
    return [scrolled(table, "Which knobs matter"), tag("p", note, class_="note")]


def _bar(share: float) -> Element:
    bar = charts.band(0.0, share, BAR_HEIGHT, "share-bar")
    return charts.plot(BAR_HEIGHT, f"{share:.0%}", bar, class_="share")


def _by_value(name: str, times: dict[int, float]) -> str:
    return " · ".join(
        f"{shown(name, value)}: {in_figures(float(f'{factor:.3g}'))}x" for value, factor in times.items()
    )


def what_if(run: RunView) -> Children:
    learned = run.learned
    if learned is None:
        return None
    low, high = learned.loads_seen
    seen = f"{ms(low)} to {ms(high)} {learned.load_unit}" if high > low else f"{ms(low)} {learned.load_unit}"
    parts: list[Children] = []
    if not isinstance(learned.objective, Capacity):
        loads = [round_to_two(factor * learned.load) for factor in LOADS]
        if run.header.concurrency is not None:
            loads = sorted({min(max(1.0, round(load)), MOST_CONCURRENCY) for load in loads})
        answers = [learned.ask(load=load) for load in loads]
        parts.append(_table(learned, answers, learned.load_unit, [f"{ms(a.load)}" for a in answers]))
    limits = _limits(learned)
    answers = [learned.ask(objective) for objective in limits]
    shown_limits = [f"{objective.slo_p95_ms or 0:g}" for objective in limits]
    asks = "p95 limit (ms)"
    if learned.objective.slo_p95_ms is None:
        parts.append(tag("p", "The fewest threads that keep a limit, at the present load:", class_="note"))
    parts.append(_table(learned, answers, asks, shown_limits))
    note = (
        f"Expected, not measured: what the run believed at its end, asked for the same arrivals, faster or "
        f"slower. The intervals of the p95 hold {CONFIDENCE:.0%} of what it takes for possible. It saw "
        f"{seen}; beyond that it extrapolates. Ask for others with rrl-tune what-if FOLDER."
    )
    if not run.tells_percentiles:
        note += " The target tells no percentiles, so no p95 here was ever held against one."
    return [parts, tag("p", note, class_="note")]


def _limits(learned: Learned) -> list[Objective]:
    """The run's own objective with other limits; where it has none, the fewest threads that keep one."""
    header, own = learned.header, learned.objective
    if own.slo_p95_ms is not None:
        limits = [round_to_two(factor * own.slo_p95_ms) for factor in LIMITS]
        return [make_objective(header.objective, limit_ms) for limit_ms in limits]
    usual_ms = learned.ask().kept.p95_ms
    return [LeastResources(round_to_two(factor * usual_ms)) for factor in LIMITS]


def _table(learned: Learned, answers: Sequence[WhatIf], asked: str, cells: Sequence[str]) -> Element:
    capacity = isinstance(answers[0].objective, Capacity)
    names = [asked, "best expected", "threads", "bears" if capacity else "its p95 (ms)"]
    names += ["p95 of what was left", ""]
    rows = [
        tag(
            "tr",
            tag("th", cell, scope="row"),
            tag("td", in_words(answer.best[0].configuration)),
            tag("td", f"{answer.best[0].threads}"),
            tag("td", _rate(answer) if capacity else _p95(answer.best[0])),
            tag("td", _p95(answer.kept)),
            tag("td", ", ".join(answer.doubts)),
        )
        for answer, cell in zip(answers, cells, strict=True)
    ]
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    return scrolled(tag("table", head, tag("tbody", *rows), class_="what-if"), f"What if: {asked}")


def _rate(answer: WhatIf) -> str:
    return in_unit(answer.best[0].cost, answer.objective.unit)


def _p95(outlook: Outlook) -> Children:
    if not outlook.borne:
        return "not borne"
    low, high = ms(outlook.p95_low_ms), ms(outlook.p95_high_ms)
    return [ms(outlook.p95_ms), " ", tag("span", f"{low} to {high}", class_="bounds")]


def round_to_two(value: float) -> float:
    """To two significant digits."""
    return float(f"{value:.2g}")
