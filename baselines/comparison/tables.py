"""The comparison as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from baselines.comparison.summary import AgentSummary, Multiple

TITLES = {
    "decisions_until_10_percent": "decisions\nuntil\nwithin 10 %",
    "share_got_there": "runs\nthat got\nthere",
    "ratio_after_30": "cost /\noracle's\nafter 30",
    "ratio_60_after_slowdown": "60 after\nthe slow-\ndown",
    "excess": "excess\nover the\nwhole run",
    "share_p95_over_twice_best": "p95 over\ntwice best",
    "share_slo_violated": "SLO\nviolated",
    "mean_threads": "threads",
    "decide_median_ms": "ms a\ndecision\nmedian",
    "decide_p99_ms": "ms a\ndecision\np99",
}
PERCENT = ("share_got_there", "share_p95_over_twice_best", "share_slo_violated")
WIDE = 10_000  # characters, more than any table has in a line
WITH_INTERVAL = ("decisions_until_10_percent", "ratio_after_30", "excess")
WITH_WORST = ("ratio_after_30",)


def summary_tables(rows: Sequence[AgentSummary], width: int) -> list[Table]:
    """One row an agent, the least excess first: interquartile mean, and its 95 % interval in brackets.

    As many tables as it takes for each to fit the terminal's width.
    """
    known = {row.figure for row in rows}
    left = [name for name in TITLES if name in known]
    tables = []
    while left:
        count = len(left)
        while count > 1 and not fits(_summary_table(rows, left[:count]), width):
            count -= 1
        tables.append(_summary_table(rows, left[:count]))
        left = left[count:]
    return tables


def fits(table: Table, width: int) -> bool:
    """True if nothing of the table is cut off on a terminal of this width."""
    return Console(width=WIDE).measure(table).maximum <= width


def _summary_table(rows: Sequence[AgentSummary], shown: Sequence[str]) -> Table:
    agents: dict[str, dict[str, AgentSummary]] = {}
    for row in rows:
        agents.setdefault(row.agent, {})[row.figure] = row
    table = Table(title="interquartile means over the runs [95 % interval]", header_style="dim")
    table.title_justify = "left"
    table.add_column("agent", no_wrap=True)
    for name in shown:
        table.add_column(TITLES[name], justify="right", no_wrap=True)
        if name in WITH_WORST:
            table.add_column("worst\nmachine", justify="right", no_wrap=True)
    for agent in by_excess(rows):
        figures = agents[agent]
        cells: list[str | Text] = [Text(agent, style="bold")]
        for name in shown:
            cells.append(_cell(figures[name]))
            if name in WITH_WORST:
                worst, machine = figures[name].worst, figures[name].worst_machine
                cells.append("-" if math.isnan(worst) else f"{_number(worst)} ({machine})")
        table.add_row(*cells)
    return table


def by_excess(rows: Sequence[AgentSummary]) -> list[str]:
    """The agents, the least excess first."""
    excess = [row for row in rows if row.figure == "excess"]
    return [row.agent for row in sorted(excess, key=lambda row: row.iqm)]


def multiples_table(rows: Sequence[Multiple], agents: Sequence[str]) -> Table:
    """The excess of the row's agent as a multiple of the column's, in the given order of agents."""
    by_pair = {(row.agent, row.other): row.multiple for row in rows}
    others = [name for name in agents if any(math.isfinite(by_pair.get((a, name), math.nan)) for a in agents)]
    table = Table(title="excess over the whole run, as a multiple of ...", header_style="dim")
    table.title_justify = "left"
    table.add_column("agent", no_wrap=True)
    for other in others:
        table.add_column(other, justify="right", no_wrap=True)
    for agent in agents:
        cells = ["" if agent == other else _number(by_pair[agent, other]) for other in others]
        table.add_row(Text(agent, style="bold"), *cells)
    return table


def _cell(row: AgentSummary) -> str:
    if row.figure in PERCENT:
        return f"{row.iqm:.1%}" if math.isfinite(row.iqm) else "-"
    text = _number(row.iqm)
    if row.figure in WITH_INTERVAL and math.isfinite(row.iqm) and row.runs > 1:
        text += f" [{_number(row.low)}, {_number(row.high)}]"
    return text


def _number(value: float) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never" if value > 0 else "-"
    if abs(value) >= 1e5:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
