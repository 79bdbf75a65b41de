"""The claim on a live target: whoever changes it is alone, and what it leaves when killed is put back."""

from __future__ import annotations

from contextlib import suppress

from rich.console import Console

from rrl.knobs import in_words
from rrl.tuning.keeping import restore
from rrl.tuning.listener import Change
from rrl.tuning.restore import RestorePoint
from rrl.tuning.state_file import TUNER, ServerIdentity
from serving_adapter.lease import MAX_DURATION_MS
from serving_adapter.target import LeaseTaken, Overtaken, Target, TargetError, TargetLost, TunerLease


def restore_point(target: Target, program: str = TUNER) -> RestorePoint:
    """The claim of a program on a target, which hears of every change of it before that is made."""
    point = RestorePoint(target.address, target.model, ConnectedTarget(target), program)
    target.before_change = point.changing
    return point


class ConnectedTarget:
    """What a claim asks of a target that is connected."""

    def __init__(self, target: Target) -> None:
        self._target = target

    def identity(self) -> ServerIdentity:
        return identity(self._target)

    def is_still(self, server: ServerIdentity) -> bool:
        """False where its page is away, too. The target is connected anew."""
        try:
            self._target.connect(control=False)
            self._target.read()
        except TargetError:
            self._target.connect(control=False, counters=False)
            return False
        return not identity(self._target).is_another_than(server)

    def lease_to(self, owner: str, duration_s: float, anew: bool = False) -> None:
        """LeaseTaken if another tuner has it, LeaseLost if another has had it since and it is not `anew`.

        A target that is away is left to whoever looks for it.
        """
        if anew:
            self._target.forget_lease()
        with suppress(TargetLost):
            self._target.take_lease(TunerLease(owner, min(duration_s, 1e-3 * MAX_DURATION_MS)))


def identity(target: Target) -> ServerIdentity:
    """The server that answers at a target's address."""
    return ServerIdentity(target.server, target.started_s)


def restored(point: RestorePoint, target: Target, console: Console) -> Change | None:
    """Puts back what a killed run had found. Where it cannot, the TargetError says what to do.

    What another client sets meanwhile stays.
    """
    try:
        return restore(point, target, identity(target), console)
    except (TargetLost, LeaseTaken):
        raise
    except Overtaken as error:
        killed = point.to_restore()
        point.forget()
        had_found = "" if killed is None else f"; it had found {in_words(killed.found)}"
        text = f"an earlier run did not end cleanly here, and {error}{had_found}"
        console.print(text, style="yellow", markup=False)
        return None
    except TargetError as error:
        raise TargetError(
            f"an earlier run did not end cleanly here, and what it had found cannot be put back: {error}; "
            f"put {target.model!r} right by hand, then remove {point.path}"
        ) from None
