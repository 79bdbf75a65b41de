"""`rrl-tune --dry-run`: what a run would try, keep and look out for. It changes nothing and sends nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from rich.console import Console
from rich.table import Table

from envs.live import check_objective
from rrl.command_line.ending import DONE
from rrl.command_line.opening.reach import connected
from rrl.command_line.opening.search_grid import SearchGrid
from rrl.command_line.opening.several_models import SharedByModels
from rrl.command_line.options.option_values import tuning_intervals
from rrl.command_line.options.options import TuneOptions
from rrl.guarding.settings import GuardSettings
from rrl.knobs import in_words
from rrl.objective import Objective
from rrl.records import NO_END
from rrl.tuning.settings import baseline_for
from serving_adapter.flags.parsing import fail, in_a_sentence
from serving_adapter.load.concurrencies import parse_concurrencies
from serving_adapter.target import Target, TargetError

MINUTE_S = 60.0


def show_plan(options: TuneOptions, console: Console, shared: SharedByModels) -> int:
    """Says what a run with these options would do on its target."""
    try:
        with closing(connected(options, str(options.target), options.model, control=False)) as target:
            grid = SearchGrid.of(options, target, console).within_budget(shared.beside, console)
            grid.check()
            table = Table(show_header=False, title=f"{target.model} on {target.address}: nothing was changed")
            for name, text in _rows(grid):
                table.add_row(name, text)
            console.print(table)
            if why_not := target.why_not_tunable() or _why_not_changed(target) or _why_not_watched(grid):
                console.print(f"a run would end at once: {why_not}", style="yellow")
            for note in target.notes:
                console.print(note, style="yellow")
    except (ValueError, TargetError, OSError) as error:
        fail(in_a_sentence(error))
    return DONE


def _why_not_changed(target: Target) -> str:
    """Says why the server lets nobody load its models; empty if it does. The question changes nothing."""
    try:
        target.check_control()
    except TargetError as error:
        return str(error)
    return ""


def _why_not_watched(grid: SearchGrid) -> str:
    """Says why the p95 limit cannot be watched; empty if it can, as by clients of the run's own load."""
    if not grid.options.bench:
        try:
            check_objective(grid.objective, grid.target.read())
        except ValueError as error:
            return str(error)
    return ""


def _rows(grid: SearchGrid) -> Iterator[tuple[str, str]]:
    options = grid.options
    yield "in force", in_words(grid.found)
    pinned = grid.pinned
    for knob in grid.space.knobs:
        if knob.name in pinned:
            yield f"keeps {knob.name}", f"{pinned[knob.name]}, as pinned"
            continue
        how = "in place" if knob.name in grid.target.in_place_knobs else "by a reload"
        yield f"tries {knob.name}", f"{', '.join(map(str, knob.values))} ({how})"
    excluded = len(grid.over_budget)
    left_out = f", less {excluded} that use more than {options.cores} cores" if excluded else ""
    yield "configurations", f"{len(grid.space)}{left_out}"
    limit = "" if options.slo_p95_ms is None else f", p95 at most {options.slo_p95_ms:g} ms"
    yield "seeks", f"{options.objective}{limit}, proposed by {options.agent}"
    if options.bench:
        yield "load", _load(options)
    yield "length", _length(options)
    if options.max_changes_per_hour is not None:
        yield "changes", f"at most {options.max_changes_per_hour} in any hour"
    if options.change_window:
        yield "changes only at", " ".join(options.change_window)
    yield "guard", _guard(options, grid.objective)
    yield (
        "at the end",
        "the better of the start and the best is kept, measured in turns"
        if options.validation
        else "the best by what was measured is kept, or the start",
    )


def _load(options: TuneOptions) -> str:
    levels = parse_concurrencies(options.concurrency)
    if levels:
        in_turn = ", one after the other" if len(levels) > 1 else ""
        return f"{', '.join(map(str, levels))} requests at once{in_turn}"
    if options.rate is not None:
        return f"{options.arrivals} at {options.rate:g}/s"
    bears = "bears within the limit" if options.objective == "capacity" else "only just bears"
    return f"{options.arrivals} at what the start {bears}"


def _length(options: TuneOptions) -> str:
    baseline, validation = baseline_for(options.validation), 2 * options.validation
    tuning = tuning_intervals(options)
    if tuning >= NO_END:
        return "until somebody stops it"
    minutes = (baseline + tuning + validation) * options.interval_s / MINUTE_S
    parts = f"{baseline} of the start, {tuning} of the search, {validation} or more of turns"
    return f"intervals: {parts}, about {minutes:.0f} minutes"


def _guard(options: TuneOptions, objective: Objective) -> str:
    settings = GuardSettings(slo_p95_ms=options.slo_p95_ms)
    reasons = []
    if objective.unit == "ms":
        reasons += [
            f"a configuration costs {settings.latency_factor:g} times the start under the same requests"
        ]
    if options.slo_p95_ms is not None:
        reasons += ["the limit is broken that the start or the best known would keep"]
    reasons += ["a queue runs away", f"more than {settings.failure_share:.0%} of the requests fail"]
    return "rolls back where " + ", or ".join(reasons)
