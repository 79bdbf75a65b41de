"""Which configuration is in force, and every change of it: counted, and told just before it is made."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from rrl.interval import Interval
from rrl.space import Configuration, ConfigurationSpace
from rrl.tuning.change_limits import ChangeLimits
from rrl.tuning.decision_words import PUT_BACK, TAKEN_OVER, UNDONE
from rrl.tuning.telling import Telling


class InForce:
    """The configuration in force, by its number. None: the one found, where the grid does not hold it."""

    def __init__(
        self,
        space: ConfigurationSpace,
        start: int,
        found: Configuration | None,
        limits: ChangeLimits,
        telling: Telling,
        clock: Callable[[], float],
    ) -> None:
        """`found` was in force before the run; None: the start. A resumed run may have found another.

        `clock` tells the Unix time that the limits go by, also just after it was set.
        """
        self.found = found
        self.found_number = start if found is None else _number_on_grid(space, found)
        self.number = self.found_number
        self.adopted: int | None = None
        """What somebody else set in mid-run and the run went on from, last of all."""
        self._space, self._limits, self._telling, self._clock = space, limits, telling, clock
        self._changed_at_s: list[float] = []  # since the last record

    def change(self, number: int, decision: str, reason: str) -> None:
        """Another configuration is about to come into force."""
        before, self.number = self.number, number
        self.count(self._clock())
        self._telling.changed(self._configuration(before), self._configuration(number), decision, reason)

    def confirm(self, interval: Interval, before: int | None, gap_before: str) -> None:
        """Takes in what the target did: it may have refused the change from `before`, or made another.

        `gap_before` says why the target was away in the interval before this one, if it was.
        """
        number, measurement = interval.number, interval.measurement
        gap = measurement.gap
        changes = number != before
        if interval.gave_way or interval.refused:
            self.number = before
            if changes:
                not_made = interval.gave_way and not interval.changed
                if not_made:
                    self._limits.not_made(self._changed_at_s.pop())
                kept = self._configuration(before)
                why = f"not made: {gap}" if not_made else gap
                self._telling.changed(self._configuration(number), kept, UNDONE, why)
        if interval.changed and not changes and not interval.gave_way:
            away = gap_before if measurement.gap_by_others else gap or gap_before
            why = f"{away}, and it came back with another one" if away else "another client had changed it"
            self.count(self._clock())
            kept = self._configuration(number)
            before_it = {name: value for name, value in interval.replaced.items() if name in kept}
            self._telling.changed(before_it, kept, PUT_BACK, f"{why}: puts back that of this run")

    def take_over(self, theirs: Configuration, reason: str) -> None:
        """Somebody else has put another configuration in force: from now on it is what was found."""
        before = self._configuration(self.number)
        self.found, self.found_number = dict(theirs), self.number_of(theirs)
        self.number = self.adopted = self.found_number
        self._telling.changed(before, self.found, TAKEN_OVER, reason)

    def number_of(self, configuration: Configuration) -> int | None:
        """The number of a configuration; None where the grid does not hold it."""
        return _number_on_grid(self._space, configuration)

    def count(self, at_s: float) -> None:
        """A change was made, at this Unix time."""
        self._limits.changed(at_s)
        self._changed_at_s.append(at_s)

    def take_change_times(self) -> tuple[float, ...]:
        """The Unix times of the changes since this was asked last."""
        times_s = tuple(self._changed_at_s)
        self._changed_at_s.clear()
        return times_s

    def _configuration(self, number: int | None) -> Configuration:
        return (self.found or {}) if number is None else self._space.configuration(number)


def _number_on_grid(space: ConfigurationSpace, configuration: Configuration) -> int | None:
    with suppress(ValueError):
        return space.number(configuration)
    return None
