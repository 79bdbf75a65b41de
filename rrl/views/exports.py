"""The end of a run: its views are written beside the journal, and the result is shown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from rrl.guarding.choice import ToKeep
from rrl.journal import FILE_NAME as JOURNAL
from rrl.journal import Journal
from rrl.records import Header, Record, finished
from rrl.tuning import change_log
from rrl.views import (
    intervals_csv,
    reference_table,
    results_csv,
    summary_json,
    tensorboard_events,
    tradeoff,
)
from rrl.views.front_table import front_table
from rrl.views.html_report import page
from rrl.views.html_report.run_view import LeftOut
from rrl.views.same_arrivals import SameArrivals
from rrl.views.summary import (
    BEST_CONFIGURATION,
    RunSummary,
    reference_table_of,
    summarise,
    write_best_configuration,
)
from rrl.views.tensorboard_events import TensorBoardEvents
from rrl.views.terminal import cost_table, fits, result_table

LATENCY_PICTURE = "latency.png"
BEST = "best_"  # begins the names of the files that take the configuration home
FOUND = "found_"  # begins the names of the same files of the configuration found, to go back to
CONFIG_DIFF = f"{BEST}config.diff"


class Configured(Protocol):
    """What exporting needs of a target, or of what is known of one."""

    def config_files(self, configuration: Mapping[str, int]) -> Mapping[str, str]: ...


def export(
    journal: Journal,
    target: Configured | None,
    events: TensorBoardEvents | None,
    kept: ToKeep | None = None,
    same_arrivals: SameArrivals | None = None,
    around_found: AbstractContextManager[None] | None = None,
) -> RunSummary:
    """Writes every view of the journal into its folder. `kept` is what the run kept in force, and why.

    `around_found` is as `write_views` takes it.
    `same_arrivals` is what the run knows of the start beside it; without it the journal is replayed.
    """
    folder = journal.path.parent
    summary = summarise(journal.header, journal.records, kept=kept, same_arrivals=same_arrivals)
    try:
        write_views(folder, journal.header, journal.records, summary, target, kept is not None, around_found)
    finally:
        if events is not None:
            events.finish(summary, folder / LATENCY_PICTURE)
    return summary


def write_views(
    folder: Path,
    header: Header,
    records: Sequence[Record],
    summary: RunSummary,
    target: Configured | None,
    ended: bool = False,
    around_found: AbstractContextManager[None] | None = None,
) -> None:
    """Writes all views but the TensorBoard events. The report comes last, as it links to the others.

    `ended` is True if the run has put in force what it keeps. An error of the target is raised only after
    everything that needs no target was written. `around_found` may catch one in the files of the
    configuration found: that cannot always be made again, and the others do without.
    """
    from rrl.views import figure  # Matplotlib takes its time, and nothing is drawn before

    if header.concurrency is None:  # The rate of a closed loop follows the configuration.
        reference_table_of(header, records).write(folder / reference_table.FILE_NAME)
    write_best_configuration(folder / BEST_CONFIGURATION, header, summary, ended)
    intervals_csv.write(folder / intervals_csv.FILE_NAME, header, records)
    results_csv.write(folder / results_csv.FILE_NAME, header, records)
    measured = tradeoff.Tradeoff.of(header, records)
    tradeoff.write(folder / tradeoff.FILE_NAME, header, measured)
    summary_json.write(folder / summary_json.FILE_NAME, header, summary, ended, measured)
    shown, drawn, left_out = _newest(header, records, summary)
    figure.draw(header, shown, drawn, folder / LATENCY_PICTURE)
    diff = ""
    try:
        if target is not None:
            diff = _write_kept(folder, header, target.config_files(summary.kept))
            with around_found or nullcontext():
                _write_all(folder, FOUND, target.config_files(header.found))
    finally:
        page.write(folder / page.FILE_NAME, header, shown, drawn, ended, diff, left_out)


def _newest(
    header: Header, records: Sequence[Record], summary: RunSummary
) -> tuple[Sequence[Record], RunSummary, LeftOut | None]:
    """What is drawn of a journal that was shortened: the few old intervals that it kept are months away."""
    if header.earlier is None:
        return records, summary, None
    old = int(header.earlier.get("kept", 0))
    lasted_s = records[old].wall_time_s - records[0].wall_time_s if len(records) > old else 0.0
    left_out = LeftOut(finished(header, records[:old])["tune"], lasted_s)
    return records[old:], replace(summary, start_ms=summary.start_ms[old:]), left_out


def _write_kept(folder: Path, header: Header, files: Mapping[str, str]) -> str:
    """Writes the configuration kept as a server takes it. Returns its diff to the one found."""
    _write_all(folder, BEST, files)
    name, text = next(iter(files.items()), ("", ""))
    diff = _diff(header.found_config_pbtxt or text, text, name)
    if diff:
        (folder / CONFIG_DIFF).write_text(diff, encoding="utf-8")
    else:
        (folder / CONFIG_DIFF).unlink(missing_ok=True)  # It may be of the run before it was resumed.
    return diff


def _write_all(folder: Path, beginning: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        _write(folder, f"{beginning}{name}", text)


def _write(folder: Path, name: str, text: str) -> None:
    """A model's name is that of a folder, and a journal may come from anybody."""
    path = folder / name
    if ".." in name.split("/") or not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"a configuration's file cannot be called {name!r}: it is to be in {folder}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _diff(found: str, best: str, name: str) -> str:
    before, after = found.splitlines(keepends=True), best.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, f"found/{name}", f"best/{name}"))


def print_result(
    console: Console, journal: Journal, summary: RunSummary, client_failures: int | None
) -> None:
    console.print()
    table = result_table(journal.header, summary)
    console.print(table if fits(console, table) else result_table(journal.header, summary, turned=True))
    console.print(cost_table(summary, client_failures))
    if (front := front_table(tradeoff.Tradeoff.of(journal.header, journal.records))) is not None:
        console.print()
        console.print(front)
    console.print()
    print_places(console, journal.path.parent)


def print_places(console: Console, folder: Path) -> None:
    """Where the views of a run are, the one to open first."""
    places = Table.grid(padding=(0, 2))
    places.add_column(style="dim", justify="right")
    places.add_column(overflow="fold")
    for name, file in (
        ("report", page.FILE_NAME),
        ("configuration", f"{BEST}config.pbtxt"),
        ("configuration", f"{BEST}serve_config.yaml"),
        ("its diff", CONFIG_DIFF),
        ("Triton override", f"{BEST}model_config.json"),
        ("to go back", f"{FOUND}model_config.json"),
        ("to go back", f"{FOUND}serve_config.yaml"),
        ("knobs alone", BEST_CONFIGURATION),
        ("reference table", reference_table.FILE_NAME),
        ("intervals", intervals_csv.FILE_NAME),
        ("summary", summary_json.FILE_NAME),
        ("latency against threads", tradeoff.FILE_NAME),
        ("changes", change_log.FILE_NAME),
        ("plot", LATENCY_PICTURE),
        ("journal", JOURNAL),
    ):
        if (folder / file).exists():
            places.add_row(name, str(folder / file))
    if (folder / tensorboard_events.FOLDER).exists():
        places.add_row("TensorBoard", f"tensorboard --logdir {folder / tensorboard_events.FOLDER}")
    console.print(places)
