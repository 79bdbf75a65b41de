"""What a person sees: a live view in a terminal, a line an interval elsewhere, and the table at the end."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.progress import TimeRemainingColumn as EtaColumn
from rich.table import Table
from rich.text import Text

from rrl.guarding.gain import EXPECTED_CONFIDENCE, interval_in_words, times_lower
from rrl.guarding.guard import Guard
from rrl.journal import Journal
from rrl.knobs import in_words
from rrl.objective import in_unit, tells_broken_limit, unit_of
from rrl.records import NO_END, Decision, Header, Kind, Record, finished
from rrl.space import Configuration
from rrl.tuning.decision_words import remark_in_words
from rrl.tuning.listener import Change, Listener
from rrl.tuning.settings import TuningSettings
from rrl.views.exploration_cost import CostOfExploration
from rrl.views.html_report.numbers import count
from rrl.views.summary import RunSummary, Standing

PHASES: dict[str, str] = {
    "baseline": "measuring the start",
    "tune": "tuning",
    "validation": "validating",
    "wait": "waiting",
}
SHOWN_MEANS = 60
MOST_COLUMNS = 10_000  # More than a table has.
NARROW = 76  # Columns. Bar and words of the progress need about as many.
BARS = "▁▂▃▄▅▆▇█"


class PlainView(Listener):
    """One line an interval, for logs."""

    def __init__(self, console: Console, header: Header, total: int | None, done: int = 0) -> None:
        """`total` None: the run has no end."""
        self._console, self._header, self._total, self._done = console, header, total, done

    def measured(self, record: Record) -> None:
        self._done += uses_up(record)
        # The validation may need more turns than planned.
        of_total = "" if self._total is None else f"/{max(self._total, self._done)}"
        m = record.measurement
        remarks = "; ".join(filter(None, (remark_in_words(record.decision, record.reason), record.verdict)))
        self._print(
            f"[{self._done}{of_total}] {record.kind:<10} {m.arrival_rate_per_s:6.1f}/s  "
            f"mean {_ms(m.latency.mean_ms)} p95 {_ms(m.latency.p95_ms)} ms  "
            + (f"{record.failures_in_words}  " if record.failures else "")
            + in_words(record.configuration)
            + (f"  ({remarks})" if remarks else "")
        )

    def changed(self, change: Change) -> None:
        self._print(str(change))

    def notice(self, text: str) -> None:
        self._print(text)

    def close(self) -> None:
        pass

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveView(Listener):
    """Progress, load, configuration, latency now and at the start, the best so far, what the guard did."""

    def __init__(
        self,
        console: Console,
        header: Header,
        guard: Guard,
        in_force: Configuration,
        total: int | None,
        done: int = 0,
    ) -> None:
        """`in_force`: before the first change."""
        self._console, self._header, self._guard = console, header, guard
        self._progress = _progress(narrow=console.width < NARROW)
        self._task = self._progress.add_task(PHASES["baseline"], total=total, completed=done)
        self._in_force = dict(in_force)
        self._change = "none so far"
        self._waits = ""
        self._last: Record | None = None
        self._start_p95_ms: list[float] = []
        self._means_ms: deque[float] = deque(maxlen=SHOWN_MEANS)
        self._guard_said = "nothing to do so far"
        self._live = Live(self._view(), console=console, refresh_per_second=4, transient=True)
        self._live.start()

    def decided(self, kind: Kind, number: int, decision: Decision, reason: str) -> None:
        self._progress.update(self._task, description=PHASES[kind])
        self._waits = reason if decision == "wait" else ""
        if decision in ("rollback", "hold", "refused"):
            self._guard_said = remark_in_words(decision, reason)
        self._live.update(self._view())

    def changed(self, change: Change) -> None:
        self._in_force |= change.after
        self._change = f"{change.at:%H:%M:%S}  {change.what}: {change.reason}"
        self._live.update(self._view())

    def measured(self, record: Record) -> None:
        self._progress.update(self._task, advance=int(uses_up(record)))
        task = self._progress.tasks[0]
        if task.total is not None:
            self._progress.update(self._task, total=max(task.total, task.completed))  # Turns may follow.
        self._last = record
        latency = record.measurement.latency
        if record.kind == "baseline" and math.isfinite(latency.p95_ms):
            self._start_p95_ms.append(latency.p95_ms)
        if math.isfinite(latency.mean_ms):
            self._means_ms.append(latency.mean_ms)
        if record.measurement.aborted:
            self._guard_said = f"aborted: {record.measurement.aborted}"
        self._live.update(self._view())

    def notice(self, text: str) -> None:
        self._console.print(Text(text, style="yellow"))

    def close(self) -> None:
        self._live.stop()

    def _view(self) -> Panel:
        space = self._header.space
        in_force = {name: self._in_force[name] for name in space.names if name in self._in_force}
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim", justify="right", no_wrap=True)
        rows.add_column()
        m = self._last.measurement if self._last else None
        start_p95_ms = sum(self._start_p95_ms) / len(self._start_p95_ms) if self._start_p95_ms else math.nan
        rows.add_row("load", f"{m.arrival_rate_per_s:.1f} requests/s" if m else "measuring ...")
        rows.add_row("in force", Text(in_words(in_force), style="bold"))
        rows.add_row(
            "at the start", f"mean {_ms(self._guard.memory.start_latency_ms)} ms  p95 {_ms(start_p95_ms)} ms"
        )
        if self._last and m:
            now = Text(f"mean {_ms(m.latency.mean_ms)} ms  p95 {_ms(m.latency.p95_ms)} ms  ")
            times = self._guard.memory.start_latency_ms / m.latency.mean_ms if m.latency.mean_ms else math.nan
            if math.isfinite(times):
                now.append(f"{times:.1f}x lower" if times >= 1 else f"{1 / times:.1f}x higher",
                           style="green" if times >= 1 else "red")  # fmt: skip
            if self._last.failures:
                now.append(f"  {self._last.failures_in_words}", style="red")
            rows.add_row("last interval", now)
        rows.add_row("mean so far", Text(sparkline(list(self._means_ms)), style="cyan"))
        rows.add_row(
            "best known", Text(in_words(space.configuration(self._guard.choice.best_to_keep)), style="green")
        )
        rows.add_row("guard", Text(self._guard_said))
        rows.add_row("last change", Text(self._change))
        if self._waits:
            rows.add_row("waits", Text(self._waits, style="yellow"))
        # As a string it would be markup, whatever the console thinks of that.
        title = Text(f"rrl-tune: {self._header.model} on {self._header.target}, agent {self._header.agent}")
        return Panel(Group(self._progress, Text(), rows), title=title, border_style="blue", padding=(1, 2))


def _progress(narrow: bool) -> ProgressBar:
    """How far the run is. In a narrow terminal only what cannot be told from the rest."""
    if narrow:
        return ProgressBar(TextColumn("[bold]{task.description}"), MofNCompleteColumn())
    return ProgressBar(
        TextColumn("[bold]{task.description:<19}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("intervals,"),
        TimeElapsedColumn(),
        TextColumn("gone,"),
        EtaColumn(),
        TextColumn("left"),
        speed_estimate_period=120.0,
    )


def make_view(
    console: Console, log: Journal, guard: Guard, settings: TuningSettings, in_force: Configuration
) -> PlainView | LiveView:
    """The live view in a terminal, else the plain one. `in_force`: before the first change."""
    done = sum(count for kind, count in finished(log.header, log.records).items() if kind != "wait")
    extra = 1 if done else 0  # A resumed run measures the start once more.
    total: int | None = settings.baseline + settings.intervals + 2 * settings.validation + extra
    if settings.intervals >= NO_END:
        total = None
    if console.is_terminal:
        return LiveView(console, log.header, guard, in_force, total, done)
    return PlainView(console, log.header, total, done)


def uses_up(record: Record) -> bool:
    """True for one of the intervals that a run is to have."""
    return record.counted and record.kind != "wait"


def sparkline(values: Sequence[float]) -> str:
    """The values as bars, on a logarithmic scale."""
    if not values:
        return ""
    logs = [math.log(max(value, 1e-3)) for value in values]
    low, span = min(logs), max(max(logs) - min(logs), 1e-9)
    return "".join(BARS[min(len(BARS) - 1, int((x - low) / span * len(BARS)))] for x in logs)


def result_table(header: Header, summary: RunSummary, turned: bool = False) -> Table:
    """Start, best found, and the gain. `turned`: with a row for each figure, for a narrow terminal."""
    names = ["configuration", "load/s", "mean ms", "p50", "p95", "p99", "queue", "service"]
    if header.objective != "latency":
        names.append("cost")
    if summary.start.failure_share or summary.best.failure_share:
        names.append("failed")
    table = Table(title="result", title_justify="left", title_style="bold", header_style="dim")
    table.add_column("", no_wrap=turned)
    shown = {
        name: _cells(header, standing, failed="failed" in names)
        for name, standing in (("start", summary.start), ("best found", summary.best))
    }
    green = "green" if summary.found_better else ""
    if turned:
        table.add_column("start")
        table.add_column("best found", style=green)
        for row in zip(names, *shown.values(), strict=True):
            table.add_row(*row)
        return table
    table.add_column(names[0])
    for name in names[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for name, style in (("start", ""), ("best found", green)):
        table.add_row(name, *shown[name], style=style)
    return table


def fits(console: Console, table: Table) -> bool:
    """Whether none of the table's words and figures is cut."""
    unlimited = console.options.update(max_width=MOST_COLUMNS)
    return console.measure(table, options=unlimited).minimum <= console.width


def cost_table(summary: RunSummary, client_failures: int | None) -> Table:
    """The gain, and what tuning cost the users."""
    cost = summary.exploration
    failed = f"{cost.failures} by the server's count"
    if client_failures is not None:
        failed += f"; {client_failures} by the clients', in all"
    if cost.gaps:
        intervals = count(cost.gaps, "interval")
        failed += f"; not known of {intervals} in which the target was away, or began anew"
    of_it = f", {cost.validation_request_s:.1f} of them in the validation" if cost.turns else ""
    none_failed = cost.failures == 0 and not client_failures and not cost.gaps
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", justify="right")
    rows.add_column()
    rows.add_row("gain", Text(gain_in_words(summary), style="bold"))
    rows.add_row(
        "cost of exploration",
        f"{cost.extra_request_s:.1f} request-seconds beyond the start's, at the same arrivals{of_it}; "
        + _worse(cost),
    )
    rows.add_row("guard", f"{cost.aborted} aborted, {cost.rollbacks} rolled back, {cost.refused} refused")
    rows.add_row("failed requests", Text(failed, style="green" if none_failed else "red"))
    rows.add_row("left in force", in_words(summary.kept))
    return rows


def _worse(cost: CostOfExploration) -> str:
    """In how many of the tuning intervals users waited longer."""
    if cost.intervals == 1:
        return f"the only tuning interval was {'worse' if cost.worse_share else 'no worse'} than the start"
    return f"{cost.worse_share:.0%} of {cost.intervals} tuning intervals were worse than the start"


def gain_in_words(summary: RunSummary) -> str:
    if not summary.found_better:
        fails = summary.start.failure_share
        though = f", though {fails:.1%} of its requests fail" if fails else ""
        return f"nothing better than the start was found; the start is in force{though} ({summary.why_kept})"
    if not summary.validated:
        if not summary.gain > 1:  # NaN: it was never measured
            return f"not known to be better than the start, and left in force ({summary.why_kept})"
        interval = interval_in_words(summary.expected, EXPECTED_CONFIDENCE)
        how = f"than expected of the start at the same arrivals; {interval}"
        if not math.isfinite(summary.expected.low):
            how = "not validated"
    elif summary.turns.beyond_noise:
        how = f"measured again in turns with the start; {interval_in_words(summary.turns)}"
    else:
        how = summary.why_kept
    return f"{times_lower(summary.gain)} cost ({how})"


def _cells(header: Header, standing: Standing, failed: bool) -> list[str]:
    """Its configuration and figures. `failed`: with the share of requests that failed."""
    figures = [standing.arrival_rate_per_s]  # Each was measured under the load of its own intervals.
    figures += [standing.mean_ms, standing.p50_ms, standing.p95_ms, standing.p99_ms]
    figures += [standing.queue_ms, standing.service_ms]
    if header.objective != "latency":
        figures.append(standing.cost)
    cells = [in_words(standing.configuration), *(_ms(value).strip() for value in figures)]
    unit = unit_of(header.objective)
    if tells_broken_limit(standing.cost, unit):
        cells[-1] = in_unit(standing.cost, unit)
    if failed:
        cells.append(f"{standing.failure_share:.1%}")
    return cells


def _ms(value: float) -> str:
    if not math.isfinite(value):
        return "    -"
    return f"{value:5.0f}" if value >= 100 else f"{value:5.1f}"
