"""`rrl-tune what-if`: asks an earlier run what would be best under another load, limit or objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tyro.conf import Positional

from rrl import journal
from rrl.command_line.exporting import make_console
from rrl.knobs import in_words
from rrl.objective import in_unit, make_objective
from rrl.records import Header
from rrl.views.html_report.numbers import four_digits
from rrl.views.summary import summarise
from rrl.views.what_if import CONFIDENCE, Learned, Outlook, WhatIf
from serving_adapter.flags.parsing import fail, in_a_sentence


@dataclass(frozen=True)
class WhatIfOptions:
    """Tells which configuration an earlier run expects to be best under another load, limit or objective.

    Nothing is sent anywhere: it is asked of the journal.
    """

    run: Positional[Path]
    """Folder of the run."""
    rate: float | None = None
    """Requests per second. Default: as in the run."""
    concurrency: int | None = None
    """Requests at once, of a run under a closed loop. Default: as in the run."""
    slo_p95_ms: float | None = None
    """Limit on the p95 latency. Default: that of the run."""
    objective: str | None = None
    """As of rrl-tune. Default: that of the run."""
    count: int = 5
    """So many configurations, the best first."""

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < math.inf:
            raise ValueError(f"--rate must be above 0 requests per second, got {self.rate:g}")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"--concurrency must be at least 1 request at once, got {self.concurrency}")
        if self.count < 1:
            raise ValueError(f"--count must be at least 1, got {self.count}")


def what_if(options: WhatIfOptions) -> None:
    """Asks, and shows the answer. Bad input ends the command in a sentence."""
    console = make_console()
    try:
        learned = learned_of(journal.folder_of(options.run))
        header = learned.header
        limit_ms = header.slo_p95_ms if options.slo_p95_ms is None else options.slo_p95_ms
        objective = make_objective(options.objective or header.objective, limit_ms)
        answer = learned.ask(objective, _load(options, header), options.count)
    except (ValueError, OSError) as error:
        fail(in_a_sentence(error))
    show(console, learned, answer)


def _load(options: WhatIfOptions, header: Header) -> float | None:
    """The load to ask about; None: that of the run. ValueError for one of the other kind."""
    is_closed = header.concurrency is not None
    if (options.rate if is_closed else options.concurrency) is not None:
        asked, instead = ("--rate", "--concurrency") if is_closed else ("--concurrency", "--rate")
        kind = "a closed loop" if is_closed else "requests that came by themselves"
        raise ValueError(f"{options.run} is a run under {kind}, so {asked} is not of it; give {instead}")
    return options.concurrency if is_closed else options.rate


def learned_of(folder: Path) -> Learned:
    """What the run in a folder learned. ValueError where it can tell nothing."""
    header, records = journal.read(folder)
    ending = journal.read_ending(folder)
    summary = summarise(header, records)
    kept = summary.kept if ending is None else ending.kept
    learned = Learned.of(header, records, summary.belief, kept)
    if learned is None:
        raise ValueError(
            f"the run in {folder} cannot be asked: it needs an interval with service times, of one model"
        )
    return learned


def show(console: Console, learned: Learned, answer: WhatIf) -> None:
    """The configurations as a table, and what speaks against it."""
    limit_ms = answer.objective.slo_p95_ms
    limit = "" if limit_ms is None else f", p95 limit {limit_ms:g} ms"
    table = Table(
        title=f"expected at {four_digits(answer.load)} {learned.load_unit}{limit}",
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    table.add_column("")
    table.add_column("configuration")
    for name in ("threads", "p95 ms", f"{CONFIDENCE:.0%} interval", "cost"):
        table.add_column(name, justify="right")
    table.add_column("measured")
    for place, outlook in enumerate(answer.best, 1):
        _add(table, str(place), outlook, answer.objective.unit)
    _add(table, "left", answer.kept, answer.objective.unit)
    console.print(table)
    for doubt in answer.doubts:
        console.print(f"the first one: {doubt}" if doubt.startswith("never") else doubt, style="yellow")
    low, high = learned.loads_seen
    console.print(f"the run saw {four_digits(low)} to {four_digits(high)} {learned.load_unit}", style="dim")


def _add(table: Table, place: str, outlook: Outlook, unit: str) -> None:
    figures = ("not borne", "", "")
    if outlook.borne:
        interval = f"{four_digits(outlook.p95_low_ms)} to {four_digits(outlook.p95_high_ms)}"
        figures = (four_digits(outlook.p95_ms), interval, in_unit(outlook.cost, unit))
    threads, measured = f"{outlook.threads}", "yes" if outlook.measured else "no"
    table.add_row(place, in_words(outlook.configuration), threads, *figures, measured)
