"""The arrival rate to expect next: a Kalman filter on its logarithm that lets go when the load jumps.

| symbol | here | meaning |
|---|---|---|
| x | `_log_rate` | ln of the rate expected |
| P | `_variance` | its variance |
| N | arrivals | of an interval; the rate counted has a standard deviation of 1/√N of itself (Poisson) |
| q | `WALK_SD`² | what the load itself may drift by in an interval |

A surprise beyond √2 of its standard deviations is taken in part for a jump: half of its excess is added to P,
so that the newest interval counts for more, and a great surprise for nearly all.
"""

from __future__ import annotations

import math

WALK_SD = 0.03


class LoadForecast:
    """NaN until the first interval."""

    def __init__(self) -> None:
        self._log_rate = math.nan
        self._variance = 0.0

    def add(self, arrivals: int, duration_s: float) -> None:
        """Takes in an interval; one without arrivals counts as half a request."""
        observed = math.log(max(arrivals, 0.5) / duration_s)
        noise = 1.0 / max(arrivals, 1)
        if math.isnan(self._log_rate):
            self._log_rate, self._variance = observed, noise
            return
        variance = self._variance + WALK_SD**2
        excess = (observed - self._log_rate) ** 2 - 2.0 * (variance + noise)
        variance += 0.5 * max(0.0, excess)
        gain = variance / (variance + noise)
        self._log_rate += gain * (observed - self._log_rate)
        self._variance = (1 - gain) * variance

    @property
    def rate_per_s(self) -> float:
        return math.exp(self._log_rate)

    @property
    def log_sd(self) -> float:
        """Standard deviation of ln of the next interval's rate."""
        return math.sqrt(self._variance + WALK_SD**2)
