"""The prior of the latency estimator: what a queue does with the service times learned so far.

Every configuration is screened by SERF's M/D_interf/c model (`rrl.queueing.interference`) or, where requests
are batched, which that model does not know, by a short simulation. The most promising are simulated longer
in the compiled simulator (`rrl.queueing.kernels`), all under the same arrivals (common random numbers).

| symbol | here | meaning |
|---|---|---|
| λ | `rate_per_s` | arrival rate |
| c, B, d | `instances`, `max_batch_size`, `delay_s` | of each configuration |
| S | `_times_s` | predicted service times, from `ServiceTimeModel` |
| max b·c/S[c, b] | `capacity_per_s` | the rate from which a configuration is unstable; 0 where not allowed |
| | `scale` | (K,) what each configuration's service times are multiplied by, e.g. to be optimistic |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from rrl.guided.service_times import ServiceTimeModel
from rrl.guided.telemetry import busy_instances
from rrl.queueing import interference
from rrl.queueing.kernels import Candidates, Intervals, candidate_latencies_ms
from rrl.space import ConfigurationSpace

REQUESTS_PER_INTERVAL = 100
INTERVALS = 15  # of the longer simulation
SCREENING_REQUESTS = 150
_VARIATION_DRAWS = 1021  # service-time factors, used in turn


class Latencies(NamedTuple):
    """Of K configurations in simulated intervals."""

    mean_ms: np.ndarray  # (K, intervals)
    p95_ms: np.ndarray  # (K, intervals)


@dataclass(frozen=True)
class Circumstances:
    """What is simulated, the configuration apart."""

    rate_per_s: float
    log_sd: float = 0.0  # of the rate, from interval to interval
    variation: float = 0.0  # σ of a batch's lognormal service time
    carries: bool = True  # what waits at an interval's end is there at the next one's start


class LatencyPrior:
    """Predicts the latencies of a space's configurations, given by their numbers."""

    def __init__(
        self,
        space: ConfigurationSpace,
        service_times: ServiceTimeModel,
        rng: np.random.Generator,
        excluded: frozenset[int] = frozenset(),
    ) -> None:
        self.allowed = ~np.isin(np.arange(len(space)), list(excluded))
        knob = {name: space.values[:, k] for k, name in enumerate(space.names)}
        ones = np.ones(len(space), dtype=int)
        inter, intra = knob.get("inter_op_threads", ones), knob.get("intra_op_threads", ones)
        self.instances = knob.get("instances", ones)
        self.max_batch_size = knob.get("max_batch_size", ones)
        self.delay_s = 1e-6 * knob.get("max_queue_delay_us", 0 * ones).astype(float)
        self._service_times = service_times
        self._positions = (
            np.searchsorted(service_times.inter, inter),
            np.searchsorted(service_times.intra, intra),
            np.searchsorted(service_times.instances, self.instances),
        )
        self._table = np.ravel_multi_index(self._positions, service_times.shape[:3])
        self._times_s = np.empty((0, 0, 0))  # (tables, N, B), from the first `refresh` on
        self.capacity_per_s = np.zeros(len(space))  # likewise
        self._batches = np.arange(1, service_times.batch[-1] + 1)
        gaps = rng.exponential(size=(INTERVALS, REQUESTS_PER_INTERVAL))
        self._unit_gaps = gaps / gaps.mean()
        self._rate_quantiles = rng.permutation(ndtri((np.arange(INTERVALS) + 0.5) / INTERVALS))
        self._unit_variation = rng.standard_normal(_VARIATION_DRAWS)

    def refresh(self, times_s: np.ndarray | None = None) -> None:
        """Takes the service times as they are known now, or these (tables, N, B)."""
        times_s = self._service_times.service_time_s() if times_s is None else times_s
        self._times_s = self._between_batch_sizes(times_s)
        rates = self.instances[:, None] * self._batches / self._times_s[self._table, self.instances - 1]
        rates = np.where(self._batches <= self.max_batch_size[:, None], rates, 0.0)
        self.capacity_per_s = np.where(self.allowed, rates.max(axis=1), 0.0)

    def disallow(self, numbers: np.ndarray) -> None:
        """These are not to be proposed from the next `refresh` on."""
        self.allowed[numbers] = False

    def typical_entries(
        self, numbers: np.ndarray, rate_per_s: float, as_estimated: bool = False
    ) -> np.ndarray:
        """(K,) the service time that matters most to each: with as many busy as the load needs.

        `as_estimated`: with as many as `telemetry` estimates on average where a target does not tell, as
        about that entry most is learned.
        """
        instances = self.instances[numbers]
        alone_s = self._times_s[self._table[numbers], instances - 1, 0]
        in_service = rate_per_s * alone_s
        busy = busy_instances(in_service, instances) if as_estimated else np.clip(in_service, 1, instances)
        wait_s = self.delay_s[numbers] + alone_s / instances
        batch = np.clip(rate_per_s * wait_s, 1, self.max_batch_size[numbers])
        nearest = np.argmin(np.abs(np.log(batch[:, None] / self._service_times.batch)), axis=1)
        inter, intra, position = (axis[numbers] for axis in self._positions)
        return self._service_times.entries(inter, intra, position, np.round(busy).astype(int) - 1, nearest)

    def screened(self, numbers: np.ndarray, scale: np.ndarray, rate_per_s: float) -> Latencies:
        """(K, 1) mean and p95 latency, roughly."""
        if len(self._batches) == 1:
            times_s = scale[:, None] * self._times_s[self._table[numbers], :, 0]
            queue = interference.predict(times_s, self.instances[numbers], rate_per_s)
            return Latencies(1e3 * queue.mean_latency_s[:, None], 1e3 * queue.p95_latency_s[:, None])
        gaps_s = self._unit_gaps.ravel()[:SCREENING_REQUESTS] / rate_per_s
        return self._latencies(numbers, scale, gaps_s, SCREENING_REQUESTS, np.ones(1), carries=False)

    def simulated(self, numbers: np.ndarray, scale: np.ndarray, given: Circumstances) -> Latencies:
        """(K, INTERVALS) mean and p95 latency; the intervals' rates are quantiles of the rate expected."""
        rates_per_s = given.rate_per_s * np.exp(given.log_sd * self._rate_quantiles - given.log_sd**2 / 2)
        gaps_s = (self._unit_gaps / rates_per_s[:, None]).ravel()
        factors = np.exp(given.variation * self._unit_variation - given.variation**2 / 2)
        return self._latencies(numbers, scale, gaps_s, REQUESTS_PER_INTERVAL, factors, given.carries)

    def _latencies(
        self,
        numbers: np.ndarray,
        scale: np.ndarray,
        gaps_s: np.ndarray,
        requests: int,
        factors: np.ndarray,
        carries: bool,
    ) -> Latencies:
        ends_s = np.cumsum(gaps_s)
        candidates = Candidates(
            self.instances[numbers],
            self.max_batch_size[numbers],
            self.delay_s[numbers],
            self._table[numbers],
            scale,
        )
        intervals = Intervals(ends_s - gaps_s, ends_s, np.empty(0), requests, carries)
        latencies_ms = candidate_latencies_ms(candidates, self._times_s, factors, intervals)
        return Latencies(*np.nan_to_num(np.moveaxis(latencies_ms, -1, 0), nan=np.inf))

    def _between_batch_sizes(self, times_s: np.ndarray) -> np.ndarray:
        """(tables, N, B) for every batch size 1..B: ln S is linear in ln b between those of the table."""
        grid = self._service_times.batch
        if len(grid) == len(self._batches):
            return times_s
        position = np.interp(np.log(self._batches), np.log(grid), np.arange(len(grid)))
        low = np.floor(position).astype(int)
        high = np.minimum(low + 1, len(grid) - 1)
        weight = position - low
        result: np.ndarray = times_s[..., low] ** (1 - weight) * times_s[..., high] ** weight
        return result
