"""The rate that a configuration would bear with its p95 at a limit: the same arrivals, replayed faster.

| symbol | here | meaning |
|---|---|---|
| lambda | `offered_per_s` | the rate of the arrivals as they came |
| f | `FACTORS` | how many times as fast they are replayed |
| q(f) | `p95s_ms` | the p95 then |
| L | `limit_ms` | the limit |
| f* | | q(f*) = L: ln q is linear in ln f between two factors |

The arrivals keep their pattern, so what is bursty stays so. Beyond the factors replayed f* is extrapolated as
`rrl.objective.rates` does. No rate is beyond what the service times admit at all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rrl.objective.rates import HEADROOM
from rrl.queueing.windows import Windows

FACTORS = np.sqrt(2.0) ** np.arange(-3, 5)  # f: from a third of the load to four times of it


def rate_at_limit(
    p95_ms: Callable[[Windows], np.ndarray],
    windows: Windows,
    offered_per_s: np.ndarray,
    borne_per_s: np.ndarray,
    limit_ms: float,
) -> np.ndarray:
    """(K, windows). `p95_ms` tells the (K, windows) p95 under such arrivals; `borne_per_s` is (K, 1)."""
    p95s_ms = np.stack([p95_ms(windows.faster(factor)) for factor in FACTORS.tolist()])
    logs = np.log(np.clip(np.maximum.accumulate(p95s_ms, axis=0), 1e-9, 1e12))  # (F, K, windows)
    limit, log_factors = np.log(limit_ms), np.log(FACTORS)
    over = logs > limit
    first = np.where(over.any(axis=0), over.argmax(axis=0), len(FACTORS))  # that breaks the limit
    high, low = np.clip(first, 1, len(FACTORS) - 1), np.clip(first - 1, 0, len(FACTORS) - 2)
    at_high, at_low = (np.take_along_axis(logs, k[None], axis=0)[0] for k in (high, low))
    share = np.clip((limit - at_low) / np.maximum(at_high - at_low, 1e-9), 0.0, 1.0)
    between = log_factors[low] + share * (log_factors[high] - log_factors[low])
    below = log_factors[0] + HEADROOM * (limit - logs[0])
    above = log_factors[-1] + HEADROOM * (limit - logs[-1])
    log_factor = np.where(first == 0, below, np.where(first == len(FACTORS), above, between))
    return np.asarray(np.minimum(offered_per_s * np.exp(log_factor), borne_per_s))
