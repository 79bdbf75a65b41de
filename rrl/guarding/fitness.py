"""Which configurations are fit to be kept: what failed under each, when, and what is forgiven. Pure logic.

| what happened under it | until when it is not fit |
|---|---|
| it was aborted and another seems better, or nothing was completed | for `cooldown` intervals (1) |
| requests failed, more than under the start | as above, and until it has served as many without |
| one of several models failed all its requests, and not so under the start | as above |
| the target was lost under it twice without serving in between | as if aborted |
| the target was lost under it more often than under others, beyond chance | as long as that is so |
| it broke the limit where the start kept it | as long as its interval is at the present load |
| it is the start, and another fails clearly less | as long as that is so |

(1) At that load, or a higher one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rrl.guarding.interval_memory import SAME_LOAD, IntervalMemory, Seen
from rrl.guarding.losses import Losses
from rrl.guarding.outage import Outage
from rrl.guarding.settings import GuardSettings
from rrl.measurement import Measurement, Progress, all_failed


@dataclass
class Answered:
    """The requests that left the server under one configuration."""

    requests: int = 0
    failures: int = 0

    def add(self, measurement: Measurement) -> None:
        self.requests += measurement.answered
        self.failures += measurement.failures

    @property
    def failure_share(self) -> float:
        return self.failures / max(self.requests, 1)

    def most_share(self, sigmas: float) -> float:
        """The largest share that may fail under it, by what was seen: `sigmas` beyond it."""
        return (self.failures + sigmas * math.sqrt(self.failures) + sigmas) / max(self.requests, 1)


@dataclass
class Fitness:
    """Remembers what went wrong under each configuration.

    How many requests fail under the start is what others are compared with. So the start is at fault only
    where another is seen to fail clearly less.
    """

    start: int
    settings: GuardSettings
    memory: IntervalMemory
    outage: Outage = field(default_factory=Outage)
    _intervals: int = 0
    _aborted: dict[int, tuple[int, float]] = field(default_factory=dict)  # in which interval, at which rate
    _failing: dict[int, int] = field(default_factory=dict)  # how often each served since its requests failed
    _losses: Losses = field(default_factory=Losses)
    _answered: dict[int, Answered] = field(default_factory=dict)
    _of_start: dict[str, Answered] = field(default_factory=dict)  # of each of several models
    _in_a_row: dict[tuple[int, str], int] = field(default_factory=dict)  # failed under it, and none answered

    def count_interval(self, number: int) -> None:
        """An interval under it is over."""
        self._intervals += 1
        self._losses.count_interval(number)

    def lost(self, number: int) -> None:
        """The target was lost under it."""
        self._losses.lost(number)
        if self._losses.in_a_row(number) > 1:
            self.aborted(number, 0.0)

    def was_lost_again(self, number: int) -> bool:
        """True if it may be to blame that the target was lost."""
        return self._losses.in_a_row(number) > 1 or number in self.losing

    @property
    def losing(self) -> frozenset[int]:
        """The configurations under which the target is lost more often than under others, beyond chance."""
        return self._losses.beyond_chance(self.settings.chance_of_losses)

    def aborted(self, number: int, rate_per_s: float) -> None:
        """It was aborted, or did not serve, at this load."""
        if number != self.start:
            self._aborted[number] = (self._intervals, rate_per_s)

    def failing(self, number: int) -> None:
        """Requests failed under it."""
        self._failing[number] = 0

    def is_failing(self, number: int) -> bool:
        """True if requests failed under it lately."""
        return number in self._failing

    def all_failed(self, number: int, measurement: Measurement) -> None:
        """All requests failed under it, and not under another."""
        self.failures(number, [measurement])
        self.failing(number)
        self.aborted(number, self.memory.load_of(measurement))

    def served(self, number: int) -> None:
        """It served without failures. If it has done so for long, clients had sent what cannot be served."""
        self._losses.served(number)
        if number in self._failing:
            self._failing[number] += 1
            if self._failing[number] > self.settings.cooldown:
                del self._failing[number]

    def failures(self, number: int, seen: Sequence[Measurement]) -> int:
        """How many requests failed, if chance and the start's own failures do not explain them; else 0.

        Of several models, one that fails every request may have few. So these are counted over intervals.
        """
        now = Answered()
        for each in seen:
            now.add(each)
            self._answered.setdefault(number, Answered()).add(each)
            self._count_by_model(number, each)
        if number == self.start:
            return 0
        normal = self._answered.get(self.start, Answered()).failure_share
        if self._fails_beyond(normal, now):
            return now.failures
        return sum(self._failed_of(number, model) for model in _failing_models(seen))

    def _count_by_model(self, number: int, seen: Measurement) -> None:
        for model, each in seen.models.items():
            if number == self.start:
                self._of_start.setdefault(model, Answered()).add(each)
            before = self._in_a_row.get((number, model), 0)
            self._in_a_row[number, model] = 0 if each.completions else before + each.failures

    def _failed_of(self, number: int, model: str) -> int:
        """How many requests of this model failed in a row, if the start's failures do not explain them.

        They do where those of the model fail under the start, too, since it was in force last.
        """
        if self._in_a_row.get((self.start, model), 0) > self.settings.failures:
            return 0
        failed = self._in_a_row[number, model]
        normal = self._of_start.get(model, Answered()).failure_share
        return failed if self._fails_beyond(normal, Answered(failed, failed)) else 0

    def fails_already(self, progress: Progress) -> str:
        """Why a running interval fails too many requests to go on; empty if it does not, or who knows."""
        s = self.settings
        if progress.elapsed_s < s.watch_s or progress.answered < s.watch_arrivals:
            return ""
        seen = Answered(progress.answered, progress.failures)
        normal = self._answered.get(self.start, Answered()).failure_share
        if not self._fails_beyond(normal, seen, s.runaway_sigmas):
            return ""
        return f"{seen.failures} of {seen.requests} requests failed within {progress.elapsed_s:.1f} s"

    @property
    def start_fails(self) -> bool:
        """True if requests fail under the start that do not fail under another configuration."""
        return self.start in self.failing_as_the_start

    @property
    def failing_as_the_start(self) -> frozenset[int]:
        """The start, if another fails clearly less, and all that fail clearly more than that one."""
        start = self._answered.get(self.start, Answered())
        if not start.failures:
            return frozenset()
        s = self.settings
        known = [each for each in self._answered.values() if each.requests >= s.watch_arrivals]
        least = min((each.most_share(s.failure_sigmas) for each in known), default=1.0)
        if not self._fails_beyond(least, start):
            return frozenset()
        return frozenset(n for n, each in self._answered.items() if self._fails_beyond(least, each))

    def many_fail(self, measurement: Measurement) -> bool:
        """True if more requests failed in it than in any interval that goes well."""
        return self._fails_beyond(0.0, Answered(measurement.answered, measurement.failures))

    def _fails_beyond(self, normal_share: float, answered: Answered, sigmas: float | None = None) -> bool:
        """True if neither what is allowed explains these failures, nor the normal share and chance.

        Chance is so many standard deviations, by default `failure_sigmas`.
        """
        s = self.settings
        expected = normal_share * answered.requests
        by_chance = expected + (s.failure_sigmas if sigmas is None else sigmas) * math.sqrt(expected)
        return answered.failures > max(s.failures_allowed(answered.requests), by_chance)

    @property
    def cooling(self) -> frozenset[int]:
        """The configurations that cool."""
        return frozenset(number for number in self._aborted if self.cools(number))

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
        failing = self._failing.keys() | self.failing_as_the_start | self.outage.in_doubt
        return broke | self.cooling | failing | self.losing


def _failing_models(seen: Sequence[Measurement]) -> set[str]:
    """The models of which every request failed, in any of these."""
    return {model for each in seen for model, own in each.models.items() if all_failed(own)}
