"""Machines that scale by the universal scalability law: judges of another structure than the family's.

No prior is learned from them. Their speed-up peaks and falls. It kinks where all physical cores are taken,
and where all are. With i inter-op and a intra-op threads, n busy instances and batches of b:

    S = w · U(a, b) · P(i) · H(t) · G(b),    t = n·a·min(i, 1/ℓ) threads that have work

    U = (1 + σ_b·(a - 1) + κ·a·(a - 1)) / a,   σ_b = σ / √b   the law: contention σ, coherency κ
    P = max(ℓ, 1/i)                            operators wait for the critical path, the share ℓ of the work
    H = t / E(t) · (1 + s·max(0, 1 - C/t))     hyper-threads, and locks whose holders wait for a core
    E = min(t, C/2) + h·min(max(t - C/2, 0), C/2)   cores' worth of work that t threads do at once
    G = b^β                                    batching

| symbol | drawn from | meaning |
|---|---|---|
| C | 6 .. 16 | cores, half of them hyper-threads |
| σ, κ | [0.02, 0.35], [0.001, 0.03] | contention and coherency |
| ℓ | [0.15, 0.9] | length of the critical path |
| h | [0.1, 0.6] | what a hyper-thread adds to its core |
| s | [0.2, 1.5] | loss where threads spin on a lock whose holder has no core |
| β | [0.6, 0.95] | growth by the size of a batch |
| u | [0.25, 0.65] | utilisation, which fixes w (`paper_load`) |
"""

from __future__ import annotations

import numpy as np

from envs.scenarios import paper_load
from rrl.queueing.machine import Machine

_STREAM = int.from_bytes(b"usl")  # of random numbers


def usl_machine(seed: int) -> tuple[Machine, int]:
    """The machine of this seed, and its cores."""
    rng = np.random.default_rng([seed, _STREAM])
    cores = paper_load.drawn_cores(rng)
    sigma, kappa, path, hyper, spin, beta, utilisation = rng.uniform(
        [0.02, 0.001, 0.15, 0.1, 0.2, 0.6, paper_load.UTILISATION[0]],
        [0.35, 0.03, 0.9, 0.6, 1.5, 0.95, paper_load.UTILISATION[1]],
    )
    i, a, n, b = paper_load.grid()
    time_s = (1 + sigma / np.sqrt(b) * (a - 1) + kappa * a * (a - 1)) / a
    time_s *= np.maximum(path, 1 / i)
    time_s *= sharing(n * a * np.minimum(i, 1 / path), cores, hyper, spin)
    time_s *= b**beta
    return paper_load.at_utilisation(Machine(*paper_load.AXES, time_s), utilisation), cores


def sharing(threads: np.ndarray, cores: int, hyper: float, spin: float) -> np.ndarray:
    """H: how many times as long everything takes where so many threads have work."""
    physical = cores / 2
    at_once = np.minimum(threads, physical) + hyper * np.clip(threads - physical, 0, physical)
    return np.asarray(threads / at_once * (1 + spin * np.maximum(0.0, 1 - cores / threads)))
