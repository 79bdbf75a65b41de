"""Random machines of 2 cores under stock Tritons, such as `scripts/bench triton-simulated` meets.

    S = S_1 · a^ε · max(1, n·a^η / C)^ω · (1 + μ·(n - 1) / C) · b^β · 5 % of noise where b is 1

| symbol | drawn from | meaning |
|---|---|---|
| S_1 | [5, 40] ms | a batch of one, alone, on one thread |
| a, n, b | 1 .. 2, 1 .. 4, 1 .. 8 | intra-op threads, busy instances, batch size |
| ε | [-0.8, 0.25] | speed-up by the second thread; above 0 it slows down |
| C, η | 2, [0.6, 1] | cores; how busy a batch keeps its threads |
| ω, μ | [0.9, 1.2], [0.1, 0.6] | loss by over-subscription; interference of neighbours |
| β | [0.5, 0.9] | growth by the size of a batch |

Times are never shorter with more busy instances.

A prior is learned from machines that vary more (`varied_machine`): 1 to 4 cores and threads, and models that
further threads make slower by up to half.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rrl.queueing.machine import Machine

CORES = 2
_VARIED = 31  # makes the stream of `varied_machine` another than that of `random_machine`


def random_machine(seed: int) -> tuple[Machine, float]:
    """A machine, and the load per s that it is asked to bear: 0.4 to 0.85 of what a stock Triton serves."""
    rng = np.random.default_rng(seed)
    lows, highs = [5e-3, -0.8, 0.9, 0.1, 0.5, 0.6], [40e-3, 0.25, 1.2, 0.6, 0.9, 1.0]
    s1, ε, ω, μ, β, η = rng.uniform(lows, highs)
    a, n, b = np.meshgrid([1.0, 2.0], np.arange(1.0, 5.0), [1.0, 2.0, 4.0, 8.0], indexing="ij")
    table_s = s1 * a**ε * np.maximum(1, n * a**η / CORES) ** ω * (1 + μ * (n - 1) / CORES) * b**β
    table_s = np.sort(table_s * np.exp(0.05 * rng.standard_normal(table_s.shape) * (b == 1)), axis=1)
    rate_per_s = rng.uniform(0.4, 0.85) / table_s[1, 0, 0]
    return small_machine([1, 2, 4, 8], table_s), round(float(rate_per_s), 1)


def varied_machine(seed: int) -> tuple[Machine, int]:
    """A machine of the same form, and its number of cores: 1 to 4."""
    rng = np.random.default_rng([seed, _VARIED])
    cores = int(rng.choice([1, 2, 3, 4]))
    ε, ω, μ, β, η = rng.uniform([-0.9, 0.9, 0.1, 0.4, 0.6], [0.5, 1.3, 0.8, 1.0, 1.0])
    threads, busy, batch = np.array([1, 2, 4]), np.arange(1, 9), np.array([1, 2, 4, 8, 16])
    a, n, b = np.meshgrid(*(axis.astype(float) for axis in (threads, busy, batch)), indexing="ij")
    table_s = 0.01 * a**ε * np.maximum(1, n * a**η / cores) ** ω * (1 + μ * (n - 1) / cores) * b**β
    table_s = table_s * np.exp(0.05 * rng.standard_normal(table_s.shape) * (b == 1))
    return Machine(np.array([1]), threads, busy, batch, table_s[None]), cores


def small_machine(batch_size: Sequence[int], table_s: np.ndarray) -> Machine:
    """`table_s` (2, 4, batch sizes) for 1 and 2 intra-op threads, 1 .. 4 busy instances."""
    return Machine(np.array([1]), np.array([1, 2]), np.arange(1, 5), np.array(batch_size), table_s[None])
