"""Words that several sections share."""

from __future__ import annotations

from rrl.records import Record


def in_arrows(what: str) -> str:
    """A change of knobs, as a page can print it."""
    return what.replace("->", "→")


def remark(record: Record) -> str:
    """What was wrong with an interval, in words."""
    failures = record.failures
    parts = [
        f"aborted: {record.measurement.aborted}" if record.measurement.aborted else "",
        record.measurement.gap,
        record.verdict if record.verdict not in (record.measurement.gap, record.measurement.aborted) else "",
        f"{failures} requests failed" if failures and "failed" not in record.verdict else "",
    ]
    return "; ".join(filter(None, parts))
