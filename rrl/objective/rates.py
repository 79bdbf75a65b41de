"""The objectives by rates: how many requests are answered, how many in time, and how many could be.

The cost is the time that one answer takes at the rate reached, 1000 ms over answers per second. So it is
positive and lowest where the rate is highest, and a gain in cost is the same gain in the rate.

| objective | the rate is that of |
|---|---|
| `Throughput` | answers |
| `Goodput` | answers within the limit |
| `Capacity` | the arrivals that would be borne with the p95 at the limit |

| symbol | here | meaning |
|---|---|---|
| X | `answered_per_s` | answers per second |
| m, q | `mean_ms`, `p95_ms` | mean and 95th percentile of the latency |
| L | `slo_p95_ms` | the limit |
| z | `Z95` | 95% quantile of the normal distribution |
| s | `_log_sd` | standard deviation of ln of the latency: ln(q/m) = z s - s^2/2 for a lognormal one |
| F(L) | `share_within` | share of the answers within the limit: Phi(z + ln(L/q) / s) |
| X (L/q)^h | | the rate borne at the limit, h: `HEADROOM` |

F is exact where q = L, as 95 in 100 are within it by definition, and by a lognormal tail elsewhere.

So is the capacity at q = L: an interval whose p95 is the limit shows what is borne. Elsewhere it is
extrapolated. In a queue with q ~ 1/(1 - rho), d ln X / d ln q = (1 - rho)/rho, which is 1/2 at two thirds of
the capacity. A belief that can replay higher rates needs no such rule, and gives rates with q = L.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from rrl.measurement import Measurement
from rrl.objective.words import PredictedIntervals, check_limit, latency_ms, with_failures
from rrl.space import Configuration

PER_ANSWER = "ms an answer"  # the unit
Z95 = 1.6448536269514722  # z
MIN_LOG_SD = 0.02  # of a latency that hardly varies
LEAST_SHARE = 1e-3  # within a limit: no less is told apart by a tail
LEAST_PER_S = 1e-3  # a rate: nothing answered counts as so much
HEADROOM = 0.5  # h


@dataclass(frozen=True)
class _ByRate(ABC):
    """What these objectives share: a measurement costs what a predicted interval of the same numbers does."""

    slo_p95_ms: float | None
    unit = PER_ANSWER

    def __post_init__(self) -> None:
        check_limit(self.slo_p95_ms)

    @abstractmethod
    def costs(self, of: PredictedIntervals) -> np.ndarray:
        """Of each interval."""

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        """NaN where nothing was completed, nothing failed and nothing is waiting."""
        if not (measurement.completions or measurement.failures or measurement.backlog > 0):
            return math.nan
        mean_ms, p95_ms = (latency_ms(measurement, name) for name in ("mean_ms", "p95_ms"))
        if not measurement.completions:  # One answer in all that time, and a late one.
            mean_ms = p95_ms = 1e3 * max(measurement.duration_s, 1e-3)
        if measurement.aborted and self.slo_p95_ms is not None:
            p95_ms = max(p95_ms, math.nextafter(self.slo_p95_ms, math.inf))
        per_s = max(measurement.completions, 1) / max(measurement.duration_s, 1e-3)
        share = np.asarray(measurement.failure_share)
        each = (np.asarray(mean_ms), np.asarray(p95_ms), np.ones(()), share, np.asarray(per_s))
        return float(self.costs(PredictedIntervals(*each)))


@dataclass(frozen=True)
class Throughput(_ByRate):
    """Most answers per second; where a p95 limit is given and broken, their cost is at least twice as high.

    Under the arrivals of users each configuration that bears them answers as many. A closed loop tells them
    apart: with n requests under way X = n / m (Little's law).
    """

    slo_p95_ms: float | None = None

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        broken = np.ones_like(of.p95_ms)
        if self.slo_p95_ms is not None:
            chance, _ = of.over(self.slo_p95_ms)
            broken = 1.0 + chance * np.fmax(of.p95_ms / self.slo_p95_ms, 1.0)
        cost_ms = _per_answer_ms(of.answered_per_s) * broken + 0.0 * of.threads
        return np.asarray(with_failures(cost_ms, of.failure_share))


@dataclass(frozen=True)
class Goodput(_ByRate):
    """Most answers per second within the limit."""

    slo_p95_ms: float

    def cost(self, measurement: Measurement, configuration: Configuration) -> float:
        """NaN, too, where it is not told how many of the answers were within the limit."""
        if measurement.completions and math.isnan(latency_ms(measurement, "p95_ms")):
            return math.nan
        return super().cost(measurement, configuration)

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        share = share_within(self.slo_p95_ms, of.mean_ms, of.p95_ms)
        least = LEAST_SHARE * np.minimum(1.0, self.slo_p95_ms / of.p95_ms)
        cost_ms = _per_answer_ms(of.answered_per_s) / np.fmax(share, np.fmax(least, 1e-9)) + 0.0 * of.threads
        return np.asarray(with_failures(cost_ms, of.failure_share))


@dataclass(frozen=True)
class Capacity(_ByRate):
    """Highest rate that is borne with the p95 within the limit."""

    slo_p95_ms: float

    def costs(self, of: PredictedIntervals) -> np.ndarray:
        borne_per_s = of.answered_per_s * (self.slo_p95_ms / of.p95_ms) ** HEADROOM
        return np.asarray(with_failures(_per_answer_ms(borne_per_s) + 0.0 * of.threads, of.failure_share))


def share_within(limit_ms: float, mean_ms: np.ndarray, p95_ms: np.ndarray) -> np.ndarray:
    """F(L): the share of lognormal latencies of this mean and p95 that are within the limit."""
    from scipy.special import ndtr  # `import rrl` shall not cost what this does

    log_sd = log_sd_of(mean_ms, p95_ms)
    known = log_sd > 0
    beyond = np.log(limit_ms / np.where(known, p95_ms, 1.0)) / np.where(known, log_sd, 1.0)
    return np.where(known, ndtr(Z95 + beyond), 0.0)


def log_sd_of(mean_ms: np.ndarray, p95_ms: np.ndarray) -> np.ndarray:
    """s: of lognormal latencies of this mean and p95; 0 where there are none, or infinite ones."""
    mean_ms, p95_ms = np.asarray(mean_ms, dtype=float), np.asarray(p95_ms, dtype=float)
    known = np.isfinite(mean_ms) & np.isfinite(p95_ms) & (mean_ms > 0) & (p95_ms > 0)
    m, q = np.where(known, mean_ms, 1.0), np.where(known, p95_ms, 1.0)
    log_sd = np.maximum(Z95 - np.sqrt(np.maximum(Z95**2 - 2 * np.log(q / m), 0.0)), MIN_LOG_SD)
    return np.where(known, log_sd, 0.0)


def _per_answer_ms(rate_per_s: np.ndarray) -> np.ndarray:
    return np.asarray(1e3 / np.maximum(rate_per_s, LEAST_PER_S))
