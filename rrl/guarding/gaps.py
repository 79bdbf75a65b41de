"""What follows of an interval that says nothing of its configuration. Pure logic.

| the interval | then |
|---|---|
| has no requests, too few, or another client changed something | its configuration stays |
| ended as the target was lost | it stays, unless it may be to blame or something better is known |
| failed all requests, as any would have | it stays if it is safe, else there is a rollback |
| failed all requests, and it is in doubt why | a rollback, as another configuration tells (`outage`) |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rrl.guarding.choice import Choice
from rrl.guarding.outage import DOWN
from rrl.measurement import Measurement, has_traffic, tells_nothing


class Gap(NamedTuple):
    """Why an interval says nothing of its configuration, and what to run next."""

    reason: str
    rolls_back: bool = False  # False: its configuration stays
    must_act: bool = False  # something bad may be in force, so that no limit may stop it
    measured: bool = False  # something was measured, but it says nothing


@dataclass
class Gaps:
    """Finds the intervals that say nothing of their configurations."""

    choice: Choice

    def find(self, number: int, measurement: Measurement) -> Gap | None:
        """By what was measured alone; None if it says something."""
        if not measurement.gap and has_traffic(measurement) and not tells_nothing(measurement):
            return None
        self.choice.expected.passed(measurement.duration_s)
        if measurement.gap:
            return self._unmeasured(number, measurement)
        if not has_traffic(measurement):
            return Gap("no requests arrive")
        return Gap("too few requests came to tell anything")

    def all_failed(self, number: int, measurement: Measurement) -> Gap | None:
        """Of an interval in which all requests failed; None where its configuration is to blame."""
        choice, fitness = self.choice, self.choice.fitness
        reason = fitness.outage.all_failed(number, measurement, fitness.is_failing(number))
        if not reason:
            return None
        stays = reason == DOWN and number in (choice.start, *choice.safe)
        return Gap(reason, rolls_back=not stays, must_act=not stays, measured=True)

    def _unmeasured(self, number: int, measurement: Measurement) -> Gap:
        """What others did says nothing of it. A target that was lost may have been lost because of it."""
        choice, gap = self.choice, measurement.gap
        if measurement.gap_by_others:
            return Gap(gap)
        choice.fitness.lost(number)
        is_safe = number == choice.to_keep().number or (number == choice.start and not choice.start_harms)
        if not choice.fitness.was_lost_again(number) and not choice.improves_on(number):
            return Gap(gap)
        return Gap(gap, rolls_back=True, must_act=not is_safe)
