"""What a busy person must know: what was gained, how surely, and at what price."""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.etree.ElementTree import Element

from rrl.guarding.gain import GAIN_CONFIDENCE, interval_in_words, times_lower
from rrl.guarding.turns import best_goes_first
from rrl.knobs import in_words
from rrl.objective import in_unit, tells_broken_limit, unit_of
from rrl.records import EMBEDDED, NO_END, SIMULATION
from rrl.views.html_report.markup import Children, tag
from rrl.views.html_report.numbers import NOTHING, count, lower_or_higher, ms
from rrl.views.html_report.run_view import RunView
from rrl.views.summary import KEPT_UNKNOWN, RunSummary


class Aim(NamedTuple):
    """What the objective makes of the cost, in words."""

    name: str  # As a headline begins.
    field: str  # The field of a Standing.
    unit: str
    cost: str  # What the cost is.


AIMS = {
    "latency": Aim("Mean latency", "mean_ms", " ms", "the mean latency"),
    "strict-slo": Aim(
        "p95 latency", "p95_ms", " ms", "the p95 latency, and the limit once more where it breaks it"
    ),
    "throughput": Aim(
        "Answers", "answered_per_s", "/s", "the time of one answer: 1000 ms over answers per second"
    ),
    "goodput": Aim(
        "Time of one answer within the limit",
        "cost",
        " ms",
        "the time of one answer within the limit: 1000 ms over such answers per second",
    ),
    "capacity": Aim(
        "Time of one answer at capacity",
        "cost",
        " ms",
        "the time of one answer at the rate that would be borne within the limit",
    ),
    "least-resources": Aim(
        "Threads", "cost", "", "the threads put to work; far more where the p95 limit is broken"
    ),
}


def headline(run: RunView) -> Element:
    return tag(
        "header", _kicker(run), _title(run), _state(run), _verdict(run), _tiles(run), class_="headline"
    )


def title_in_words(run: RunView) -> str:
    """The page's headline, one line."""
    if not run.counted:
        return "Nothing was measured"
    aim, summary = AIMS[run.header.objective], run.summary
    before, after = _before(summary, aim.field), getattr(summary.best, aim.field)
    if summary.found_better and not (math.isfinite(before) and math.isfinite(after)):
        return KEPT_UNKNOWN
    if summary.found_better:
        sure = "" if summary.validated else ", not validated"
        figures = (_cost(value, run) if aim.field == "cost" else _figure(value) for value in (before, after))
        return f"{aim.name} {' → '.join(figures)}{aim.unit}{sure}"
    if summary.validated and summary.turns.beyond_noise:
        return f"Left as {'found' if run.kept_as_found else 'the run started'}, the best was not taken"
    is_over = run.complete or summary.validated or (run.ended and run.searched)
    return "Nothing better than the start" + (" was found" if is_over else " is known yet")


def _kicker(run: RunView) -> Element:
    return tag("p", f"rrl-tune · {run.header.model} on {run.target}", class_="kicker")


def _title(run: RunView) -> Element:
    return tag("h1", title_in_words(run))


def _state(run: RunView) -> Element | None:
    """Said only where the run is not what it was to be."""
    if run.complete or (run.ended and run.searched) or not run.counted:
        return None
    what = "Ended early" if run.ended else "Not finished"
    done = f"{run.tuned} of {count(run.header.intervals, 'tuning interval')} done"
    if run.header.intervals >= NO_END:
        done = f"{count(run.tuned, 'tuning interval')} of a run that watches, and has no end of its own"
        if run.header.earlier is not None:
            done += "; those before the newest are in history.csv, an hour a line"
    if run.searched:
        done = "the best was not measured again in turns with the start yet"
    return tag("p", tag("strong", what), f": {done}.", class_="state")


def _verdict(run: RunView) -> Children:
    summary, aim = run.summary, AIMS[run.header.objective]
    if not run.counted:
        none = "No interval with requests is in the journal, so there is nothing to compare."
        return tag("p", none, class_="verdict")
    in_force = run.ended and run.header.target not in (EMBEDDED, SIMULATION)
    as_before = ", as found" if run.kept_as_found else ", as the run started"
    kept = [
        "Left in force: " if in_force else "To use: ",
        tag("strong", in_words(summary.kept)),
        "." if summary.found_better else f"{as_before}.",
        f" Cost is {aim.cost}.",
    ]
    return [tag("p", _gain(run), class_="verdict"), tag("p", kept, class_="kept")]


def _gain(run: RunView) -> Children:
    """The gain with its interval, or plainly that there is none."""
    summary, gain = run.summary, run.summary.turns
    if not summary.validated:
        if not summary.found_better:
            return [tag("strong", "No better: "), f"{summary.why_kept}."]
        if not summary.gain > 1:  # NaN: it was never measured
            return [tag("strong", "Not known to be better, left in force: "), f"{summary.why_kept}."]
        return [
            tag("strong", f"{_change(summary.gain)} cost"),
            " in its own intervals, not measured again in turns with the start. "
            f"The reason to keep it: {summary.why_kept}.",
        ]
    turns = f"in turns with the start ({_turns(summary)})"
    if summary.found_better:
        interval = interval_in_words(gain)
        doubt = "" if gain.beyond_noise else f" Within noise by itself: {summary.why_kept}."
        return [
            tag("strong", f"{times_lower(gain.estimate)} cost"),
            f" ({interval}), measured {turns}.{doubt}",
        ]
    interval = f"{GAIN_CONFIDENCE:.0%} interval {_change(gain.low)} to {_change(gain.high)}"
    why = "" if not gain.beyond_noise else f" {summary.why_kept[:1].upper()}{summary.why_kept[1:]}."
    return [
        tag("strong", "Not taken: " if gain.beyond_noise else "No better beyond noise: "),
        f"measured {turns}, the best candidate, {in_words(summary.best.configuration)}, had "
        f"{_change(gain.estimate)} cost ({interval}).{why}",
    ]


def _turns(summary: RunSummary) -> str:
    pairs = summary.start.intervals
    if pairs == 1:
        return "A B: clear enough to spare users another"
    order = " ".join("A B" if best_goes_first(pair) else "B A" for pair in range(pairs))
    return f"{order}, {count(pairs, 'interval')} each"


def _change(times_lower: float) -> str:
    return lower_or_higher(times_lower, 1.0)


def _tiles(run: RunView) -> Element | None:
    if not run.counted:
        return None
    summary, cost = run.summary, run.summary.exploration
    rate = summary.start.arrival_rate_per_s
    tiles = [
        _before_after("mean latency", run, "mean_ms"),
        _before_after("p95 latency", run, "p95_ms"),
        _tile(
            "tuning cost",
            f"{ms(cost.extra_request_s)} s",
            _where_it_was(run),
        ),
        _tile(
            "failed requests",
            f"{cost.failures:,}",
            f"in {count(len(run.counted), 'interval')}, about {ms(rate)}/s"
            + (f"; not known of {cost.gaps} more, in which the target was away" if cost.gaps else ""),
        ),
    ]
    return tag("dl", *tiles, class_="tiles")


def _where_it_was(run: RunView) -> str:
    """In which parts of the run users waited longer, and what is not known of it."""
    cost = run.summary.exploration
    parts = "over all requests of the search"
    if cost.turns:
        search, validated = ms(cost.search_request_s), ms(cost.validation_request_s)
        parts = f"{search} s in the search, {validated} s in the validation"
    but = " but for the last, which is not measured" if run.ends_in_a_change else ""
    return f"of waiting above the start's, {parts}, changes included{but}"


def _before_after(name: str, run: RunView, field: str) -> Element:
    summary = run.summary
    before, after = _before(summary, field), getattr(summary.best, field)
    kept = after if summary.found_better else before
    value = f"{ms(kept)} ms" if math.isfinite(kept) else NOTHING
    if math.isfinite(before):
        note = f"{ms(before)} ms with the start" if summary.found_better else "at the start, which stays"
        if _is_beside_best(summary, field) and not summary.validated:
            note = f"{ms(before)} ms expected with the start at the same arrivals"
        if summary.found_better and not (_is_beside_best(summary, field) or summary.loads_compare):
            note += " at {} in place of {} requests/s".format(*map(ms, summary.loads_met_per_s))
    elif run.tells_percentiles or not math.isfinite(summary.start.mean_ms):
        note = "not measured with the start"
    else:
        note = "the target tells no percentiles"
    return _tile(name, value, note)


def _before(summary: RunSummary, field: str) -> float:
    """The start's figure: its mean latency is that at the same arrivals as the best's."""
    value: float = getattr(summary.start, field)
    return summary.start_to_compare_ms if field == "mean_ms" else value


def _is_beside_best(summary: RunSummary, field: str) -> bool:
    """Whether the start's figure is known at the same arrivals as the best's."""
    return field == "mean_ms" and summary.is_start_told_beside_best


def _tile(name: str, value: str, note: str) -> Element:
    return tag("div", tag("dt", name), tag("dd", value, class_="value"), tag("dd", note, class_="note"))


def _cost(value: float, run: RunView) -> str:
    unit = unit_of(run.header.objective)
    return f"({in_unit(value, unit)})" if tells_broken_limit(value, unit) else _figure(value)


def _figure(value: float) -> str:
    return f"{value:g}" if value == round(value) else ms(value)
