"""Objectives: each maps a measurement, and the configuration it was taken under, to a cost to minimise.

All costs are positive, and all but `LeastResources` are in milliseconds; reward = -cost.
An interval that the guard aborted did not live to see its own latency. So the time that its backlog needs to
drain is added, which is what the next request would wait. A request that fails adds to no latency. So all
costs are raised by `FAILURE_WEIGHT` times the share of requests that failed (`with_failures`). Where all
failed there is no latency: the whole interval stands for it, as nobody was answered for so long. A failed
request did not keep a p95 limit. So fewest threads are counted only where at most one in 20 failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from rrl.knobs import THREAD_KNOBS
from rrl.measurement import Measurement
from rrl.space import Configuration

FAILURE_WEIGHT = 10.0
"""A failed request costs as much as this many that were answered."""

NONE_FAIL = np.zeros(())
MAX_LATE_SHARE = 0.05
"""Of the requests: a limit of the p95 holds while no more are late, or fail."""


def with_failures(cost: Any, failure_share: Any) -> Any:
    """The cost of an interval of which this share of the requests failed; numbers, or arrays of them."""
    return cost * (1.0 + FAILURE_WEIGHT * failure_share)


class Objective(Protocol):
    @property
    def unit(self) -> str: ...

    @property
    def slo_p95_ms(self) -> float | None: ...

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        """The number to minimise; NaN where nothing was completed, nothing failed and nothing is waiting."""
        ...

    def costs(
        self,
        mean_ms: np.ndarray,
        p95_ms: np.ndarray,
        threads: np.ndarray,
        failure_share: np.ndarray = NONE_FAIL,
    ) -> np.ndarray:
        """The costs of predicted intervals; the arrays are broadcast together."""
        ...


def slo_violated(measurement: Measurement, slo_p95_ms: float | None) -> bool:
    """True if there is a limit and the interval's p95 broke it (an aborted interval always does)."""
    if slo_p95_ms is None:
        return False
    return bool(measurement.aborted) or _latency_ms(measurement, "p95_ms") > slo_p95_ms


def _latency_ms(measurement: Measurement, statistic: str) -> float:
    if measurement.failures and not measurement.completions:
        return 1e3 * measurement.duration_s
    latency_ms: float = getattr(measurement.latency, statistic)
    if not measurement.aborted:
        return latency_ms
    return float(np.nan_to_num(latency_ms)) + measurement.drain_ms


@dataclass(frozen=True)
class MeanLatency:
    """Mean latency (RRL, section 6.3); plus the p95 limit, if one is given, where it is broken."""

    slo_p95_ms: float | None = None
    unit = "ms"

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        mean_ms = _latency_ms(measurement, "mean_ms")
        broken_ms = self.slo_p95_ms if self.slo_p95_ms and slo_violated(measurement, self.slo_p95_ms) else 0.0
        return float(with_failures(mean_ms + broken_ms, measurement.failure_share))

    def costs(
        self,
        mean_ms: np.ndarray,
        p95_ms: np.ndarray,
        threads: np.ndarray,
        failure_share: np.ndarray = NONE_FAIL,
    ) -> np.ndarray:
        limit_ms = math.inf if self.slo_p95_ms is None else self.slo_p95_ms
        broken_ms = np.where(p95_ms > limit_ms, limit_ms, 0.0)
        return np.asarray(with_failures(mean_ms + broken_ms + 0.0 * threads, failure_share))


@dataclass(frozen=True)
class StrictSLO:
    """Least p95 latency (RRL, section 6.5), plus the limit once more where the p95 breaks it.

    Below the limit a lower p95 still costs less.
    """

    slo_p95_ms: float
    unit = "ms"

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        p95_ms = _latency_ms(measurement, "p95_ms")
        broken_ms = self.slo_p95_ms if slo_violated(measurement, self.slo_p95_ms) else 0.0
        return float(with_failures(p95_ms + broken_ms, measurement.failure_share))

    def costs(
        self,
        mean_ms: np.ndarray,
        p95_ms: np.ndarray,
        threads: np.ndarray,
        failure_share: np.ndarray = NONE_FAIL,
    ) -> np.ndarray:
        broken_ms = np.where(p95_ms > self.slo_p95_ms, self.slo_p95_ms, 0.0)
        return np.asarray(with_failures(p95_ms + broken_ms + 0.0 * threads, failure_share))


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

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        p95_ms = _latency_ms(measurement, "p95_ms")
        if np.isnan(p95_ms):
            return math.nan
        threads = math.prod(configuration.get(name, 1) for name in THREAD_KNOBS)
        is_broken = slo_violated(measurement, self.slo_p95_ms) or measurement.failure_share > MAX_LATE_SHARE
        cost = float(self._broken(p95_ms)) if is_broken else float(threads)
        return float(with_failures(cost, measurement.failure_share))

    def costs(
        self,
        mean_ms: np.ndarray,
        p95_ms: np.ndarray,
        threads: np.ndarray,
        failure_share: np.ndarray = NONE_FAIL,
    ) -> np.ndarray:
        is_broken = (p95_ms > self.slo_p95_ms) | (failure_share > MAX_LATE_SHARE)
        return np.asarray(with_failures(np.where(is_broken, self._broken(p95_ms), threads), failure_share))

    def _broken(self, p95_ms: float | np.ndarray) -> np.ndarray:
        """An aborted interval breaks the limit whatever its p95 was."""
        return np.asarray(self.violation_threads * (1.0 + np.log(np.maximum(p95_ms / self.slo_p95_ms, 1.0))))


def make_objective(name: str, slo_p95_ms: float | None) -> Objective:
    """`latency`, `strict-slo` or `least-resources`; the last two need the limit."""
    if slo_p95_ms is not None and not 0 < slo_p95_ms < math.inf:
        raise ValueError(f"the p95 limit must be a positive number of milliseconds, got {slo_p95_ms:g}")
    if name == "latency":
        return MeanLatency(slo_p95_ms)
    if name not in ("strict-slo", "least-resources"):
        raise ValueError(f"unknown objective {name!r}; known: latency, strict-slo, least-resources")
    if slo_p95_ms is None:
        raise ValueError(f"objective {name!r} needs a limit: give --slo-p95-ms")
    return StrictSLO(slo_p95_ms) if name == "strict-slo" else LeastResources(slo_p95_ms)


def in_unit(cost: float, unit: str) -> str:
    """`8.4 ms`, `23 ms`, `4.0 threads`."""
    return f"{cost:.{0 if cost >= 10 else 1}f} {unit}"
