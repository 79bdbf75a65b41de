"""What a run keeps in force on its target, and what it puts back after an earlier run was killed there."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console

from rrl.knobs import in_words
from rrl.records import Record
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.decision_words import TAKEN_OVER
from rrl.tuning.listener import Change, Listener
from rrl.tuning.restore import RestorePoint, TargetClaim, ToRestore
from rrl.tuning.set_by_others import SetByOthers
from rrl.tuning.state_file import ServerIdentity

if TYPE_CHECKING:
    from rrl.guarding.guard import Guard  # heavy, and rrl-profile has none


class Changeable(Protocol):
    """What is needed of a target."""

    def connect(self, control: bool = True, counters: bool = True) -> None: ...

    def configuration(self) -> dict[str, int]: ...

    def apply(self, configuration: Configuration) -> Any: ...

    def restore(self, found: Configuration, text: str = "") -> Any: ...


class Keeping:
    """Puts in force what the run keeps: the tuned knobs as chosen, the others as they are."""

    def __init__(
        self,
        target: Changeable,
        space: ConfigurationSpace,
        point: TargetClaim | None = None,
        overtaken: type[Exception] | tuple[()] = (),
    ) -> None:
        """`point` is the run's claim on the target, where that outlives the run.

        `overtaken` is the target's error where another client has set another configuration meanwhile.
        """
        self.done = False  # what the run keeps is in force
        self._target, self._space, self._point, self._overtaken = target, space, point, overtaken

    def put_in_force(self, number: int) -> None:
        """The run's last change. `done` says from then on that the target is as it should be.

        SetByOthers where another client has changed what is tuned since, or does so meanwhile: that stays. So
        does what it sets meanwhile of the other knobs, beside what the run keeps.
        """
        # The target may have been away when the run ended. Its metrics page may still be away.
        self._target.connect(control=False, counters=False)
        if self._point is not None:
            in_force = self._target.configuration()
            tuned = self._tuned(in_force)
            if self._point.set_by_others(tuned):
                raise SetByOthers(tuned)
            self._point.ending(in_force)
        try:
            self._target.apply(self._space.configuration(number))
        except self._overtaken:
            tuned = self._tuned(self._target.configuration())
            if self._point is None or self._point.set_by_others(tuned):
                raise SetByOthers(tuned) from None
            # Of what is in force, only what is not tuned is the other client's.
            self._target.apply(self._space.configuration(number))
        self.done = True

    def leave(self) -> None:
        """The target stays as another client has set it."""
        self.done = True

    def _tuned(self, in_force: Configuration) -> Configuration:
        return {name: in_force[name] for name in self._space.names if name in in_force}


class BestInStateFile(Listener):
    """After every interval, writes the best configuration known to be safe into the state file."""

    def __init__(self, point: TargetClaim, guard: Guard, space: ConfigurationSpace) -> None:
        self._point, self._guard, self._space = point, guard, space

    def changed(self, change: Change) -> None:
        """What another client set, and the run takes over, is what a killed run is to leave."""
        if change.decision == TAKEN_OVER:
            self._point.found_anew(change.after)

    def measured(self, record: Record) -> None:
        self._point.safe(self._space.configuration(self._guard.to_keep()))


def restore(
    point: RestorePoint, target: Changeable, server: ServerIdentity, console: Console
) -> Change | None:
    """Puts back what a killed run had found. Returns the change, if it was one.

    What the killed run did not put in force stays: somebody else did.
    """
    killed = point.to_restore()
    if killed is None:
        return None
    with point.lease_of(killed):
        return _restored(killed, point, target, server, console)


def _restored(
    killed: ToRestore, point: RestorePoint, target: Changeable, server: ServerIdentity, console: Console
) -> Change | None:
    before = target.configuration()
    found = in_words(killed.found)
    if before == killed.found:
        if killed.may_be_changing(server):
            target.restore(killed.found, killed.config_pbtxt)
        point.forget()
        console.print(
            f"an earlier run did not end cleanly here: the configuration it had found, {found}, is in force"
        )
        return None
    if why_not := killed.why_not(before, server):
        point.forget()
        stays = f"{why_not}, so {in_words(before)} stays; it had found {found}"
        console.print(f"an earlier run did not end cleanly here, and {stays}", style="yellow", markup=False)
        return None
    point.restoring(before, killed.found)
    target.restore(killed.found, killed.config_pbtxt)
    point.forget()
    best = f" (the best it knew: {in_words(killed.best)})" if killed.best != killed.found else ""
    put_back = f"put back the configuration it had found, {found}{best}"
    console.print(f"an earlier run did not end cleanly here: {put_back}", style="yellow", markup=False)
    reason = "restored what was found: an earlier run was killed"
    return Change(datetime.now(), before, killed.found, "restore", reason)
