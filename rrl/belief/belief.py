"""The joint belief that agent and guard decide by: what would a configuration cost, and how sure is that?

    interval -> forecast, service times, model error          `knowledge`
    cost of c = replay of arrivals, times exp(error)           `log_costs`, `log_costs_ahead`
    cost of keeping c: of what may come, and of what came      `log_costs_kept`

| symbol | here | meaning |
|---|---|---|
| S, A, ρ, p | `knowledge` | service times, arrivals to come, the queueing model's errors, failures |
| R(c, A, S) | `replay` | latencies of the arrivals A under c with service times S |

All configurations are asked about by their numbers, K of them at once.
"""

from __future__ import annotations

import math
from copy import copy
from typing import NamedTuple

import numpy as np

from rrl.belief.knowledge import Knowledge
from rrl.belief.replay import SCREENING_REQUESTS, Latencies
from rrl.measurement import Measurement
from rrl.objective import LeastResources, Objective, PredictedIntervals, log_sd_of, with_failures
from rrl.queueing.windows import Windows, as_windows

FELT_BY = 0.1  # ln by which latency is changed to see what a cost makes of it
LARGEST_COST = 1e9  # stands for an infinite one in a mean
# Of the 95 % quantile of n standard normal numbers, times sqrt(n): sqrt(p (1 - p)) / phi(z_p), for large n.
QUANTILE_SD = 2.11


class Predicted(NamedTuple):
    """Of K configurations."""

    cost: np.ndarray  # (K,) mean over what may arrive, weighed by requests per s
    p95_ms: np.ndarray  # (K,) likewise
    felt: np.ndarray | float = 1.0  # (K,) d ln cost / d ln latency


class Work(NamedTuple):
    """What the load expected keeps busy under each of a space's configurations: (size,) each."""

    in_service: np.ndarray  # batches on average, beside nobody; more than `instances` where it is not borne
    instances: np.ndarray
    threads: np.ndarray  # of one instance
    slope: np.ndarray  # d ln S / d ln n: how much busy instances slow each other

    @classmethod
    def idle(cls, instances: np.ndarray) -> Work:
        """That of a model without requests, whose configurations have so many instances."""
        ones = np.ones(len(instances))
        return cls(0 * ones, instances.astype(float), ones, 0 * ones)

    def of(self, numbers: np.ndarray) -> Work:
        """That of some configurations."""
        return Work(*(column[numbers] for column in self))


class Belief(Knowledge):
    """What follows for every configuration from what is known of one server."""

    def standard_deviations(self, numbers: np.ndarray, beside: int | None = None) -> np.ndarray:
        """(K,) of ln of the service time that decides each cost, or of its ratio to that of `beside`."""
        if beside is None:
            return self.service_times.standard_deviations(self._deciding(numbers))
        entries = self._deciding(np.append(numbers, beside))
        return self.service_times.standard_deviations(entries[:-1], int(entries[-1]))

    def screened(self, numbers: np.ndarray, scale: np.ndarray) -> Predicted:
        """(K,) what is expected, roughly, raised by failures. The cost is in ms, but where threads count."""
        found = self._load.screened(numbers, scale, self.windows)
        ratio = with_failures(self._ratio(numbers)[:, 0], self.failures.of(numbers))
        mean_ms, p95_ms = ratio * found.mean_ms[:, 0], ratio * found.p95_ms[:, 0]
        in_threads = isinstance(self.objective, LeastResources)
        return Predicted(self._costs(numbers, found)[:, 0] if in_threads else mean_ms, p95_ms)

    def screened_at(self, numbers: np.ndarray, rate_per_s: float) -> np.ndarray:
        """(K,) mean latency in ms under Poisson arrivals of this rate, roughly, before any were seen."""
        gaps_s = np.random.default_rng(0).exponential(size=SCREENING_REQUESTS) / rate_per_s
        windows = as_windows([(np.cumsum(gaps_s), float(gaps_s.sum() + gaps_s[-1]))])
        return self.replay.screened(numbers, np.ones(len(numbers)), windows, rate_per_s, True).mean_ms[:, 0]

    def ahead(self, numbers: np.ndarray, scale: np.ndarray) -> Predicted:
        """(K,) what is expected of the load to come, with service times `scale` times as long."""
        found = self._replayed(numbers, scale, self.windows)
        felt = self._felt(numbers, found, self.windows)
        return self._predicted(numbers, found, self.windows)._replace(felt=felt)

    def supposing(self, objective: Objective, times: float = 1.0) -> Belief:
        """What is believed now, asked for another objective or a load so many times as high.

        It is to be asked, and not to learn: this belief and that one share what they know of the machine.
        """
        other = copy(self)
        other.objective, other._windows = objective, None
        other.forecast = self.forecast.times(times)
        other._load = self._load.supposing(other.forecast, objective, times)
        return other

    @property
    def requests_per_s(self) -> float:
        """Expected next, on average over bursts and lulls that came."""
        return self.forecast.rate_per_s / self.forecast.items_per_request

    @property
    def mean_requests_per_s(self) -> float:
        """Of what is remembered, while requests came."""
        return self.forecast.mean_rate_per_s / self.forecast.items_per_request

    def bears(self, numbers: np.ndarray, share: float = 1.0) -> np.ndarray:
        """(K,) bool: each is expected to bear the load expected next with this share of its capacity.

        The load is the mean over bursts and lulls, as a queue goes down in a lull; what a burst costs until
        then is what replays tell. A closed loop waits for its answers, so that it is always borne.
        """
        if self._load.waits_for_answers:
            return np.asarray(self.replay.capacity_per_s[numbers] > 0)
        return np.asarray(share * self.capacities_per_s(numbers) > self.requests_per_s)

    def capacities_per_s(self, numbers: np.ndarray, log_slower: np.ndarray | float = 0.0) -> np.ndarray:
        """(K,) the requests that each is expected to bear per s at most, on the machine as it is now."""
        slower = self._slower(self.service_times.log_slowness_ahead + log_slower)
        return np.asarray(self.replay.capacity_per_s[numbers] / (slower * self.forecast.items_per_request))

    def work(self) -> Work:
        """Something must be known."""
        numbers = np.arange(len(self.space))
        entries, table = self._typical(numbers), self.service_times.table
        log_times, batch = self.service_times.log_times, table.points[entries, 4]
        slower = math.exp(self.service_times.log_slowness_to_come)
        in_service = self.forecast.rate_per_s * slower * np.exp(log_times[entries]) / batch
        instances = self.replay.instances.astype(float)
        alone, together = self.replay.first_and_last_entries(entries)
        most = max(float(table.instances[-1]), 1.0)
        slope = (log_times[together] - log_times[alone]) / math.log(most) if most > 1 else 0.0 * in_service
        threads = table.points[entries, 0] * table.points[entries, 1]
        return Work(in_service, instances, threads, slope)

    def log_costs(
        self,
        numbers: np.ndarray,
        measurement: Measurement,
        beside: int | None = None,
        log_slower: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """(K,), (K,) mean and sd of ln of what each would have cost in the interval learned last.

        The sd is of the ratio to the cost of `beside`, one of these configurations, if it is given.
        `log_slower` (K,) is ln of what neighbours slow each by; by default what they did.
        """
        windows = as_windows(self._possible(measurement))
        slower = self.service_times.log_beside if log_slower is None else log_slower
        return self._log_costs(numbers, windows, self.service_times.log_slowness + slower, beside, 1)

    def lived_through_ms(
        self, number: int, stretches: list[tuple[np.ndarray, float]], log_slowness: np.ndarray
    ) -> np.ndarray:
        """(stretches,) mean latency of what one would have answered in each of consecutive stretches.

        The machine was so slow in each. What waits at the end of one is there in the next. NaN where nothing
        is answered.
        """
        slowness = np.exp(log_slowness - self.service_times.log_slowness_to_come)
        windows = as_windows(stretches, len(stretches), slowness)
        mean_ms = self._replayed(np.array([number]), np.ones(1), windows).mean_ms[0]
        return np.where(np.isfinite(mean_ms), self._ratio(np.array([number]))[0] * mean_ms, math.nan)

    def p95s_ms(
        self, numbers: np.ndarray, measurement: Measurement, log_slower: np.ndarray | None = None
    ) -> np.ndarray:
        """(K,) the p95 that each would have had in the interval learned last."""
        beside = self.service_times.log_beside if log_slower is None else log_slower
        slower = np.full(len(numbers), self._slower(self.service_times.log_slowness + beside))
        windows = as_windows(self._possible(measurement))
        return self._predicted(numbers, self._replayed(numbers, slower, windows), windows).p95_ms

    def log_costs_ahead(
        self, numbers: np.ndarray, beside: int | None = None, log_slower: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of the load to come, on the machine as it is expected to be."""
        log_slowness = self.service_times.log_slowness_ahead + log_slower
        return self._log_costs(numbers, self.windows, log_slowness, beside, len(self.windows.slowness))

    def log_costs_lately(
        self, numbers: np.ndarray, beside: int | None = None, log_slower: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of all that came lately, on the machine as it was, had each been in force all the time.

        Where what came is no load to bear again, that is of the load to come.
        """
        if not self._load.comes_as_it_came:
            return self.log_costs_ahead(numbers, beside, log_slower)
        windows = self.forecast.came(self.service_times.slowness)
        return self._log_costs(numbers, windows, log_slower, beside, len(windows.slowness), in_turn=True)

    def log_costs_kept(self, numbers: np.ndarray, beside: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """The same while it is kept (`while_kept`)."""
        ahead = self.log_costs_ahead(numbers, beside)
        if not self._load.comes_as_it_came:  # Lately is no other load.
            return ahead
        return while_kept(ahead, self.log_costs_lately(numbers, beside))

    def _log_costs(
        self,
        numbers: np.ndarray,
        windows: Windows,
        log_slowness: np.ndarray | float,
        beside: int | None,
        mean_of: int,
        in_turn: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The cost is of so many of such windows on average: the fewer, the more chance there is in it.

        They are as likely each, or come one after the other.
        """
        sd = self.standard_deviations(numbers, beside)
        error_sd = self.model_error.standard_deviations(numbers, beside)
        slower = self._slower(log_slowness)
        found = [self._replayed(numbers, slower * np.exp(z * sd), windows) for z in (-1.0, 0.0, 1.0)]
        costs = [self._predicted(numbers, each, windows, in_turn).cost for each in found]
        logs = [np.log(np.maximum(each, 1e-9)) for each in costs]
        spread = 0.5 * (logs[2] - logs[0])
        answered = (found[1].completions > 0).all(axis=0)
        by_window = np.log(np.clip(self._costs(numbers, found[1])[:, answered], 1e-9, LARGEST_COST))
        error_sd = error_sd * self._felt(numbers, found[1], windows, in_turn)
        if beside is not None:
            by_window = by_window - by_window[np.flatnonzero(numbers == beside)[:1]]
        chance = by_window.std(axis=1) / math.sqrt(mean_of) if answered.any() else 0.0
        return logs[1], np.sqrt(spread**2 + error_sd**2 + chance**2)

    def _felt(
        self, numbers: np.ndarray, latencies: Latencies, windows: Windows, in_turn: bool = False
    ) -> np.ndarray | float:
        """(K,) d ln cost / d ln latency.

        It is below 1 where the clients of a closed loop take their time too. Where threads count it is 0, and
        more than 1 near the limit.
        """
        if not (self._load.waits_for_answers or isinstance(self.objective, LeastResources)):
            return 1.0
        less, more = (
            np.log(np.maximum(self._predicted(numbers, latencies, windows, in_turn, each).cost, 1e-9))
            for each in (-FELT_BY, FELT_BY)
        )
        return np.asarray((more - less) / (2 * FELT_BY))

    def _replayed(self, numbers: np.ndarray, scale: np.ndarray, windows: Windows) -> Latencies:
        return self._load.replayed(numbers, scale, windows, self.sharing, self._ratio(numbers))

    def _predicted(
        self,
        numbers: np.ndarray,
        latencies: Latencies,
        windows: Windows,
        in_turn: bool = False,
        log_error: float = 0.0,
    ) -> Predicted:
        """Windows are as likely each, or come in turn. Most requests come in those of a high load.

        `log_error`: the error of the queueing model is so much larger than believed.
        """
        lengths_s = 1.0 if in_turn else np.diff(windows.edge_s)
        weights = np.maximum(latencies.completions / lengths_s, 1e-9)
        weights = weights / weights.sum(axis=1, keepdims=True)
        costs = np.minimum(self._costs(numbers, latencies, log_error), LARGEST_COST)
        p95_ms = self._ratio(numbers) * np.minimum(latencies.p95_ms, LARGEST_COST)
        return Predicted((weights * costs).sum(axis=1), (weights * p95_ms).sum(axis=1))

    def _costs(self, numbers: np.ndarray, latencies: Latencies, log_error: float = 0.0) -> np.ndarray:
        """(K, windows), if the error of the queueing model is so much larger than believed: ln."""
        ratio = self._ratio(numbers) * math.exp(log_error)
        threads = self.space.threads[numbers][:, None]
        fail = self.failures.of(numbers)[:, None]
        felt = self._load.with_error(latencies, ratio)
        answered_per_s = felt.answered_per_s / self.forecast.items_per_request
        log_p95_sd = self._log_p95_sd(latencies)
        return self.objective.costs(
            PredictedIntervals(felt.mean_ms, felt.p95_ms, threads, fail, answered_per_s, log_p95_sd)
        )

    def _log_p95_sd(self, latencies: Latencies) -> np.ndarray:
        """(K, windows) of ln of the p95 of as many requests that come as likely as those of each window.

        It is that of the quantile of a sample of lognormal latencies.
        """
        if self.objective.slo_p95_ms is None:
            return np.zeros(())
        log_sd = log_sd_of(latencies.mean_ms, latencies.p95_ms)
        requests = latencies.completions / self.forecast.items_per_request
        return np.asarray(QUANTILE_SD * log_sd / np.sqrt(np.maximum(requests, 1.0)))

    def _ratio(self, numbers: np.ndarray) -> np.ndarray:
        """(K, 1) of latencies to replayed ones."""
        return np.exp(self.model_error.log_ratio[numbers])[:, None]

    def typical_entry(self, number: int) -> int:
        """That of the service time that a configuration needs most, at the mean load expected next."""
        return int(self._typical(np.array([number]))[0])

    def _deciding(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) the entries of the service times by which the cost of each is decided."""
        if self._load.waits_for_answers:
            return self._typical(numbers)
        return self.replay.deciding_entries(numbers, self.windows)

    def _typical(self, numbers: np.ndarray) -> np.ndarray:
        return self.replay.typical_entries(numbers, self.forecast.rate_per_s, self._estimates_busy)


def while_kept(
    ahead: tuple[np.ndarray, np.ndarray], lately: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(K,), (K,) mean and sd of ln of a cost: of the load to come or, as likely, of what came lately.

    So what is kept bears what came, as it may come again. It is as unsure as the less sure of both.
    """
    return np.logaddexp(ahead[0], lately[0]) - math.log(2), np.maximum(ahead[1], lately[1])
