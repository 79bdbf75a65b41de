"""Machines bound by compute or by memory: judges of another structure than the family's.

No prior is learned from them. They have steps and noise, and nothing of them is smooth. With i
inter-op and a intra-op threads, n busy instances and batches of b:

    S = w · max(K, M) · N(i·a) · exp(ε · Z[i, a, n, b])

    K = b / min(a^ψ·i^φ, C/n)                      compute, on the cores that are left to each
    M = q · (m + v·b) / min(1/n, i·a/k)            memory traffic, by a share of the bandwidth
    q = Q where n·(1 + x·b) > L, else 1            the last-level cache holds no more instances and batches
    N = J where i·a > C/2, else 1                  threads on two sockets
    Z                                              standard normal numbers, one for each entry

| symbol | drawn from | meaning |
|---|---|---|
| C | 6 .. 16 | cores on two sockets |
| ψ, φ | [0.6, 0.95], [0.1, 0.8] | speed-up by threads of an operator, and by parallel operators |
| m, v | [0.02, 0.25], [0.005, 0.05] | traffic of weights, and of each request, in requests' compute |
| k | [2, 6] | threads that it takes to fill the bandwidth |
| L, x | [3, 14], [0.05, 0.4] | instances that the cache holds; what a request takes of one |
| Q, J | [1.3, 2.5], [1.1, 1.5] | times as long beyond the cache; across sockets |
| ε | [0.01, 0.04] | noise |
| u | [0.25, 0.65] | utilisation, which fixes w (`paper_load`) |
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.scenarios import paper_load
from rrl.queueing.machine import Machine

_STREAM = int.from_bytes(b"roof")  # of random numbers


class Roofline(NamedTuple):
    """What a machine is made of, but for its noise and its speed."""

    cores: int  # C
    threads: float  # ψ
    operators: float  # φ
    weights: float  # m
    requests: float  # v
    to_fill: float  # k
    cache: float  # L
    request_in_cache: float  # x
    beyond_cache: float  # Q
    across_sockets: float  # J

    def times(self, i: np.ndarray, a: np.ndarray, n: np.ndarray, b: np.ndarray) -> np.ndarray:
        """S in requests' compute, without noise."""
        compute = b / np.minimum(a**self.threads * i**self.operators, self.cores / n)
        memory = (self.weights + self.requests * b) / np.minimum(1 / n, i * a / self.to_fill)
        memory *= np.where(n * (1 + self.request_in_cache * b) > self.cache, self.beyond_cache, 1.0)
        step = np.where(i * a > self.cores / 2, self.across_sockets, 1.0)
        return np.asarray(np.maximum(compute, memory) * step)


def roofline(rng: np.random.Generator) -> Roofline:
    cores = paper_load.drawn_cores(rng)
    lows = [0.6, 0.1, 0.02, 0.005, 2.0, 3.0, 0.05, 1.3, 1.1]
    highs = [0.95, 0.8, 0.25, 0.05, 6.0, 14.0, 0.4, 2.5, 1.5]
    return Roofline(cores, *rng.uniform(lows, highs))


def roofline_machine(seed: int) -> tuple[Machine, int]:
    """The machine of this seed, and its cores."""
    rng = np.random.default_rng([seed, _STREAM])
    drawn = roofline(rng)
    noise, utilisation = rng.uniform([0.01, paper_load.UTILISATION[0]], [0.04, paper_load.UTILISATION[1]])
    time_s = drawn.times(*paper_load.grid())
    time_s *= np.exp(noise * rng.standard_normal(time_s.shape))
    return paper_load.at_utilisation(Machine(*paper_load.AXES, time_s), utilisation), drawn.cores
