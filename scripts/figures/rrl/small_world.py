"""A small simulated machine on which Q* is known, and Algorithm 1 on it (RRL, section 4).

| symbol | here | meaning |
|---|---|---|
| s, c | load level, configuration | `RATES_PER_S`, and the grid `KNOBS` |
| r_t(s, c) | `SmallWorld.observed_ms` | mean latency of an interval; one is drawn for every t |
| r(s, c) | `SmallWorld.expected_ms` | their mean |
| P(s' given s) | `SmallWorld.transition` | the next load: the same with probability `STAYS`, or any |
| Q* | `SmallWorld.optimal_q` | r(s, c) + γ Σ_s' P(s' given s) min_c' Q*(s', c'), by value iteration |
| Δ | `SmallWorld.error_bounds` | the largest error of an estimate in a region, eq. (4) |
| Q̂_t | the course of `EXACT` | the same decisions with the real latencies, eq. (5) |

All configurations meet the same requests in an interval, so that r_t(s, c) is what would have been observed.
Three courses of eq. (2) run side by side. They differ in what is taken for the region of c_t.

| course | r̂_t(s, c) | Δ |
|---|---|---|
| `EXACT` | r_t(s, c) | 0 |
| `ALIKE` | r_t(s, c_t), as if all of a region performed alike | the largest difference within a region |
| `BIASED` | r_t(s, c) + Δ, for all but c_t | a tenth of the mean latency |

Configurations are drawn uniformly, and each load is as likely as the others. α = 1/n(s, c), where n counts a
pair's updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rrl.queueing.machine import Machine
from rrl.space import ConfigurationSpace
from scripts.figures.rrl.slo import interval_latencies_ms

KNOBS = "instances=2:6,inter_op_threads=1:5"
RATES_PER_S = (10.0, 12.0, 14.0)
STAYS = 0.8
REQUESTS = 100
BIAS = 0.1  # by the mean latency
POINTS = 60  # of a course
EXACT, ALIKE, BIASED = "exact", "alike", "biased"
ESTIMATES = (EXACT, ALIKE, BIASED)
_ARRIVALS = 41  # seeds the requests


@dataclass(frozen=True)
class SmallWorld:
    """A machine under loads that follow a Markov chain."""

    space: ConfigurationSpace
    observed_ms: np.ndarray  # (states, size, intervals)

    @classmethod
    def of(cls, machine: Machine, intervals: int) -> SmallWorld:
        space = ConfigurationSpace.parse(KNOBS)
        unit_gaps = np.random.default_rng(_ARRIVALS).exponential(size=(intervals, REQUESTS))
        observed_ms = [
            [
                [interval_latencies_ms(machine, configuration, gaps).mean() for gaps in unit_gaps / rate]
                for configuration in map(space.configuration, range(len(space)))
            ]
            for rate in RATES_PER_S
        ]
        return cls(space, np.array(observed_ms))

    @cached_property
    def expected_ms(self) -> np.ndarray:
        """(states, size)"""
        mean: np.ndarray = self.observed_ms.mean(axis=2)
        return mean

    @cached_property
    def transition(self) -> np.ndarray:
        """(states, states); each row sums to 1."""
        states = len(self.observed_ms)
        return STAYS * np.eye(states) + (1 - STAYS) / states

    def optimal_q(self, discount: float) -> np.ndarray:
        """(states, size) Q*."""
        q = self.expected_ms
        for _ in range(2000):
            q = self.expected_ms + discount * (self.transition @ q.min(axis=1))[:, None]
        return q

    def near(self, radius: float) -> np.ndarray:
        """(size, size) bool: whether one configuration is in the region of another."""
        near = np.zeros((len(self.space),) * 2, dtype=bool)
        for number in range(len(self.space)):
            near[number, self.space.region(number, radius)] = True
        return near

    def error_bounds(self, radius: float) -> dict[str, float]:
        """Δ of each course, in ms."""
        if radius == 0:
            return dict.fromkeys(ESTIMATES, 0.0)
        largest = max(
            float(np.abs(self.observed_ms[:, region] - self.observed_ms[:, [c]]).max())
            for c, region in enumerate(self.near(radius))
        )
        return {EXACT: 0.0, ALIKE: largest, BIASED: BIAS * float(self.expected_ms.mean())}


@dataclass(frozen=True)
class CoursesOfQ:
    """How the courses of one radius and discount went. All latencies are divided by the largest Q*."""

    decisions: np.ndarray  # (points,) t
    gap: dict[str, np.ndarray]  # by course: (runs, points) the largest |Q_t - Q*| of all pairs
    apart: dict[str, np.ndarray]  # by course: (runs,) the largest |Q_t - Q̂_t| of all pairs and all t
    error_bound: dict[str, float]  # Δ
    region_size: float  # n_δ, in the mean


def learn(world: SmallWorld, radius: float, discount: float, decisions: int, seeds: int) -> CoursesOfQ:
    """The three courses of eq. (2), in as many runs as seeds."""
    rng = np.random.default_rng([decisions, seeds])
    optimal_q, near, bounds_ms = world.optimal_q(discount), world.near(radius), world.error_bounds(radius)
    states, size, intervals = world.observed_ms.shape
    at = np.unique(np.geomspace(min(10, decisions), decisions, POINTS).astype(int))
    gaps = np.zeros((len(ESTIMATES), seeds, len(at)))
    apart = np.zeros((len(ESTIMATES), seeds))
    runs, numbers = np.arange(seeds), np.arange(size)
    q = np.zeros((len(ESTIMATES), seeds, states, size))
    counts = np.zeros((seeds, states, size), dtype=int)
    state = rng.integers(states, size=seeds)
    estimates = np.empty((len(ESTIMATES), seeds, size))
    for t in range(1, decisions + 1):
        chosen = rng.integers(size, size=seeds)
        next_state = np.where(rng.random(seeds) < STAYS, state, rng.integers(states, size=seeds))
        estimates[0] = observed = world.observed_ms[state, :, rng.integers(intervals, size=seeds)]
        estimates[1] = observed[runs, chosen][:, None]
        estimates[2] = observed + bounds_ms[BIASED] * (numbers != chosen[:, None])
        region = near[chosen]
        counts[runs, state] += region
        α = region / np.maximum(counts[runs, state], 1)
        bootstrap = discount * q[:, runs, next_state].min(axis=2, keepdims=True)
        before = q[:, runs, state]
        after = before + α * (estimates + bootstrap - before)
        q[:, runs, state] = after
        np.maximum(apart, np.abs(after - after[0]).max(axis=2), out=apart)
        state = next_state
        point = np.searchsorted(at, t)
        if at[point] == t:
            gaps[:, :, point] = np.abs(q - optimal_q).max(axis=(2, 3))
    largest = float(optimal_q.max())
    return CoursesOfQ(
        at,
        dict(zip(ESTIMATES, gaps / largest, strict=True)),
        dict(zip(ESTIMATES, apart / largest, strict=True)),
        {name: bound_ms / largest for name, bound_ms in bounds_ms.items()},
        float(near.sum(axis=1).mean()),
    )
