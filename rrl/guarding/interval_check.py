"""What was wrong with an interval, and whether its configuration is to blame. Pure logic.

An interval is compared with what the start would have cost under the same arrivals, on the machine as it was
then. Where the start does not bear the load, or would have broken the limit itself, it is compared with the
best known. Where nothing is expected, it is compared with the mean latency that was measured of both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from rrl.guarding.choice import Choice
from rrl.guarding.expectation import SIGMAS
from rrl.guarding.interval_memory import mean
from rrl.guarding.settings import GuardSettings
from rrl.measurement import Measurement
from rrl.objective import slo_violated

MIN_BURST_DISPERSION = 2.0  # index of dispersion of counts from which arrivals are called a burst
BURST = "requests came in a burst"


class Finding(NamedTuple):
    """What an interval was like that did not go as the first ones of the start."""

    reason: str = ""  # empty: nothing was wrong
    excused: bool = False  # the configuration compared with would have done about as badly
    start_too: bool = False  # the start would have broken the limit as well


@dataclass
class IntervalCheck:
    """Finds the faults of intervals. Each was learned from before `find` is asked for it."""

    settings: GuardSettings
    choice: Choice
    _excused: int | None = None  # the configuration whose last interval was aborted in a burst

    def aborted_by_its_fault(self, number: int, measurement: Measurement) -> bool:
        """False of what was not aborted, or in a burst only.

        A burst is taken for the reason once in a row, under what is expected to bear the load and to be the
        best all the same.
        """
        was_excused, self._excused = self._excused, None
        if not measurement.aborted:
            return False
        choice = self.choice
        is_best = not choice.improves_on(number) and choice.expected.bears(number)
        if is_best and number != was_excused and not choice.fitness.many_fail(measurement):
            self._excused = number
        return self._excused is None

    def find(self, cost: float, measurement: Measurement) -> Finding:
        if measurement.aborted:
            return Finding(measurement.aborted)
        broken = self._limit_broken(measurement)
        if not (self.choice.expected.known and cost > 0):
            return Finding(broken or self._far_slower(measurement))
        return self._beside_reference(cost, measurement, broken)

    def _beside_reference(self, cost: float, measurement: Measurement, broken: str) -> Finding:
        expected, start = self.choice.expected, self.choice.start
        number, name = (start, "the start") if expected.bears(start) else (self.choice.best, "the best known")
        m, s = expected.cost_beside(number, measurement)
        beyond = math.log(cost) - m - SIGMAS * s  # ln of how many times it surely cost what that would have
        beside = f"{name} would have cost {math.exp(m):.3g} under the same arrivals"
        if broken:
            return self._broken_beside(number, name, broken, measurement)
        if self.settings.cost_is_latency and beyond > math.log(self.settings.latency_factor):
            return Finding(f"cost {cost:.3g}, {math.exp(math.log(cost) - m):.1f}x what {beside}")
        slower = self._far_slower(measurement)
        why = BURST if _is_burst(measurement) else "the machine is slower, or the load higher"
        return Finding(f"{slower}, but {beside}: {why}", excused=True) if slower else Finding()

    def _broken_beside(self, number: int, name: str, broken: str, measurement: Measurement) -> Finding:
        """A limit that nothing known would have kept is broken by nobody's fault."""
        start, best = self.choice.start, self.choice.best
        expected, limit_ms = self.choice.expected, self.settings.slo_p95_ms or math.inf
        p95_ms = expected.p95_beside_ms(number, measurement)
        if not p95_ms > limit_ms:
            return Finding(broken)
        beside = f"{name} would have had {p95_ms:.0f} ms under the same arrivals"
        if number == start and best != start:
            p95_ms = expected.p95_beside_ms(best, measurement)
            of_best = f"the best known {p95_ms:.0f} ms"
            if not p95_ms > limit_ms:
                return Finding(f"{broken}; {beside}, but {of_best}", start_too=True)
            beside = f"{beside}, and {of_best}"
        why = BURST if _is_burst(measurement) else "nothing known keeps it now"
        return Finding(f"{broken}; {beside}: {why}", excused=True)

    def _limit_broken(self, measurement: Measurement) -> str:
        limit_ms = self.settings.slo_p95_ms
        if not slo_violated(measurement, limit_ms):
            return ""
        return f"p95 of {measurement.latency.p95_ms:.0f} ms broke the limit of {limit_ms:g} ms"

    def _far_slower(self, measurement: Measurement) -> str:
        """By the means measured at the start and of the best known."""
        memory, best, ms = self.choice.memory, self.choice.best, latency_ms(measurement)
        best_ms = mean([seen.latency_ms for seen in memory.near_present_load() if seen.number == best])
        reference_ms = max(_or_zero(memory.start_latency_ms), _or_zero(best_ms))
        if not reference_ms or ms <= self.settings.latency_factor * reference_ms:
            return ""
        return f"mean latency of {ms:.0f} ms, {ms / reference_ms:.1f}x that at the start"


def latency_ms(measurement: Measurement) -> float:
    """Mean latency. That of an aborted interval includes the time its backlog needs to drain."""
    return _or_zero(measurement.latency.mean_ms) + (measurement.drain_ms if measurement.aborted else 0.0)


def _is_burst(measurement: Measurement) -> bool:
    """False where it is not known."""
    return measurement.dispersion >= MIN_BURST_DISPERSION


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
