"""What a run does where somebody else changes what it tunes: takes it over, puts its own back, or stops.

| `--on-foreign-change` | the first time | where the same is set again |
|---|---|---|
| `adopt` | goes on from it, as if it had been found | leaves it alone, if the run had moved on from it |
| `restore` | puts the run's own configuration back | takes it over |
| `stop` | ends, and leaves it in force | |

So a run fights over no change twice. What it leaves alone stays in force: a run that has an end ends there,
and one that watches stands back until somebody sets something else. So it is with a configuration that is
not on the run's grid, which no interval can run in.
"""

from __future__ import annotations

from collections.abc import Mapping

from rrl.guarding.guard import Guard
from rrl.interval import Interval
from rrl.tuning.in_force import InForce
from rrl.tuning.set_by_others import LeftToOthers, OnForeignChange, TakenOver

STANDS_BACK = "what another client has set stays in force"


class ForeignChanges:
    """Follows what others do to the target, interval by interval."""

    def __init__(self, policy: OnForeignChange, guard: Guard, in_force: InForce, watches: bool) -> None:
        self.count = 0
        """The changes that others made."""
        self._policy, self._guard, self._in_force, self._watches = policy, guard, in_force, watches
        self._put_back: Mapping[str, int] = {}  # what was replaced by the run's own last
        self._left: set[int] = set()  # configurations that were taken over, and that the run left since
        self._left_alone: Mapping[str, int] = {}  # what the run stands back from

    @property
    def gives_way(self) -> bool:
        """True if what others set just before a change is not to be replaced by it."""
        return self._policy != "restore"

    @property
    def stands_back(self) -> bool:
        """True while what is in force is left alone."""
        return bool(self._left_alone)

    def take_in(self, interval: Interval, own_change: bool) -> None:
        """After an interval, which may have begun with a change of the run's own.

        TakenOver or LeftToOthers where others changed what is tuned.
        """
        adopted, theirs = self._in_force.adopted, interval.set_by_others
        if adopted is not None and self._in_force.number not in (None, adopted):
            self._left.add(adopted)
        if interval.changed and not own_change:
            self._put_back = dict(interval.replaced)
        if not theirs or theirs == self._left_alone:
            return
        self.count += 1
        number = self._in_force.number_of(theirs)
        if self._policy == "stop":
            self._in_force.take_over(theirs, "another client set it, and the run leaves it so")
            raise LeftToOthers("another client changed the configuration")
        if self._policy == "restore" and theirs != self._put_back:
            self._put_back = dict(theirs)
            return
        if number is None:
            self._leave_alone(theirs, "it is not on the run's grid")
        elif number in self._left:
            self._leave_alone(theirs, "it was set again after the run had moved on from it")
        else:
            self._adopt(theirs, number)

    def _adopt(self, theirs: Mapping[str, int], number: int) -> None:
        again = " again after it was put back" if self._policy == "restore" else ""
        reason = f"another client set it{again}: the run goes on from it"
        self._left_alone = {}
        self._in_force.take_over(theirs, reason)
        self._guard.stay_in(number, reason)
        raise TakenOver

    def _leave_alone(self, theirs: Mapping[str, int], why: str) -> None:
        self._in_force.take_over(theirs, f"another client set it, and it stays: {why}")
        if not self._watches:
            raise LeftToOthers(f"another client set it: {why}")
        self._left_alone = dict(theirs)
        raise TakenOver
