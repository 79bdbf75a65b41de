"""Words that several sections share."""

from __future__ import annotations

from rrl.objective import in_unit, tells_broken_limit, unit_of
from rrl.records import Header, Record
from rrl.views.html_report.numbers import count, ms


def in_arrows(what: str) -> str:
    """A change of knobs, as a page can print it."""
    return what.replace("->", "→")


def cost_in_words(header: Header, cost: float) -> str:
    """A cost under the run's objective, without its unit; in words where it stands for a broken limit."""
    unit = unit_of(header.objective)
    return in_unit(cost, unit) if tells_broken_limit(cost, unit) else ms(cost)


def remark(record: Record) -> str:
    """What was wrong with an interval, in words."""
    failures = record.failures
    parts = [
        f"aborted: {record.measurement.aborted}" if record.measurement.aborted else "",
        record.measurement.gap,
        record.verdict if record.verdict not in (record.measurement.gap, record.measurement.aborted) else "",
        f"{count(failures, 'request')} failed" if failures and "failed" not in record.verdict else "",
    ]
    return "; ".join(filter(None, parts))
