"""Pareto's front of a run as a table in the terminal."""

from __future__ import annotations

from rich.table import Table

from rrl.knobs import in_words
from rrl.views.html_report.numbers import four_digits
from rrl.views.tradeoff import Tradeoff

MAX_ROWS = 8  # The others are in pareto.csv.


def front_table(tradeoff: Tradeoff) -> Table | None:
    """What can be had for how many threads; None where there is nothing to choose from."""
    front = tradeoff.front
    if len(front) < 2:
        return None
    table = Table(
        title="nothing measured beats these in latency, answers and threads together",
        title_justify="left",
        title_style="bold",
        header_style="dim",
    )
    for name in ("threads", f"{tradeoff.statistic} ms", "answers/s", "intervals"):
        table.add_column(name, justify="right")
    table.add_column("configuration")
    for point in front[:MAX_ROWS]:
        figures = (f"{point.threads}", four_digits(point.latency_ms), four_digits(point.answered_per_s))
        table.add_row(*figures, f"{point.intervals}", in_words(point.configuration))
    if len(front) > MAX_ROWS:
        table.caption = f"{len(front) - MAX_ROWS} more are in pareto.csv"
    return table
