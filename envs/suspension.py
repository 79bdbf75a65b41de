"""How long this machine was suspended, as a laptop is: the monotonic clock stands still meanwhile."""

from __future__ import annotations

import time

MIN_SUSPENDED_S = 1.0  # the two clocks are not read at once


def suspended_s() -> float:
    """In all since the machine started; 0 where the system does not tell."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
