"""What a run keeps in force on its target, and what it puts back after an earlier run was killed there."""

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
    """Puts in force what the run keeps: the tuned knobs as chosen, the others as they are."""

    def __init__(self, target: Changeable, space: ConfigurationSpace) -> None:
        self.done = False  # what the run keeps is in force
        self._target, self._space = target, space

    def put_in_force(self, number: int) -> None:
        """The run's last change. `done` says from then on that the target is as it should be."""
        # The target may have been away when the run ended. Its metrics page may still be away.
        self._target.connect(control=False, counters=False)
        self._target.apply(self._space.configuration(number))
        self.done = True


class BestInStateFile(Listener):
    """After every interval, writes the best configuration known to be safe into the state file."""

    def __init__(self, point: RestorePoint, guard: Guard, space: ConfigurationSpace) -> None:
        self._point, self._guard, self._space = point, guard, space

    def measured(self, record: Record) -> None:
        self._point.safe(self._space.configuration(self._guard.to_keep()))


def restore(point: RestorePoint, target: Changeable, console: Console) -> Change | None:
    """Puts back what a killed run had found. Returns the change, if it was one."""
    killed = point.to_restore()
    if killed is None:
        return None
    before = target.configuration()
    if killed.config_pbtxt:
        target.was_found_as(killed.config_pbtxt)
    target.apply(killed.found)
    point.put_back()
    best = f" (the best it knew: {in_words(killed.best)})" if killed.best != killed.found else ""
    found = f"put back the configuration it had found, {in_words(killed.found)}"
    console.print(f"an earlier run was killed here: {found}{best}", style="yellow")
    reason = "restored what was found: an earlier run was killed"
    same = before == killed.found
    return None if same else Change(datetime.now(), before, killed.found, "restore", reason)
