"""Which configurations are fit to be kept: what failed under each, when, and what is forgiven. Pure logic.

| what happened under it | until when it is not fit |
|---|---|
| it was aborted, or nothing was completed | for `cooldown` intervals, at that load or a higher one |
| requests failed, more than under the start | as above, and until it has served as many without |
| the target was lost twice | as if aborted, until it has served as long without |
| it broke the limit where the start kept it | as long as its interval is at the present load |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rrl.guarding.interval_memory import SAME_LOAD, IntervalMemory, Seen
from rrl.guarding.settings import GuardSettings
from rrl.measurement import Measurement


@dataclass
class Fitness:
    """Remembers what went wrong under each configuration. The start is never held to be at fault."""

    start: int
    settings: GuardSettings
    memory: IntervalMemory
    _intervals: int = 0
    _aborted: dict[int, tuple[int, float]] = field(default_factory=dict)  # in which interval, at which rate
    _failing: dict[int, int] = field(default_factory=dict)  # how often each served since its requests failed
    _gaps: dict[int, tuple[int, int]] = field(default_factory=dict)  # how often it was lost, and last when
    _start_failures: int = 0
    _start_arrivals: int = 0

    def count_interval(self) -> None:
        self._intervals += 1

    def lost(self, number: int) -> None:
        """The target was lost under it. Once is chance; the second time it may be to blame."""
        times, _ = self._gaps.get(number, (0, 0))
        self._gaps[number] = times + 1, self._intervals
        if self.was_lost_again(number):
            self.aborted(number, 0.0)

    def was_lost_again(self, number: int) -> bool:
        """True if the target was lost under it more than once and it has not served for long since."""
        times, _ = self._gaps.get(number, (0, 0))
        return times > 1

    def aborted(self, number: int, rate_per_s: float) -> None:
        """It was aborted, or did not serve, at this load."""
        if number != self.start:
            self._aborted[number] = (self._intervals, rate_per_s)

    def failing(self, number: int) -> None:
        """Requests failed under it."""
        self._failing[number] = 0

    def served(self, number: int) -> None:
        """It served without failures. Nothing is held against it any more if it has done so for long.

        If the target was lost under it, that was not its fault: restarts come every night. If requests failed
        under it, clients had sent what cannot be served.
        """
        _, lost = self._gaps.get(number, (0, self._intervals))
        if self._intervals - lost > self.settings.cooldown:
            del self._gaps[number]
        if number in self._failing:
            self._failing[number] += 1
            if self._failing[number] > self.settings.cooldown:
                del self._failing[number]

    def failures(self, number: int, seen: Sequence[Measurement]) -> int:
        """How many requests failed, if chance and the start's own failures do not explain them; else 0."""
        failures, arrivals = sum(each.failures for each in seen), sum(each.arrivals for each in seen)
        if number == self.start:
            self._start_failures += failures
            self._start_arrivals += arrivals
            return 0
        s = self.settings
        expected = self._start_failures / max(self._start_arrivals, 1) * arrivals
        chance = expected + s.failure_sigmas * math.sqrt(expected)
        allowed = max(s.failures, s.failure_share * arrivals, chance)
        return failures if failures > allowed else 0

    def cools(self, number: int) -> bool:
        """True if it was aborted or failed lately, at the present load or at a lower one."""
        if number not in self._aborted:
            return False
        when, rate_per_s = self._aborted[number]
        lately = self._intervals - when <= self.settings.cooldown
        return lately and rate_per_s <= self.memory.rate_per_s * SAME_LOAD

    def fits(self, number: int) -> bool:
        """False if requests failed under it, if it was aborted lately, or if it alone broke the limit."""
        return number not in self.unfit(self.memory.near_present_load())

    def unfit(self, near: Sequence[Seen]) -> set[int]:
        """The configurations that are never best.

        Breaking the limit counts in the intervals `near`, and only if the start broke it in none of them.
        """
        broke = {seen.number for seen in near if seen.broke_limit}
        if self.start in broke:
            broke = set()
        return broke | {number for number in self._aborted if self.cools(number)} | self._failing.keys()
