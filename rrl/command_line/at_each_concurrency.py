"""Tuning for several closed loops, one after the other, each with what the agent learned in the last one.

Service times of a configuration are the same under any load. So the second run begins with most of what the
first one found out, where an offline search begins anew.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rrl.command_line.ending import INTERRUPTED, ends_all, of_all
from rrl.command_line.opening.several_models import SharedByModels
from rrl.command_line.options.options import TuneOptions
from rrl.command_line.tune import tune
from rrl.knobs import in_words
from rrl.tuning.stop import Stop
from rrl.views.html_report.numbers import four_digits
from rrl.views.summary_json import FILE_NAME
from serving_adapter.load.concurrencies import parse_concurrencies


def tune_at_each(options: TuneOptions, console: Console, stop: Stop, shared: SharedByModels) -> int:
    """Tunes one model for each concurrency, or just tunes it. Returns the exit code."""
    levels = parse_concurrencies(options.concurrency)
    if len(levels) < 2:
        return tune(options, console, stop, shared)
    folder = options.out or Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")
    codes = []
    before: Path | None = None
    for level in levels:
        if stop.is_set():  # The run before was about to end by itself.
            return INTERRUPTED
        console.rule(f"{level} requests at once")
        out = folder / f"concurrency-{level}"
        knobs = options.knobs if before is None else ()  # The grid is then that of the run before.
        one = dataclasses.replace(options, concurrency=level, out=out, agent_from=before, knobs=knobs)
        codes.append(tune(one, console, stop, shared))
        if ends_all(codes[-1]):
            return codes[-1]
        before = out
    console.print(_table(folder, levels))
    return of_all(codes)


def _table(folder: Path, levels: list[int]) -> Table:
    table = Table(title="the best for each concurrency", title_justify="left", header_style="dim")
    for name in ("at once", "answers/s", "mean ms", "p95"):
        table.add_column(name, justify="right")
    table.add_column("configuration")
    for level in levels:
        found = json.loads((folder / f"concurrency-{level}" / FILE_NAME).read_text(encoding="utf-8"))
        best = found["best"] if found["found_better"] else found["start"]
        figures = (best["answered_per_s"], best["mean_ms"], best["p95_ms"])
        cells = ["-" if value is None else four_digits(value) for value in figures]
        table.add_row(str(level), *cells, in_words(found["left"]))
    return table
