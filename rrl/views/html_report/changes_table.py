"""Every change of configuration in a table: when, what, why, and what came of it."""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element

from rrl.views.html_report.markup import scrolled, tag
from rrl.views.html_report.numbers import count, duration, ms
from rrl.views.html_report.run_view import PlacedChange, RunView
from rrl.views.html_report.wording import in_arrows, remark

MAX_ROWS_SHOWN_OPEN = 8  # A longer table is folded.
MAX_ROWS_UNSCROLLED = 14  # A longer table is scrolled in its place.


def changes_table(run: RunView) -> Element:
    if not run.changes:
        return tag("p", "The configuration was never changed.", class_="note")
    head = ("when", "clock", "change", "why", "then")
    dated = len({changed.change.at.date() for changed in run.changes}) > 1
    many = count(len(run.changes), "change")
    table = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", name, scope="col") for name in head))),
        tag("tbody", *(_row(run, changed, dated) for changed in run.changes)),
        class_="changes",
    )
    return tag(
        "details",
        tag("summary", f"All {many}, with their reasons" if len(run.changes) > 1 else "The change, and why"),
        scrolled(table, "Changes of configuration", tall=len(run.changes) > MAX_ROWS_UNSCROLLED),
        open=len(run.changes) <= MAX_ROWS_SHOWN_OPEN,
    )


def _row(run: RunView, changed: PlacedChange, dated: bool) -> Element:
    """`dated`: the changes are of several days, so that the clock alone says little."""
    change, i = changed.change, changed.interval
    minutes = run.length_min if i is None else float(run.begins_min[i])
    clock = f"{change.at:%Y-%m-%d %H:%M:%S}" if dated else f"{change.at:%H:%M:%S}"
    moment = tag("time", clock, datetime=change.at.isoformat(timespec="seconds"))
    return tag(
        "tr",
        tag("td", duration(60 * minutes), class_="nowrap"),
        tag("td", moment, class_="nowrap"),
        tag("td", in_arrows(change.what)),
        tag("td", change.reason),
        tag("td", *_then(run, i)),
    )


def _then(run: RunView, i: int | None) -> list[str]:
    if i is None:
        return ["the run's end"]
    record = run.records[i]
    mean_ms = record.measurement.latency.mean_ms
    measured = f"mean {ms(mean_ms)} ms" if math.isfinite(mean_ms) else ""
    return ["; ".join(filter(None, (measured, remark(record))))]
