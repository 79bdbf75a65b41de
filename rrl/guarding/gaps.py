"""What follows of an interval that says nothing of its configuration. Pure logic.

| the interval | then |
|---|---|
| has no requests, too few, or another client changed something | its configuration stays |
| has no answers, and these take about as long under the start | it stays |
| ended as the target was lost | it stays, unless it may be to blame or something better is known |
| failed all requests, as any would have | it stays if it is safe, else there is a rollback |
| failed all requests, and it is in doubt why | a rollback, as another configuration tells (`outage`) |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from rrl.guarding.choice import Choice
from rrl.guarding.outage import DOWN
from rrl.measurement import Measurement, found_waiting, has_traffic, leaves_unanswered, tells_nothing


class Gap(NamedTuple):
    """Why an interval says nothing of its configuration, and what to run next."""

    reason: str
    rolls_back: bool = False  # False: its configuration stays
    must_act: bool = False  # something bad may be in force, so that no limit may stop it
    measured: bool = False  # something was measured, but it says nothing


class _Unanswered(NamedTuple):
    """Requests that were in the server for whole intervals in a row, and none was answered."""

    number: int = -1  # the configuration in force
    lasts_s: float = 0.0

    def after(self, number: int, measurement: Measurement) -> _Unanswered:
        """Once this interval is over, too."""
        waits = leaves_unanswered(measurement) and found_waiting(measurement)
        if measurement.gap or measurement.aborted or not waits:
            return _Unanswered(number)
        before_s = self.lasts_s if number == self.number else 0.0
        return _Unanswered(number, before_s + measurement.duration_s)


@dataclass
class Gaps:
    """Finds the intervals that say nothing of their configurations."""

    choice: Choice
    _unanswered: _Unanswered = field(default_factory=_Unanswered)

    def find(self, number: int, measurement: Measurement) -> Gap | None:
        """By what was measured, and by how long answers take under the start; None if it says something."""
        self._unanswered = self._unanswered.after(number, measurement)
        too_early = self._is_too_early()
        if not (measurement.gap or too_early or tells_nothing(measurement)) and has_traffic(measurement):
            return None
        self.choice.expected.passed(measurement.duration_s)
        if measurement.gap:
            return self._unmeasured(number, measurement)
        if not has_traffic(measurement):
            return Gap("no requests arrive")
        if too_early:
            return Gap("nothing is answered yet, and answers take long under the start, too")
        return Gap("too few requests came to tell anything")

    def _is_too_early(self) -> bool:
        """True while few requests wait for no longer than would be a fault beside the start's latency."""
        memory, settings = self.choice.memory, self.choice.settings
        longest_ms = settings.latency_factor * memory.start_latency_ms
        return 0.0 < 1e3 * self._unanswered.lasts_s <= longest_ms

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
