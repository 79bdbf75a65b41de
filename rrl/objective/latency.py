"""The objectives by latency: the mean, the p95 within a limit, and the fewest threads that keep one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rrl.knobs import threads_of
from rrl.measurement import Measurement
from rrl.objective.words import (
    MAX_LATE_SHARE,
    PredictedIntervals,
    check_limit,
    latency_ms,
    slo_violated,
    with_failures,
)
from rrl.space import Configuration


@dataclass(frozen=True)
class MeanLatency:
    """Mean latency (RRL, section 6.3); plus the p95 limit, if one is given, where it is broken."""

    slo_p95_ms: float | None = None
    unit = "ms"

    def __post_init__(self) -> None:
        check_limit(self.slo_p95_ms)

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        mean_ms = latency_ms(measurement, "mean_ms")
        broken_ms = self.slo_p95_ms if self.slo_p95_ms and slo_violated(measurement, self.slo_p95_ms) else 0.0
        return float(with_failures(mean_ms + broken_ms, measurement.failure_share))

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        broken_ms = 0.0 if self.slo_p95_ms is None else self.slo_p95_ms * of.over(self.slo_p95_ms)[0]
        return np.asarray(with_failures(of.mean_ms + broken_ms + 0.0 * of.threads, of.failure_share))


@dataclass(frozen=True)
class StrictSLO:
    """Least p95 latency (RRL, section 6.5), plus the limit once more where the p95 breaks it.

    Below the limit a lower p95 still costs less.
    """

    slo_p95_ms: float
    unit = "ms"

    def __post_init__(self) -> None:
        check_limit(self.slo_p95_ms)

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        p95_ms = latency_ms(measurement, "p95_ms")
        broken_ms = self.slo_p95_ms if slo_violated(measurement, self.slo_p95_ms) else 0.0
        return float(with_failures(p95_ms + broken_ms, measurement.failure_share))

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        broken_ms = self.slo_p95_ms * of.over(self.slo_p95_ms)[0]
        return np.asarray(with_failures(of.p95_ms + broken_ms + 0.0 * of.threads, of.failure_share))


@dataclass(frozen=True)
class LeastResources:
    """Fewest threads that keep the SLO (RRL, section 6.6).

    The cost is instances x intra-op x inter-op threads. Where the limit is broken the threads do not count:
    it is `violation_threads` · (1 + ln(p95 / limit)), so that nearer to the limit always costs less. To
    break the limit never costs less than to keep it, if the space has no configuration of more threads than
    `violation_threads`. The default is the largest of RRL's grid, 10 x 10 x 10.
    """

    slo_p95_ms: float
    violation_threads: float = 1000.0
    unit = "threads"

    def __post_init__(self) -> None:
        check_limit(self.slo_p95_ms)

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        p95_ms = latency_ms(measurement, "p95_ms")
        if np.isnan(p95_ms):
            return math.nan
        threads = threads_of(configuration)
        is_broken = slo_violated(measurement, self.slo_p95_ms) or measurement.failure_share > MAX_LATE_SHARE
        cost = float(threads)
        if is_broken:  # An aborted interval breaks the limit whatever its p95 was.
            cost = self.violation_threads * (1.0 + math.log(max(p95_ms / self.slo_p95_ms, 1.0)))
        return float(with_failures(cost, measurement.failure_share))

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        chance, log_times = of.over(self.slo_p95_ms)
        chance = np.where(of.failure_share > MAX_LATE_SHARE, 1.0, chance)
        costs = (1 - chance) * of.threads + self.violation_threads * (chance + log_times)
        return np.asarray(with_failures(costs, of.failure_share))
