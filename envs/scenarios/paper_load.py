"""Invented machines that bear the papers' load: the grid of their tables, their cores, their speed.

| drawn | from | meaning |
|---|---|---|
| cores | 6 .. 16 | number of cores |
| u | [0.25, 0.65] | share of the machine's capacity that the load takes, which fixes its speed |

The capacity is the largest b·n/S[i, a, n, b] of all configurations, with batches of one where nothing else is
said.
"""

from __future__ import annotations

import numpy as np

from envs.simulated import PAPER_RATE_PER_S
from rrl.queueing.machine import Machine

RATE_PER_S = PAPER_RATE_PER_S
FEWEST_CORES, MOST_CORES = 6, 16
UTILISATION = (0.25, 0.65)
THREADS = np.arange(1, 11)
BATCH_SIZES = np.array([1, 2, 4, 8, 16, 32])
AXES = (THREADS, THREADS, THREADS, BATCH_SIZES)  # i, a, n, b


def drawn_cores(rng: np.random.Generator) -> int:
    return int(rng.integers(FEWEST_CORES, MOST_CORES, endpoint=True))


def grid() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """i, a, n, b of every entry of a table, as floating point."""
    i, a, n, b = np.meshgrid(*(axis.astype(float) for axis in AXES), indexing="ij")
    return i, a, n, b


def at_utilisation(machine: Machine, utilisation: float, largest_batch: int = 1) -> Machine:
    """The machine at a speed where `RATE_PER_S` is this share of its capacity with batches up to so large."""
    n = machine.busy_instances[:, None]
    b = machine.batch_size[machine.batch_size <= largest_batch]
    capacity_per_s = float(np.max(n * b / machine.service_time_s[..., : len(b)]))
    return machine.slower(utilisation * capacity_per_s / RATE_PER_S)
