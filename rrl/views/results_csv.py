"""`metrics-model-inference.csv`: a row a configuration that was measured, with the columns of Model Analyzer.

So scripts that read its results read these. What it sets and here is measured: a concurrency is the mean
number of requests in the server, by Little's law. Percentiles are empty where the server tells none.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from rrl.objective import slo_violated
from rrl.records import Header, Record
from rrl.views.summary import Standing
from rrl.views.tradeoff import config_name
from serving_adapter.whole_files import written_whole

FILE_NAME = "metrics-model-inference.csv"
COLUMNS = (
    *("Model", "Batch", "Concurrency", "Model Config Path", "Instance Group", "Max Batch Size"),
    *("Satisfies Constraints", "Throughput (infer/sec)", "p99 Latency (ms)"),
)


def write(path: Path, header: Header, records: Sequence[Record]) -> None:
    """Writes the file whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(header, records))
    with written_whole(path) as file:
        file.write(text.getvalue().encode(errors="replace"))


def _rows(header: Header, records: Sequence[Record]) -> Iterator[tuple[object, ...]]:
    of_number: dict[int, list[Record]] = {}
    for record in records:
        if record.counted and record.measurement.completions:
            of_number.setdefault(record.number, []).append(record)
    for number, measured in sorted(of_number.items(), key=lambda item: _mean_ms(item[1])):
        configuration = (header.found or {}) | header.space.configuration(number)
        standing = Standing.of(measured, configuration)
        completions = sum(record.measurement.completions for record in measured)
        duration_s = sum(record.measurement.duration_s for record in measured)
        throughput_per_s = completions / duration_s
        concurrency = max(1, round(throughput_per_s * standing.mean_ms / 1e3))
        broken = any(slo_violated(record.measurement, header.slo_p95_ms) for record in measured)
        yield (
            header.model,
            1,
            concurrency,
            config_name(header, number),
            _instance_group(header, configuration.get("instances")),
            configuration.get("max_batch_size", ""),
            "No" if broken else "Yes",
            f"{throughput_per_s:.1f}",
            f"{standing.p99_ms:.3f}" if math.isfinite(standing.p99_ms) else "",
        )


def _instance_group(header: Header, instances: int | None) -> str:
    """`COUNT:KIND`; the count alone where the server leaves the kind open, as a Triton without one does."""
    if instances is None:
        return ""
    kind = re.search(r"kind: KIND_(CPU|GPU)\b", header.found_config_pbtxt or "")
    return str(instances) if kind is None else f"{instances}:{kind[1]}"


def _mean_ms(records: Sequence[Record]) -> float:
    completions = sum(record.measurement.completions for record in records)
    return sum(r.measurement.latency.mean_ms * r.measurement.completions for r in records) / completions
