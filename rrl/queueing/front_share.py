"""How much longer service takes where other processes take a share of the cores that the model runs on.

Of a server on its own machine these are its front process, and the load generator where it runs there too.
Each needs some processor time for a request, which a light profile tells. So at rate λ:

| symbol | here | meaning |
|---|---|---|
| F | `cores` | |
| n, a | `busy`, `threads` | requests in service, threads of each |
| x_j | `cpu_s` | processor seconds that process j needs for a request |
| y_j = λ·x_j | | the share of the time that it runs, taken as independent of the others and of n |
| B | | how many of the processes run at a moment |
| M = min(n·a, F) | | cores that the model uses when nobody else does |
| H = max(0, B - max(0, F - n·a)) | | cores that the others take from the model; they take idle ones first |
| w | | cores' worth of work that is lost for each core taken |
| h | `slowdown` | M / E[max(0, M - w·H)] |

The others sleep most of the time and run for a moment. So the kernel lets them run at once, and a thread of
the model waits. Where the model's threads do not exceed the cores, the other threads of that request wait for
it at the end of the operator: w = a. Where they exceed them, another request's thread runs meanwhile: w = 1.

This is no part of SERF (SC 2016), whose front and load had machines of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class FrontShare(NamedTuple):
    """Who shares the cores with a model that runs with so many threads."""

    cores: int
    threads: int
    cpu_s: tuple[float, ...]

    def slowdown(self, busy: np.ndarray, rate_per_s: float | np.ndarray) -> np.ndarray:
        """h for (c,) numbers of requests in service, at one rate or (c,) of them; at least 1.

        ValueError where the processes alone would need all cores.
        """
        busy = np.asarray(busy)
        rates_per_s = np.broadcast_to(np.asarray(rate_per_s, dtype=float), busy.shape)
        return np.array([self._at(int(n), float(rate)) for n, rate in zip(busy, rates_per_s, strict=True)])

    def quiet(self, times_s: np.ndarray, rates_per_s: np.ndarray) -> np.ndarray:
        """(c,) service times without the others, from those profiled with 1 .. c in service.

        `rates_per_s`: (c,) requests per second while each was profiled.
        """
        return np.asarray(times_s) / self.slowdown(np.arange(1, len(times_s) + 1), rates_per_s)

    def beside(self, quiet_s: np.ndarray, rate_per_s: float) -> np.ndarray:
        """(c,) service times beside the others at a rate, from those without them."""
        return np.asarray(quiet_s) * self.slowdown(np.arange(1, len(quiet_s) + 1), rate_per_s)

    def _at(self, busy: int, rate_per_s: float) -> float:
        wanted = busy * self.threads
        used, idle = min(wanted, self.cores), max(0, self.cores - wanted)
        lost = self.threads if wanted <= self.cores else 1
        running = at_once([min(1.0, rate_per_s * cpu_s) for cpu_s in self.cpu_s])
        taken = np.maximum(0, np.arange(len(running)) - idle)
        left = float(running @ np.maximum(0, used - lost * taken))
        if left <= 0:
            raise ValueError(
                f"at {rate_per_s:g} requests/s the other processes need all {self.cores} cores: "
                "lower the rate, or give the model cores of its own"
            )
        return used / left


def at_once(shares: Sequence[float]) -> np.ndarray:
    """(processes + 1,) the probability that 0, 1, 2 ... of them run at a moment."""
    distribution = np.ones(1)
    for share in shares:
        distribution = np.convolve(distribution, [1 - share, share])
    return distribution
