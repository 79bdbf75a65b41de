"""The end of a run: its views are written beside the journal, and the result is shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from rrl import figure, reference_table, report, tensorboard_events
from rrl.journal import Journal
from rrl.report import Summary, summarise
from rrl.tensorboard_events import TensorBoardEvents
from rrl.terminal import cost_table, result_table

LATENCY_PICTURE = "latency.png"
MODEL_CONFIG = "best_model_config.json"


class Configured(Protocol):
    """What exporting needs of a target."""

    def model_config(self, configuration: Mapping[str, int]) -> str: ...


def export(
    journal: Journal, target: Configured | None, events: TensorBoardEvents | None, left: int | None = None
) -> Summary:
    """Writes every view of the journal into its folder; `left` is what the run left in force."""
    folder, header, records = journal.path.parent, journal.header, journal.records
    summary = summarise(header, records, left=left)
    report.reference_table(header, records).write(folder / reference_table.FILE_NAME)
    report.write_best_configuration(folder / report.BEST_CONFIGURATION, header, summary)
    figure.draw(header, records, summary, folder / LATENCY_PICTURE)
    if target is not None:
        config = json.loads(target.model_config(summary.left))
        (folder / MODEL_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if events is not None:
        events.close(summary, folder / LATENCY_PICTURE)
    return summary


def print_result(console: Console, journal: Journal, summary: Summary, client_failures: int | None) -> None:
    folder = journal.path.parent
    console.print()
    console.print(result_table(journal.header, summary))
    console.print(cost_table(summary, client_failures))
    console.print()
    places = Table.grid(padding=(0, 2))
    places.add_column(style="dim", justify="right")
    places.add_column(overflow="fold")
    for name, place in (
        ("journal", journal.path),
        ("plot", folder / LATENCY_PICTURE),
        ("reference table", folder / reference_table.FILE_NAME),
        ("configuration", folder / report.BEST_CONFIGURATION),
        ("Triton override", folder / MODEL_CONFIG),
    ):
        if Path(place).exists():
            places.add_row(name, str(place))
    places.add_row("TensorBoard", f"tensorboard --logdir {folder / tensorboard_events.FOLDER}")
    console.print(places)
