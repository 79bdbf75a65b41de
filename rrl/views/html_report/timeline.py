"""What happened when: latency, changes, load and knobs over one time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

from rrl.knobs import shown, words_of
from rrl.tuning.decision_words import PUT_BACK, who_decided
from rrl.views.html_report import charts
from rrl.views.html_report.latency_chart import is_long, latency_chart, marks_of, unmeasured
from rrl.views.html_report.markup import percent, tag
from rrl.views.html_report.numbers import duration, in_figures, linear_ticks, minute_ticks, ms
from rrl.views.html_report.readout_data import ELEMENT, readout_data
from rrl.views.html_report.run_view import RunView
from rrl.views.html_report.wording import in_arrows

CHANGES_HEIGHT, LOAD_HEIGHT, KNOB_HEIGHT = 14.0, 56.0, 34.0  # In pixels.


def timeline(run: RunView) -> Element:
    if not run.counted:
        return tag("p", "There is no interval with requests yet.", class_="note")
    edges = [0.0, *(run.share(end) for end in run.ends_min)]
    tracks = [
        _track("Latency, ms (logarithmic)", latency_chart(run)),
        _track(f"Changes ({len(run.changes)})", _rail(run)),
        _track("Load, requests/s", _load(run, edges)),
        *(
            _track(words_of(knob.name).label, _knob(run, knob.name, knob.values, edges))
            for knob in run.header.space.knobs
        ),
        _track("", _minutes(run), class_="axis"),
    ]
    figure = tag(
        "figure",
        *tracks,
        tag("div", class_="cursor", hidden=True),
        tag("div", class_="readout", hidden=True, aria_live="polite"),
        id="timeline",
        class_="timeline dense" if is_long(run) else "timeline",
        tabindex=0,
        role="group",
        aria_label=_in_short(run),
    )
    hint = "Point at the chart, tap it, or use the arrow keys, to see an interval, its configuration and why."
    data = tag("script", readout_data(run), type="application/json", id=ELEMENT)
    return tag("div", _legend(run), figure, tag("p", hint, class_="note scripted", hidden=True), data)


def _in_short(run: RunView) -> str:
    means = [r.measurement.latency.mean_ms for r in run.counted]
    shown = [m for m in means if math.isfinite(m)]
    return (
        f"Latency, load and knobs over {duration(60 * run.length_min)}: {len(run.records)} intervals, mean "
        f"latency from {ms(min(shown, default=math.nan))} to {ms(max(shown, default=math.nan))} ms, "
        f"{len(run.changes)} changes of configuration, listed in the table below"
    )


def _track(name: str, plot: Element, class_: str = "") -> Element:
    caption = tag("span", name, class_="track-name") if name else tag("span", class_="track-name")
    return tag("div", caption, tag("div", plot, class_="track-plot"), class_=f"track {class_}".strip())


def _legend(run: RunView) -> Element:
    """Names what is in the chart, and nothing else."""
    present = {symbol for record in run.records for symbol, _ in marks_of(record, is_long(run))}
    named = {"aborted": "aborted by the guard", "rolled-back": "rolled back", "failed": "requests failed"}
    mean = "mean, and how far it reaches" if is_long(run) else "mean"
    items = [tag("li", _swatch(tag("line", x1=0, x2=18, y1=6, y2=6, class_="mean-line")), mean)]
    if run.tells_percentiles:
        items.append(tag("li", _swatch(tag("line", x1=0, x2=18, y1=6, y2=6, class_="p95-line")), "p95"))
    for symbol, name in named.items():
        if symbol in present:
            items.append(
                tag("li", _swatch(tag("use", href=f"#{symbol}", x=9, y=6, class_=f"mark {symbol}")), name)
            )
    for who, name in _WHO_CHANGED.items():
        if any(who_decided(changed.change.decision) == who for changed in run.changes):
            line = tag("line", x1=9, x2=9, y1=0, y2=12, class_=f"tick-{who}")
            items.append(tag("li", _swatch(line), f"changed {name}"))
    if any(not record.counted for record in run.records):
        items.append(tag("li", _swatch(tag("rect", width=18, height=12, class_="gap")), "nothing measured"))
    return tag("ul", *items, class_="legend")


def _swatch(*shapes: Element) -> Element:
    return tag("svg", *shapes, width=18, height=12, class_="swatch", aria_hidden="true")


# Changes


_WHO_CHANGED = {
    "agent": "by the agent",
    "guard": "by the guard",
    "table": "by the reference table",
    "schedule": "to compare with the start",
    "others": "by another client",
    PUT_BACK: "back, as another was in force",
}


def _rail(run: RunView) -> Element:
    """A tick at every change, with its reason."""
    ticks = []
    for changed in run.changes:
        minutes = run.length_min if changed.interval is None else float(run.begins_min[changed.interval])
        change = changed.change
        title = f"{duration(60 * minutes)}: {in_arrows(change.what)}. {change.reason}"
        who = who_decided(change.decision)
        ticks.append(charts.upright(run.share(minutes), 1, CHANGES_HEIGHT - 1, f"change tick-{who}", title))
    return charts.plot(
        CHANGES_HEIGHT,
        f"{len(run.changes)} changes of configuration, listed in the table below",
        ticks,
        class_="rail",
    )


# Load and knobs


def _load(run: RunView, edges: Sequence[float]) -> Element:
    rates = [r.measurement.arrival_rate_per_s for r in run.records]
    top = 1.08 * max(max(rates), 1e-9)
    heights = [
        LOAD_HEIGHT * (1 - rate / top) if r.counted else None
        for r, rate in zip(run.records, rates, strict=True)
    ]
    ticks = linear_ticks(top, 3)
    shown = [r.measurement.arrival_rate_per_s for r in run.counted]
    return charts.plot(
        LOAD_HEIGHT,
        f"Load: {ms(min(shown))} to {ms(max(shown))} requests a second",
        unmeasured(run, LOAD_HEIGHT),
        [
            (charts.level(LOAD_HEIGHT * (1 - t / top), "grid"),
             charts.words("-8", LOAD_HEIGHT * (1 - t / top) + 4, in_figures(t), "end"))
            for t in ticks
        ],
        charts.stretched(
            LOAD_HEIGHT,
            charts.stairs(edges, heights, "load-area", floor=LOAD_HEIGHT),
            charts.stairs(edges, heights, "load-line"),
        ),
        class_="load",
    )  # fmt: skip


def _knob(run: RunView, name: str, values: Sequence[int], edges: Sequence[float]) -> Element:
    """Steps over the knob's values, equally spaced whatever they are. The value to use stands at the end."""
    margin = 6.0

    def y(value: int) -> float:
        return (
            KNOB_HEIGHT - margin - (KNOB_HEIGHT - 2 * margin) / max(len(values) - 1, 1) * values.index(value)
        )

    in_force = [r.configuration[name] if r.was_in_force else None for r in run.records]
    used = ", ".join(shown(name, v) for v in sorted({v for v in in_force if v is not None}))
    kept = run.summary.kept[name]
    steps = charts.stairs(edges, [None if v is None else y(v) for v in in_force], "knob-line")
    return charts.plot(
        KNOB_HEIGHT,
        f"{words_of(name).label}: {used} in force, {shown(name, kept)} to use",
        [
            (charts.level(y(v), "grid"), charts.words("-8", y(v) + 4, shown(name, v), "end"))
            for v in sorted({values[0], values[-1]})
        ],
        charts.stretched(KNOB_HEIGHT, steps),
        charts.words("100%", y(kept) + 4, shown(name, kept), class_="level-name best roomy", dx=7),
        class_="knob",
    )


def _minutes(run: RunView) -> Element:
    ticks = minute_ticks(run.length_min)
    labels = [
        charts.words(percent(run.share(minutes)), 12, text, "start" if minutes == 0 else "middle")
        for minutes, text in ticks
        if minutes <= 0.97 * run.length_min
    ]
    return charts.plot(16, f"Time, {duration(60 * run.length_min)} in all", labels, class_="minutes")
