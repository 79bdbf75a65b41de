"""What a queue that grows or goes down says of the configuration in force. Pure logic.

| symbol | here | meaning |
|---|---|---|
| A, D | `arrivals`, `completions` | requests in and out since the configuration came into force |
| G = A - D | `backlog_growth` | requests that piled up meanwhile |
| z | `runaway_sigmas` | a server that keeps up has drift E[G] <= 0 and Var[G] <= A + D |
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rrl.guarding.settings import GuardSettings
from rrl.measurement import Measurement, Progress

MIN_LOOKED_AT_S = 1.0  # answers of a shorter time scatter too much to tell a rate
MIN_DRAINED = 5  # requests; fewer than so many may go down by chance


def growth_noise(seen: Progress | Measurement) -> float:
    """√(A + D): the largest standard deviation that G can have where the server keeps up."""
    return math.sqrt(seen.arrivals + seen.completions)


def wait_ms(measurement: Measurement) -> float:
    """What the next request would wait."""
    return 1e3 * measurement.backlog / max(measurement.completion_rate_per_s, 1e-3)


def overloads(measurement: Measurement, settings: GuardSettings) -> bool:
    """True if the queue grew in this interval by more than one σ of its noise, and is long at its end."""
    long_ms, _ = settings.runaway_wait_ms
    return measurement.backlog_growth > growth_noise(measurement) and wait_ms(measurement) > long_ms


def runaway_wait_ms(settings: GuardSettings, start_ms: float) -> float:
    """The wait that a queue may grow by: the limit, or a multiple of the latency at the start."""
    if settings.slo_p95_ms is not None:
        return settings.slo_p95_ms
    low, high = settings.runaway_wait_ms
    return low if math.isnan(start_ms) else min(max(settings.latency_factor * start_ms, low), high)


def runs_away(progress: Progress, settings: GuardSettings, start_ms: float) -> str:
    """Why the running interval's queue is a runaway; empty if it is none, or too little was seen."""
    if progress.elapsed_s < settings.watch_s or progress.arrivals < settings.watch_arrivals:
        return ""
    growth = progress.backlog_growth
    grown_ms = 1e3 * growth * progress.elapsed_s / max(progress.completions, 1)
    is_noise = growth <= settings.runaway_sigmas * growth_noise(progress)
    if is_noise or grown_ms <= runaway_wait_ms(settings, start_ms):
        return ""
    return (
        f"the queue is running away: {growth} more requests waiting after {progress.elapsed_s:.1f} s "
        f"(a wait of {grown_ms:.0f} ms)"
    )


class Looks:
    """The looks at a running interval, and how fast its configuration answers while a queue waits.

    The interval's begin is a look that found what the first one did.
    """

    def __init__(self) -> None:
        self.throughput_per_s: float | None = None
        """The most answers a second between any two looks.

        None until some time has passed since a look found requests: in a silence none can be answered.
        """
        self._most_per_s = 0.0
        self._seen: list[Progress] = []

    def add(self, progress: Progress) -> None:
        if not self._seen:
            self._seen.append(Progress(0.0, 0, 0, progress.backlog, 0))
        before = [each for each in self._seen if progress.elapsed_s - each.elapsed_s >= MIN_LOOKED_AT_S]
        self._seen.append(progress)
        for each in before:
            rate_per_s = (progress.completions - each.completions) / (progress.elapsed_s - each.elapsed_s)
            self._most_per_s = max(self._most_per_s, rate_per_s)
        if any(each.backlog > 0 for each in before):
            self.throughput_per_s = self._most_per_s


@dataclass
class Draining:
    """Counts the intervals in a row that drained a queue left behind: nothing is learned from these."""

    settings: GuardSettings
    _in_a_row: int = 0

    def goes_on(self, measurement: Measurement, after_rollback: bool, failing: bool) -> bool:
        """True while such a queue goes down, for a few intervals at most.

        A rollback may find requests waiting that can only fail now. Any other drain must not lose any.
        Each call counts an interval, so it is to be asked once of each.
        """
        shrinkage = -measurement.backlog_growth
        sigmas = 1.0 if after_rollback else self.settings.drain_sigmas
        drains = shrinkage >= MIN_DRAINED and shrinkage > sigmas * growth_noise(measurement)
        may = (after_rollback or not failing) and self._in_a_row < self.settings.drain_intervals
        self._in_a_row = self._in_a_row + 1 if drains and may else 0
        return self._in_a_row > 0

    def must_stay(self, measurement: Measurement, after_rollback: bool, start_ms: float) -> bool:
        """True if the configuration is to stay until the queue is gone, as it can bear the load."""
        return wait_ms(measurement) > runaway_wait_ms(self.settings, start_ms) or not after_rollback
