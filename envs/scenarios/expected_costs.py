"""What an interval costs in expectation under every configuration of a scenario, by long simulation.

| intervals | the expectation is over |
|---|---|
| start with an empty server | independent intervals, each of which answers all its requests |
| carry the backlog over | the stationary queue, cut into intervals |

A configuration that is unstable at the rate has no stationary queue. It is given the expectation of the empty
start.

All configurations see the same arrivals, sizes and variation (common random numbers). The search for the best
is by stages: all of them briefly, the best of these longer, the best of those longest.

| stage | configurations | intervals each |
|---|---|---|
| 1 | all | 30 |
| 2 | the best 10 %, at least 40 | 300 |
| 3 | the best 2 %, at least 12 | 2000 |
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from envs.scenarios.scenario import Scenario
from envs.simulated import lognormal_factors
from rrl.objective import Objective, PredictedIntervals
from rrl.queueing.kernels import Intervals, Rules, Service, interval_latencies_ms
from rrl.space import Configuration, ConfigurationSpace

STAGES = ((1.0, 0, 30), (0.1, 40, 300), (0.02, 12, 2000))
"""Each stage: share of the configurations, lowest number of them, intervals for each."""

_WARM_UP = 0.1  # share of the intervals left out where the backlog is carried over from an empty start
_SEED = 20191117  # draws the common random numbers


class Expected(NamedTuple):
    """What is expected of an interval under each configuration."""

    cost: np.ndarray  # (size,)
    mean_ms: np.ndarray  # (size,) mean latency
    p95_ms: np.ndarray  # (size,) mean of the intervals' 95th percentiles


class ExpectedCosts:
    """The true costs of a scenario, simulated when they are first asked for and then kept."""

    def __init__(
        self,
        scenario: Scenario,
        space: ConfigurationSpace,
        objective: Objective,
        requests_per_interval: int = 100,
    ) -> None:
        """A slow-down does not count. `ExpectedCosts(scenario.slowed(), ...)` has the costs after it."""
        if requests_per_interval < 1:
            raise ValueError(f"an interval must hold at least 1 request, got {requests_per_interval}")
        self._scenario = scenario
        self._space = space
        self._objective = objective
        self._requests = requests_per_interval
        self._found: dict[float, Expected] = {}
        rng = np.random.default_rng(_SEED)
        count = STAGES[-1][2] * requests_per_interval
        self._unit_gaps = rng.exponential(size=count)
        self._work = np.empty(0)
        if scenario.sizes is not None:
            self._work = scenario.sizes.sample(rng, count) / scenario.size_of_table
        self._factors = lognormal_factors(scenario.service_variation, rng)

    def costs(self, rate_per_s: float) -> np.ndarray:
        """(size,) expected cost of an interval under each configuration, in the objective's unit."""
        return self._at(rate_per_s).cost

    def mean_latency_ms(self, rate_per_s: float) -> np.ndarray:
        """(size,) expected mean latency."""
        return self._at(rate_per_s).mean_ms

    def p95_ms(self, rate_per_s: float) -> np.ndarray:
        """(size,) expected 95th percentile of an interval's latencies."""
        return self._at(rate_per_s).p95_ms

    def _at(self, rate_per_s: float) -> Expected:
        if not 0 < rate_per_s < math.inf:
            raise ValueError(f"the rate must be a positive number of requests per second, got {rate_per_s:g}")
        key = float(rate_per_s)
        if key not in self._found:
            self._found[key] = self._simulated(key)
        return self._found[key]

    def _simulated(self, rate_per_s: float) -> Expected:
        size = len(self._space)
        expected = Expected(*np.full((3, size), np.inf))
        ends_s = np.cumsum(self._unit_gaps) / rate_per_s
        begins_s = np.concatenate([[0.0], ends_s[:-1]])
        for share, least, intervals in STAGES:
            count = min(size, max(least, math.ceil(share * size)))
            for number in np.argsort(expected.cost, kind="stable")[:count].tolist():
                configuration = self._space.configuration(number)
                latencies_ms = self._latencies_ms(configuration, begins_s, ends_s, rate_per_s, intervals)
                mean_ms, p95_ms = latencies_ms.T
                threads, rate = self._space.threads[number], np.array(rate_per_s)
                costs = self._objective.costs(
                    PredictedIntervals(mean_ms, p95_ms, threads, answered_per_s=rate)
                )
                expected.cost[number] = costs.mean()
                expected.mean_ms[number], expected.p95_ms[number] = mean_ms.mean(), p95_ms.mean()
        for values in expected:
            values.setflags(write=False)
        return expected

    def _latencies_ms(
        self,
        configuration: Configuration,
        begins_s: np.ndarray,
        ends_s: np.ndarray,
        rate_per_s: float,
        intervals: int,
    ) -> np.ndarray:
        """(intervals, 2) mean and p95 of each interval in which anything was answered."""
        scenario = self._scenario
        table_s = scenario.machine.table(configuration)
        c, full_size = table_s.shape
        mean_work = float(self._work.mean()) if len(self._work) else 1.0
        stable = rate_per_s * mean_work * table_s[-1, -1] < c * full_size
        carries = scenario.carry_backlog and stable
        requests = intervals * self._requests
        latencies_ms = interval_latencies_ms(
            Rules(
                sharing=scenario.discipline == "ps",
                padded=False,
                delay_s=1e-6 * configuration.get("max_queue_delay_us", 0),
                threads=1.0,
                instances=c,
                full_size=full_size,
            ),
            Service(table_s, self._factors),
            Intervals(begins_s[:requests], ends_s[:requests], self._work[:requests], self._requests, carries),
        )
        if carries:
            latencies_ms = latencies_ms[int(_WARM_UP * intervals) :]
        return latencies_ms[~np.isnan(latencies_ms[:, 0])]
