"""What a closed loop saw at each of several concurrencies: a table, and `levels.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from serving_adapter.load.report import LoadReport
from serving_adapter.standard_streams import say
from serving_adapter.whole_files import written_whole

FILE_NAME = "levels.csv"
COLUMNS = ("concurrency", "answered_per_s", "mean_ms", "p50_ms", "p95_ms", "p99_ms", "failed")


def show(reports: Mapping[int, LoadReport]) -> None:
    table = Table()
    for name in COLUMNS:
        table.add_column(name.replace("_per_s", "/s").replace("_ms", " ms"), justify="right")
    for level, report in reports.items():
        table.add_row(*(f"{value:.5g}" for value in _row(level, report)))
    console = Console()
    with console.capture() as shown:
        console.print(table)
    say(shown.get().rstrip("\n"))


def write(folder: Path, reports: Mapping[int, LoadReport]) -> None:
    """Writes the file whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_row(level, report) for level, report in reports.items())
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / FILE_NAME) as file:
        file.write(text.getvalue().encode())


def _row(level: int, report: LoadReport) -> tuple[float, ...]:
    latency = report.latency_ms
    figures = (latency.mean, latency.p50, latency.p95, latency.p99) if latency else (float("nan"),) * 4
    return (level, report.achieved_rate_per_s, *figures, sum(report.failed.values()))
