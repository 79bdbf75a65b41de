"""What all objectives share: what failures cost, when a limit is broken, and what an objective is."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import numpy as np

from rrl.measurement import Measurement
from rrl.space import Configuration

FAILURE_WEIGHT = 10.0
"""A failed request costs as much as this many that were answered."""

MAX_LATE_SHARE = 0.05
"""Of the requests: a limit of the p95 holds while no more are late, or fail."""


def with_failures(cost: Any, failure_share: Any) -> Any:
    """The cost of an interval of which this share of the requests failed; numbers, or arrays of them."""
    return cost * (1.0 + FAILURE_WEIGHT * failure_share)


def check_limit(slo_p95_ms: float | None) -> None:
    """ValueError for a limit of the p95 that is no positive number."""
    if slo_p95_ms is not None and not 0 < slo_p95_ms < math.inf:
        raise ValueError(f"the p95 limit must be a positive number of milliseconds, got {slo_p95_ms:g}")


class PredictedIntervals(NamedTuple):
    """What intervals are expected to bring; the arrays are broadcast together."""

    mean_ms: np.ndarray
    p95_ms: np.ndarray
    threads: np.ndarray
    failure_share: np.ndarray = np.zeros(())
    answered_per_s: np.ndarray = np.full((), np.nan)  # what objectives of rates go by
    log_p95_sd: np.ndarray = np.zeros(())  # standard deviation of ln of the p95, of lognormal ones

    def over(self, limit_ms: float) -> tuple[np.ndarray, np.ndarray]:
        """How likely each breaks a limit of its p95, and the mean of ln of how many times (0 where not)."""
        with np.errstate(divide="ignore"):
            log_times = np.log(self.p95_ms / limit_ms)
        if not self.log_p95_sd.any():
            return np.where(log_times > 0, 1.0, 0.0), np.fmax(log_times, 0.0)
        from scipy.special import ndtr  # `import rrl` shall not cost what this does

        log_times = np.nan_to_num(log_times, nan=-100.0, posinf=np.inf, neginf=-100.0)
        sd = np.maximum(self.log_p95_sd, 1e-6)
        z = log_times / sd
        chance = ndtr(z)
        return chance, log_times * chance + sd * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)


class Objective(Protocol):
    @property
    def unit(self) -> str: ...

    @property
    def slo_p95_ms(self) -> float | None: ...

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        """The number to minimise; NaN where nothing was completed, nothing failed and nothing is waiting.

        NaN, too, where answers came without the latency that it goes by.
        """
        ...

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        """Of each interval."""
        ...


def slo_violated(measurement: Measurement, slo_p95_ms: float | None) -> bool:
    """True if there is a limit and the interval's p95 broke it (an aborted interval always does)."""
    if slo_p95_ms is None:
        return False
    return bool(measurement.aborted) or latency_ms(measurement, "p95_ms") > slo_p95_ms


def latency_ms(measurement: Measurement, statistic: str) -> float:
    """`mean_ms` or `p95_ms` as a cost counts it."""
    if measurement.failures and not measurement.completions:
        return 1e3 * measurement.duration_s
    latency_ms: float = getattr(measurement.latency, statistic)
    if not measurement.aborted:
        return latency_ms
    return float(np.nan_to_num(latency_ms)) + measurement.drain_ms
