"""What a run leaves on its target, and what an earlier one left there."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from rich.console import Console

from rrl.guarding.guard import Guard
from rrl.journal import Record
from rrl.knobs import in_words
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.listener import Change, Listener
from rrl.tuning.restore import RestorePoint


class Changeable(Protocol):
    """What is needed of a target."""

    def connect(self, control: bool = True, counters: bool = True) -> None: ...

    def configuration(self) -> dict[str, int]: ...

    def apply(self, configuration: Configuration) -> Any: ...

    def was_found_as(self, config_pbtxt: str) -> None: ...


class Keeping:
    """Puts in force what the run leaves: the tuned knobs as chosen, the others as they are."""

    def __init__(self, target: Changeable, space: ConfigurationSpace) -> None:
        self.done = False
        self._target, self._space = target, space

    def put_in_force(self, number: int) -> None:
        # It may have been away when the run ended, and its metrics page still be so.
        self._target.connect(control=False, counters=False)
        self._target.apply(self._space.configuration(number))
        self.done = True


class BestInStateFile(Listener):
    """Keeps the state file's word of the best configuration known to be safe."""

    def __init__(self, point: RestorePoint, guard: Guard, space: ConfigurationSpace) -> None:
        self._point, self._guard, self._space = point, guard, space

    def measured(self, record: Record) -> None:
        self._point.safe(self._space.configuration(self._guard.to_keep()))


def restore(point: RestorePoint, target: Changeable, console: Console) -> Change | None:
    """Puts back what a killed run had found; the change, if it was one."""
    left = point.to_restore()
    if left is None:
        return None
    before = target.configuration()
    if left.config_pbtxt:
        target.was_found_as(left.config_pbtxt)
    target.apply(left.found)
    point.put_back()
    console.print(
        f"an earlier run was killed here: put back the configuration it had found, {in_words(left.found)}"
        + (f" (the best it knew: {in_words(left.best)})" if left.best != left.found else ""),
        style="yellow",
    )
    reason = "restored what was found: an earlier run was killed"
    same = before == left.found
    return None if same else Change(datetime.now(), before, left.found, "restore", reason)
