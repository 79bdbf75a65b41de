"""How a run ends: what it keeps in force, how that gets there, and what the journal says of it.

A run ends in one of these ways. In all of them something is put in force and the journal says what.

| the run | keeps |
|---|---|
| did all it was to do | what the validation showed to be better, else the start |
| was stopped, or its time was up | the best known, if plainly better than the start, else what was found |
| cannot measure the best or the start | what was found; off the grid, the next start puts it back |
| failed, or gave up | as when it was stopped; then the error goes on |
| finds what somebody else has set | that |

What somebody else set in mid-run takes the place of what was found. So it stays unless the best known is
better beyond doubt, and has come into force by then.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from rrl.guarding.choice import ToKeep
from rrl.guarding.guard import Guard
from rrl.interval import Watch
from rrl.journal import Journal
from rrl.records import Ending
from rrl.tuning.decision_words import KEPT
from rrl.tuning.environment import Environment
from rrl.tuning.giving_up import GivenUp
from rrl.tuning.in_force import InForce
from rrl.tuning.pacing import TimeUp
from rrl.tuning.scheduled import CannotMeasure
from rrl.tuning.set_by_others import LeftToOthers, SetByOthers
from rrl.tuning.stop import Stopped
from rrl.tuning.telling import Telling
from rrl.tuning.unattended.foreign_changes import ForeignChanges


@dataclass(frozen=True)
class Kept:
    """The configuration that a run kept in force at its end."""

    number: int
    stopped: bool  # somebody ended the run early
    reason: str = field(default="", compare=False)  # why this one was kept
    known: bool = field(default=True, compare=False)  # False: another is in force, off the run's grid


class EndOfRun:
    """Keeps the better configuration in force, whatever ends the run."""

    def __init__(
        self,
        env: Environment,
        guard: Guard,
        journal: Journal,
        in_force: InForce,
        telling: Telling,
        foreign: ForeignChanges,
        put_in_force: Callable[[int], None] | None,
        leave: Callable[[], None],
    ) -> None:
        """`put_in_force` is the way to the target at the end; None: an interval of the environment.

        `leave` is told where the target stays as it is. SetByOthers of `put_in_force` says that it must.
        """
        self._env, self._guard, self._journal = env, guard, journal
        self._in_force, self._telling, self._put = in_force, telling, put_in_force
        self._foreign, self._leave = foreign, leave

    def after(self, phases: Callable[[], ToKeep]) -> Kept:
        """Runs the phases, and keeps what they say or what is safe once they are broken off."""
        try:
            to_keep = phases()
        except LeftToOthers as left:
            return self._left_alone(str(left))
        except Stopped as stopped:
            return self._keep(self._early(str(stopped) or "interrupted"), stopped=True)
        except TimeUp as up:
            text = str(up) or "the time is up before the best could be measured in turns"
            return self._keep(self._early(text))
        except CannotMeasure as refused:
            if self._in_force.number is None:  # What was found, off the grid: nothing has replaced it yet.
                self._leave()
                raise GivenUp(f"{refused}; what was found stays in force") from None
            if self._in_force.found_number is None and self._start_is_lost:  # There is nothing to go back to.
                raise GivenUp(str(refused)) from None
            return self._keep(ToKeep(self._as_found, str(refused)))
        except GivenUp as given_up:
            with suppress(Exception):  # as below
                self._keep(self._early(str(given_up)), stopped=True)
            raise
        except BaseException:
            with suppress(Exception):  # the first error tells more than one from putting things back
                self._keep(self._early("the run failed"), stopped=True)
            raise
        return self._keep(to_keep)

    @property
    def _as_found(self) -> int:
        """What to keep where nothing better is known: the start, but a resumed run may have found another."""
        found = self._in_force.found_number
        if self._in_force.adopted is not None:
            return self._in_force.adopted
        start, choice = self._guard.start, self._guard.choice
        return start if found is None or choice.is_worse(found) or choice.is_better(start, found) else found

    @property
    def _start_is_lost(self) -> bool:
        """True if the start may have brought the target down."""
        return self._guard.fitness.was_lost_again(self._guard.start)

    def _early(self, why: str) -> ToKeep:
        number, reason = self._guard.keeping()
        if number != self._guard.start:
            return ToKeep(number, f"{reason}; {why}")
        return ToKeep(self._as_found, why)

    def _keep(self, to_keep: ToKeep, stopped: bool = False) -> Kept:
        if self._foreign.stands_back:
            return self._left_alone(to_keep.reason)
        number, reason = self._beside_adopted(to_keep)
        changes = number != self._in_force.number
        # Told once it is so: what was not put in force must not be in the log of changes. And a full disk, or
        # a terminal that is gone, must not keep what was being explored in force.
        if self._put is not None:
            try:
                self._put_in_force(self._put, number)
            except SetByOthers as theirs:
                self._in_force.take_over(theirs.configuration, "another client set it, and it stays")
                return self._left_alone(reason)
        elif changes:
            self._env.run(number, Watch(lambda _: "the run is over"))  # nothing more to measure
        try:
            self._tell(number, changes, reason)
        finally:
            self._write_ending(number, reason)
        return Kept(number, stopped, reason)

    def _beside_adopted(self, to_keep: ToKeep) -> ToKeep:
        """What somebody else set last stays, unless it was left for what is better beyond doubt."""
        adopted = self._in_force.adopted
        if adopted is None or to_keep.number == adopted:
            return to_keep
        if self._in_force.number == adopted:
            return ToKeep(adopted, "another client set it, and it has been in force since")
        if self._guard.choice.is_better(to_keep.number, adopted):
            return to_keep
        return ToKeep(adopted, "another client set it, and nothing is better beyond doubt")

    def _left_alone(self, reason: str) -> Kept:
        """Another client's configuration is in force, and stays."""
        self._leave()
        self._telling.notice(f"left in force, as another client set it: {reason}")
        number = self._in_force.number
        if number is None:
            return Kept(self._guard.start, True, reason, known=False)
        self._write_ending(number, f"another client set it; {reason}")
        return Kept(number, True, f"another client set it; {reason}")

    def _tell(self, number: int, changes: bool, reason: str) -> None:
        is_tuned = number != self._as_found
        if not changes:
            how = "as tuned" if is_tuned else "as found" if self._is_found(number) else "as the run started"
            self._telling.notice(f"left in force, {how}: {reason}")
            return
        what = "left in force" if is_tuned else f"restored {self._in_words(number)}"
        self._in_force.change(number, KEPT, f"{what}: {reason}")

    def _is_found(self, number: int) -> bool:
        """True if it is what was found. The start of a resumed run, or one with pins, may be another."""
        return number == self._in_force.found_number

    def _in_words(self, as_found: int) -> str:
        return "what was found" if self._is_found(as_found) else "the start"

    def _put_in_force(self, put: Callable[[int], None], number: int) -> None:
        """Where that is refused, what was found or the start comes back, and not what was being explored."""
        try:
            put(number)
        except SetByOthers:
            raise
        except Exception as error:
            back = self._as_found
            if number != back and (self._is_found(back) or self._guard.memory.knows(back)):
                with suppress(Exception):  # the first error tells more
                    self._put_back(put, back, error)
            raise

    def _put_back(self, put: Callable[[int], None], number: int, error: Exception) -> None:
        put(number)
        refused, back = f"what was to be left could not be put in force ({error})", self._in_words(number)
        self._write_ending(number, f"{refused}, so {back} was put back")
        self._in_force.change(number, KEPT, f"restored {back}: {error}")

    def _write_ending(self, number: int, reason: str) -> None:
        self._journal.end(Ending(self._env.space.configuration(number), reason))
