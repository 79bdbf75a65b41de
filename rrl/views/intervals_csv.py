"""The intervals of a run as a table for pandas or a spreadsheet: a row each, empty where nothing was seen."""

from __future__ import annotations

import codecs
import csv
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rrl.records import Header, Record
from serving_adapter.whole_files import written_whole

FILE_NAME = "intervals.csv"

Value = str | float | int | bool

_FIRST = ("interval", "ended_at", "elapsed_s", "kind", "decision", "changed")  # Then the knobs, then `_THEN`.
_THEN: dict[str, Callable[[Record], Value]] = {
    "arrivals_per_s": lambda r: r.measurement.arrival_rate_per_s,
    "arrivals": lambda r: r.measurement.arrivals,
    "completions": lambda r: r.measurement.completions,
    "failures": lambda r: r.measurement.failures,
    "failures_while_settling": lambda r: 0 if r.settling is None else r.settling.failures,
    "mean_ms": lambda r: r.measurement.latency.mean_ms,
    "p50_ms": lambda r: r.measurement.latency.p50_ms,
    "p95_ms": lambda r: r.measurement.latency.p95_ms,
    "p99_ms": lambda r: r.measurement.latency.p99_ms,
    "queue_ms": lambda r: r.measurement.queue.mean_ms,
    "service_ms": lambda r: r.measurement.service.mean_ms,
    "network_ms": lambda r: r.measurement.network_ms,
    "mean_batch_size": lambda r: r.measurement.mean_batch_size,
    "backlog": lambda r: r.measurement.backlog,
    "cpu_utilisation": lambda r: r.measurement.cpu_utilisation,
    "gpu_utilisation": lambda r: r.measurement.gpu_utilisation,
    "cost": lambda r: r.cost,
    "counted": lambda r: r.counted,
    "learned": lambda r: r.learned,
    "reason": lambda r: r.reason,
    "verdict": lambda r: r.verdict,
    "calls_for_rollback": lambda r: r.rollback,
    "aborted": lambda r: r.measurement.aborted,
    "gap": lambda r: r.measurement.gap,
    "decision_ms": lambda r: r.decision_ms,
    "apply_ms": lambda r: r.apply_ms,
}


def write(path: Path, header: Header, records: Sequence[Record]) -> None:
    """Writes the file whole."""
    with written_whole(path) as file:
        writer = csv.writer(codecs.getwriter("utf-8")(file, "replace"))
        writer.writerow([*_FIRST, *header.space.names, *_THEN])
        writer.writerows(map(_cell, row) for row in _rows(header, records))


def _rows(header: Header, records: Sequence[Record]) -> Iterator[list[Value]]:
    before = header.start
    # Of a shortened journal the old intervals and the next follow others that it has lost.
    apart = 0 if header.earlier is None else 1 + int(header.earlier.get("kept", 0))
    for number, record in enumerate(records, 1):
        ended_at = datetime.fromtimestamp(record.wall_time_s, UTC).isoformat(timespec="milliseconds")
        elapsed_s = record.wall_time_s - records[0].wall_time_s + header.interval_s
        changed: Value = record.configuration != before and record.was_in_force
        if number <= apart:
            changed = ""
        yield [
            *(number, ended_at, elapsed_s, record.kind, record.decision, changed),
            *(record.configuration[name] for name in header.space.names),
            *(of(record) for of in _THEN.values()),
        ]
        before = record.configuration if record.was_in_force else before


def _cell(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A spreadsheet must not take it for a formula, which may stand behind blanks.
        return f"'{value}" if value.strip().startswith(("=", "+", "-", "@")) else value
    return f"{value:.8g}" if math.isfinite(value) else ""
