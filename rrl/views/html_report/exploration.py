"""What finding it cost the users, and when that was paid back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from rrl.views.exploration_cost import part_of
from rrl.views.html_report import charts
from rrl.views.html_report.markup import Children, percent, tag
from rrl.views.html_report.numbers import duration, finite, ms
from rrl.views.html_report.run_view import RunView

HEIGHT = 96.0


def exploration(run: RunView) -> Children:
    if not any(r.kind == "tune" and r.counted for r in run.records):
        return tag("p", "Nothing was tried yet.", class_="note")
    return [_facts(run), _balance(run)]


def _facts(run: RunView) -> Element:
    cost = run.summary.exploration
    below_s = float(np.maximum(-run.extra_request_s, 0.0).sum())
    search = [r for r in run.records if part_of(r) == "search"]
    apply_ms = finite([run.records[c.interval].apply_ms for c in run.changes if c.interval is not None])
    facts = [
        ("waited longer than at the start", f"{ms(cost.extra_request_s)} request-seconds"),
        ("waited less than at the start", f"{ms(below_s)} request-seconds"),
        ("tuning intervals worse than the start", f"{cost.worse_share:.0%} of {cost.intervals:,}"),
        ("aborted by the guard", f"{cost.aborted:,}"),
        ("rolled back", f"{cost.rollbacks:,}"),
        ("proposals refused", f"{cost.refused:,}"),
        ("failed requests", f"{cost.failures:,}"),
        ("changes of configuration", f"{len(run.changes):,}"),
    ]
    if run.header.slo_p95_ms is not None:
        broken = sum(run.broke_limit(r) for r in search)
        name = f"tuning intervals over {run.header.slo_p95_ms:g} ms at p95"
        facts.insert(3, (name, f"{broken:,} of {len(search):,}"))
    if cost.turns:
        facts.insert(1, ("of it in the validation", f"{ms(cost.validation_request_s)} request-seconds"))
    if apply_ms:
        facts.append(
            ("a change took (median, longest)", f"{_s(float(np.median(apply_ms)))}, {_s(max(apply_ms))}")
        )
    if math.isfinite(run.summary.decision_ms):
        facts.append(("a decision took (median)", f"{ms(run.summary.decision_ms)} ms"))
    return tag(
        "dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in facts), class_="facts"
    )


def _balance(run: RunView) -> Element:
    """Request-seconds above the start's mean less those below it, summed up as the tuning went."""
    balance_s = np.cumsum(run.extra_request_s)
    low, high = min(0.0, float(balance_s.min())), max(0.0, float(balance_s.max()))
    span = max(high - low, 1e-9)

    def y(value_s: float) -> float:
        return 8 + (HEIGHT - 16) * (high - value_s) / span

    points = [(0.0, y(0.0))]
    points += [(run.share(float(end)), y(float(b))) for end, b in zip(run.ends_min, balance_s, strict=True)]
    said = paid_back(run, balance_s)
    ends = [(high, "more waiting")] * (high > 0.15 * span) + [(low, "less waiting")] * (-low > 0.15 * span)
    plot = charts.plot(
        HEIGHT + 18,
        f"Balance of request-seconds against the start, summed up over the run. {said}",
        _validation(run),
        charts.level(y(0.0), "zero"),
        charts.words("-8", y(0.0) + 4, "0", "end"),
        [charts.words("-8", y(value) + 4, _compact(value), "end") for value, _ in ends],
        charts.stretched(HEIGHT, charts.line(points, "balance-line")),
        charts.words(percent(1.0), HEIGHT + 14, duration(60 * run.length_min), "end"),
        charts.words(percent(0.0), HEIGHT + 14, "0", "start"),
        class_="balance",
    )
    caption = (
        "Request-seconds (a request waits a second) against the start, summed up: above 0 the tuning has "
        f"cost, below 0 it has gained. {said}"
    )
    if run.ends_in_a_change:
        caption += " What the last change cost is not in it: nothing is measured after it."
    return tag("figure", tag("div", plot, class_="track-plot"), tag("figcaption", caption))


def _validation(run: RunView) -> Children:
    """Shades the turns of the validation, and names the last."""
    turns = [i for i, r in enumerate(run.records) if part_of(r) == "validation"]
    spans = [(run.share(float(run.begins_min[i])), run.share(float(run.ends_min[i]))) for i in turns]
    bands = [charts.band(begin, end, HEIGHT, "phase") for begin, end in spans]
    return [*bands, charts.words(percent(spans[-1][1]), -5, "validation", "end")] if spans else None


def paid_back(run: RunView, balance_s: Sequence[float] | np.ndarray) -> str:
    """When the requests had gained, for good, what tuning had cost them."""
    balance = np.asarray(balance_s)
    if not np.any(run.extra_request_s > 0):
        return "No interval was worse than the start."
    if balance[-1] >= 0:
        return "Within this run it was not paid back."
    owing = np.flatnonzero(balance > 0)
    if not len(owing):
        return "At any time it had gained more than it had cost."
    since = int(owing[-1]) + 1
    return f"It was paid back after {duration(60 * float(run.ends_min[since]))}."


def _s(value_ms: float) -> str:
    return f"{ms(value_ms)} ms" if value_ms < 1000 else f"{ms(value_ms / 1000)} s"


def _compact(value: float) -> str:
    """At most five characters, for the margin of a chart."""
    sign, size = ("−" if value < 0 else ""), abs(value)
    if size >= 999_500:
        return f"{sign}{size / 1e6:.1f}M"
    if size >= 9_995:
        return f"{sign}{size / 1e3:.0f}k"
    return f"{sign}{size:.0f}" if size >= 10 else f"{sign}{size:.1f}"
