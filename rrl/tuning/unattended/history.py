"""`history.csv`: intervals that are not in the journal any more, summed up by the hour."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from rrl.records import Record
from rrl.tuning.change_limits import HOUR_S
from serving_adapter.whole_files import errors_name, written_whole

FILE_NAME = "history.csv"
COLUMNS = (
    "hour",  # UTC, in which these intervals ended
    "until_unix_s",  # the end of the last of them
    "intervals",
    "silent_intervals",
    "requests",
    "failed_requests",
    "arrivals_per_s",  # the mean, as of the next three
    "latency_mean_ms",
    "latency_p95_ms",
    "cost",
    "changes",
    "rollbacks",
)
MAX_LINES = 20_000  # of two years, some 2 MB


def summed_up(folder: Path, records: Sequence[Record]) -> None:
    """Appends a line for each hour of these intervals, but for those that it has already."""
    path = folder / FILE_NAME
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    new = _not_summed_up(records, _until_s(lines))
    rows = [_row(list(group)) for _, group in groupby(new, key=lambda record: record.wall_time_s // HOUR_S)]
    if not rows:
        return
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    kept = [line for line in lines[1:] if line.count(",") == len(COLUMNS) - 1][-MAX_LINES:]
    with errors_name(path), written_whole(path) as file:
        file.write("\n".join([",".join(COLUMNS), *kept, text.getvalue()]).encode())


def _not_summed_up(records: Sequence[Record], until_s: float) -> Sequence[Record]:
    """Those behind the one that ended then; all where none did. A clock may be set back between them."""
    summed_up = [i for i, record in enumerate(records) if record.wall_time_s == until_s]
    return records[summed_up[-1] + 1 :] if summed_up else records


def _until_s(lines: Sequence[str]) -> float:
    try:
        return float(lines[-1].split(",")[1])
    except (IndexError, ValueError):
        return math.nan


def _row(records: Sequence[Record]) -> list[Any]:
    seen = [record.measurement for record in records if not record.measurement.gap]
    served = [m for m in seen if m.completions]
    requests = sum(m.arrivals for m in seen)
    duration_s = sum(m.duration_s for m in seen)

    def mean(values: Sequence[float], weights: Sequence[float]) -> float | str:
        told = [(v, w) for v, w in zip(values, weights, strict=True) if math.isfinite(v)]
        total = sum(w for _, w in told)
        return round(sum(v * w for v, w in told) / total, 3) if total else ""

    completions = [float(m.completions) for m in served]
    hour = datetime.fromtimestamp(records[0].wall_time_s // HOUR_S * HOUR_S, UTC)
    return [
        hour.strftime("%Y-%m-%dT%H:%MZ"),
        records[-1].wall_time_s,
        len(records),
        sum(record.silent for record in records),
        requests,
        sum(record.failures for record in records),
        round(requests / duration_s, 3) if duration_s else "",
        mean([m.latency.mean_ms for m in served], completions),
        mean([m.latency.p95_ms for m in served], completions),
        mean([record.cost for record in records], [1.0] * len(records)),
        sum(len(record.changed_at_s) for record in records),
        sum(record.decision == "rollback" for record in records),
    ]
