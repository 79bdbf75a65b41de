"""The reference table of an earlier run, where it fits what is to be advised on now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rrl.agent import Task
from rrl.space import Configuration
from rrl.views.reference_table import FILE_NAME, Origin, ReferenceEntry, ReferenceTable, table_path

RUNS_FOLDER = Path("runs")


class EarlierTable(NamedTuple):
    """The reference table of an earlier run."""

    table: ReferenceTable
    path: Path
    elsewhere: str = ""  # Why it may be of another target or model, in words.


def earlier_table(
    given: Path | None, model: str, here: Origin, say: Callable[[str], None]
) -> EarlierTable | None:
    """The reference table given, or the newest one under `runs/` of this model on this target, `here`.

    A table that is given may be of another target. One under `runs/` that cannot be read, or tells no target,
    is left out, and that is said.
    """
    if given is None:
        return _newest(model, here, say)
    path = table_path(given)
    table = ReferenceTable.read(path)
    return EarlierTable(table, path, _elsewhere(table, model, here))


def _newest(model: str, here: Origin, say: Callable[[str], None]) -> EarlierTable | None:
    # A run of several models has a folder for each.
    paths = [*RUNS_FOLDER.glob(f"*/{FILE_NAME}"), *RUNS_FOLDER.glob(f"*/*/{FILE_NAME}")]
    for path in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True):
        try:
            table = ReferenceTable.read(path)
        except ValueError as error:
            say(f"left out: {error}")
            continue
        if table.model != model:
            continue
        if table.origin is None:
            say(f"left out: {path} tells no target; give it with --reference-table if it is of this one")
        elif table.origin.is_of(here):
            return EarlierTable(table, path)
    return None


def _elsewhere(table: ReferenceTable, model: str, here: Origin) -> str:
    if table.model != model:
        return f"it is of another model, {table.model!r}, so trust it the less"
    if table.origin is None:
        return "it does not tell on which target it was measured"
    if table.origin.is_of(here):
        return ""
    return f"it was measured on another target, {table.origin.in_words()}, so trust it the less"


def fitting_entry(
    table: ReferenceTable, objective: str, rate_per_s: float, task: Task, found: Configuration
) -> ReferenceEntry | None:
    """The table's best at this load. None if it is for another objective or limit, or cannot be had.

    What is in force may be changed on the grid of the task alone.
    """
    same = (table.objective, table.slo_p95_ms) == (objective, task.objective.slo_p95_ms)
    entry = table.recommend(rate_per_s) if same else None
    if entry is None:
        return None
    wanted = {**found, **entry.configuration}
    grid = {knob.name: knob.values for knob in task.space.knobs}
    if not all(value in grid.get(name, (found.get(name),)) for name, value in wanted.items()):
        return None
    number = task.space.number({name: wanted[name] for name in task.space.names})
    return None if number in task.excluded else entry
