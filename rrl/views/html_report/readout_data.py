"""What the page's script reads: every interval, for the readout over the time axis."""

from __future__ import annotations

import json

from rrl.knobs import in_words
from rrl.records import Record
from rrl.tuning.decision_words import reason_in_words, who_decided
from rrl.views.html_report.markup import plain_text
from rrl.views.html_report.numbers import duration, ms
from rrl.views.html_report.run_view import RunView
from rrl.views.html_report.wording import in_arrows, remark

ELEMENT = "intervals-data"
KIND_IN_WORDS = {
    "baseline": "measuring the start",
    "tune": "tuning",
    "validation": "validation",
    "wait": "waiting: no change is allowed",
}


def readout_data(run: RunView) -> str:
    """Every interval, for the readout: texts once, rows that point at them."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(plain_text(text), len(texts))

    what = {c.interval: in_arrows(c.change.what) for c in run.changes if c.interval is not None}
    why = {c.interval: c.change.reason for c in run.changes if c.interval is not None}
    rows = []
    for i, record in enumerate(run.records):
        m = record.measurement
        rows.append(
            [
                round(run.share(float(run.ends_min[i])), 5),
                duration(60 * float(run.begins_min[i])),
                number(KIND_IN_WORDS.get(record.kind, record.kind)),
                number(in_words(record.configuration)),
                ms(m.latency.mean_ms),
                ms(m.latency.p95_ms),
                ms(m.arrival_rate_per_s),
                number(what.get(i, "")),
                number(why.get(i) or _unchanged(record)),
                number(remark(record)),
            ]
        )
    data = json.dumps({"texts": list(texts), "rows": rows}, ensure_ascii=False, separators=(",", ":"))
    return data.replace("<", "\\u003c")  # No text may end the script element.


def _unchanged(record: Record) -> str:
    """Why the guard kept what was in force, where it did."""
    if who_decided(record.decision) != "guard":
        return ""
    return reason_in_words(record.kind, record.decision, record.reason)
