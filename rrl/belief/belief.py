"""The joint belief that agent and guard decide by: what would a configuration cost, and how sure is that?

    interval -> forecast, service times, model error          `learn`
    cost of c = replay of arrivals, times exp(error)           `log_costs`, `log_costs_ahead`

| symbol | here | meaning |
|---|---|---|
| S | `service_times` | posterior of service times and of the machine's drift |
| A | `forecast` | the arrivals that may come next |
| ρ | `model_error` | what the queueing model gets wrong of each configuration |
| p | `failures` | the share of requests that fails under each configuration |
| R(c, A, S) | `replay` | latencies of the arrivals A under c with service times S |

What was seen of a configuration is compared with a replay of the same interval: the same arrivals, and the
machine as it was then. So a burst is nobody's fault, and configurations that met different minutes compare.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

from rrl.belief import telemetry
from rrl.belief.discipline import Disciplines, Hypothesised, SeenLatency
from rrl.belief.failure_shares import FailureShares
from rrl.belief.learned_prior import Kind, shipped
from rrl.belief.load_forecast import (
    LoadForecast,
    arrival_offsets_s,
    as_windows,
    items_per_request,
)
from rrl.belief.model_error import ERROR_LIMIT, ERROR_SD, ReplayError
from rrl.belief.offered_load import offered_load
from rrl.belief.remembered import USUAL_INTERVALS
from rrl.belief.replay import SCREENING_REQUESTS, Latencies, Replay
from rrl.belief.service_times import ServiceTimeModel
from rrl.measurement import Measurement, ServiceTimes, tells_nothing
from rrl.objective import Objective, PredictedIntervals, with_failures
from rrl.queueing.kernels import Windows
from rrl.seeding import Seed, whole_seed
from rrl.space import Configuration, ConfigurationSpace, with_fixed

# Up to this σ service times count as deterministic.
MAX_DETERMINISTIC_SD = 0.08
# The share of an interval's requests that may wait when it begins and still count as no backlog.
MAX_SHARE_CARRIED_OVER = 0.05
# Standard deviation of ln of an interval's latency, beside its arrivals and its service times.
REPLAY_SD = 0.03
# So many stretches that may have been are replayed where arrivals are not told, or service times vary.
UNCERTAIN_STRETCHES = 8
# Standard deviation of ln of what is learned of an interval that was aborted, or that answered nothing.
ABORTED_SD = 0.1
# An interval, and the next one, in which its queue drains.
WINDOWS_TOGETHER = 2
FELT_BY = 0.1  # ln by which latency is changed to see what a cost makes of it
LARGEST_COST = 1e9  # stands for an infinite one in a mean


class Predicted(NamedTuple):
    """Of K configurations."""

    cost: np.ndarray  # (K,) mean over what may arrive, weighed by requests
    p95_ms: np.ndarray  # (K,) likewise


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


class Belief:
    """What is believed of one server. It is deterministic but for the seeded numbers of its replays."""

    def __init__(
        self,
        space: ConfigurationSpace,
        objective: Objective,
        cores: int | None = None,
        excluded: frozenset[int] = frozenset(),
        seed: Seed = 0,
        error_sd: float = ERROR_SD,
        kinds: Sequence[Kind] | None = None,
        found: Configuration | None = None,
        concurrency: int | None = None,
        nodes: int | None = None,
    ) -> None:
        """`concurrency`: that of a closed loop, which is the load; None: requests come as users send them.

        `nodes`: of a cluster whose serving units have a queue each. All is told by node then. None: one queue
        serves all. ValueError for a closed loop on such a cluster.

        `kinds` is the learned prior; None: the one that comes with the package.

        `error_sd`: of what the queueing model gets wrong (`ReplayError`). A knob that is not in the space has
        the value in `found`, or 1 (no delay).
        """
        if nodes is not None and concurrency is not None:
            raise ValueError(
                "a closed loop over the serving units of a cluster is not modelled: give nodes or concurrency"
            )
        space, seed = with_fixed(space, found or {}), whole_seed(seed)
        self.space, self._objective = space, objective
        """`space`: the grid, with the knobs that are not tuned as they were found."""
        rng = np.random.default_rng(seed)
        service_times = ServiceTimeModel(space, cores, shipped() if kinds is None else kinds)
        errors = ReplayError(space, error_sd)

        def believed(sharing: bool) -> Hypothesised:
            return Hypothesised(sharing, service_times.anew(by_mean_busy=sharing), errors.anew())

        self._disciplines = Disciplines(believed)
        self.replay = Replay(space, self.service_times.table, rng, excluded, nodes)
        self.forecast = LoadForecast(rng)
        self._load = offered_load(self.replay, self.forecast, objective, concurrency)
        self.failures = FailureShares(space)
        self._seed = seed
        self._carries = False  # Requests were seen to wait from one interval into the next.
        self._estimates_busy = False  # The target does not tell how many instances were busy.
        self._variations: deque[float] = deque(maxlen=USUAL_INTERVALS)  # σ by interval
        self._intervals = 0
        self._in_force = -1
        self._left_over = 0  # batches that may still have been in service when the last interval ended
        self._windows: Windows | None = None  # those that may come next
        self.replay.refresh(self.service_times.service_time_s())

    @property
    def known(self) -> bool:
        """False until the first service time."""
        return self.service_times.known

    @property
    def service_times(self) -> ServiceTimeModel:
        return self._disciplines.in_force.service_times

    @property
    def model_error(self) -> ReplayError:
        return self._disciplines.in_force.model_error

    @property
    def sharing(self) -> bool:
        """True where batches in service are believed to share processors from moment to moment."""
        return self._disciplines.in_force.sharing

    @property
    def windows(self) -> Windows:
        """The arrivals that may come next."""
        if self._windows is None:
            self._windows = self.forecast.windows(
                WINDOWS_TOGETHER if self._carries else 1, self.service_times.speeds
            )
        return self._windows

    @property
    def intervals(self) -> int:
        """How many were learned from."""
        return self._intervals

    @property
    def log_slowness(self) -> float:
        """ln of how many times as long everything took in the last interval, over what is usual."""
        return self.service_times.log_slowness

    def slowed_by(self, log_slower: Mapping[int, float]) -> None:
        """Takes for known what other models slowed past intervals by: ln, by the interval's number from 1."""
        for each in self._disciplines.all:
            each.service_times.slowed_by(log_slower)

    def learn(self, number: int, measurement: Measurement, log_slower: float = 0.0) -> None:
        """Takes in an interval that has no gap. Other models made batches take so much longer: ln."""
        self.failures.learn(number, measurement)
        if measurement.arrivals == 0 or measurement.duration_s <= 0:
            return
        self._intervals += 1
        self.forecast.add(measurement)
        self._windows = None
        self._load.learn(measurement)
        self._carries = self._carries or measurement.backlog > 0
        self._learn_service_times(number, measurement, log_slower)
        self._in_force = number
        self._left_over = min(int(self.replay.instances[number]), measurement.backlog)
        if not self.known:
            return
        self.service_times.fit()
        self._refresh()
        self._learn_error(number, measurement)

    def standard_deviations(self, numbers: np.ndarray, beside: int | None = None) -> np.ndarray:
        """(K,) of ln of the service time that matters most to each, or of its ratio to that of `beside`."""
        entries = self._typical(numbers)
        other = None if beside is None else int(self._typical(np.array([beside]))[0])
        return self.service_times.standard_deviations(entries, other)

    def screened(self, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(K,) mean latency expected in ms, roughly, raised by the failures expected."""
        mean_ms = self._load.screened_ms(numbers, scale, self.windows)
        mean_ms = with_failures(mean_ms, self.failures.of(numbers))
        return np.asarray(mean_ms * np.exp(self.model_error.log_ratio[numbers]))

    def screened_at(self, numbers: np.ndarray, rate_per_s: float) -> np.ndarray:
        """(K,) mean latency in ms under Poisson arrivals of this rate, roughly, before any were seen."""
        gaps_s = np.random.default_rng(0).exponential(size=SCREENING_REQUESTS) / rate_per_s
        windows = as_windows([(np.cumsum(gaps_s), float(gaps_s.sum() + gaps_s[-1]))])
        return self.replay.screened(numbers, np.ones(len(numbers)), windows, rate_per_s, True)

    def ahead(self, numbers: np.ndarray, scale: np.ndarray) -> Predicted:
        """(K,) what is expected of the load to come, with service times `scale` times as long."""
        return self._predicted(numbers, self._replayed(numbers, scale, self.windows))

    def supposing(self, objective: Objective, times: float = 1.0) -> Belief:
        """What is believed now, asked for another objective or a load so many times as high.

        It is to be asked, and not to learn: this belief and that one share what they know of the machine.
        """
        other = copy(self)
        other._objective, other._windows = objective, None
        other.forecast = self.forecast.times(times)
        other._load = self._load.supposing(other.forecast, objective, times)
        return other

    @property
    def requests_per_s(self) -> float:
        """Expected next."""
        return self.forecast.rate_per_s / self.forecast.items_per_request

    def bears(self, numbers: np.ndarray, share: float = 1.0) -> np.ndarray:
        """(K,) bool: each is expected to bear the load expected next with this share of its capacity.

        A closed loop waits for its answers, so that it is always borne.
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
        found = self._replayed(numbers, slower, as_windows(self._possible(measurement)))
        return self._predicted(numbers, found).p95_ms

    def log_costs_ahead(
        self, numbers: np.ndarray, beside: int | None = None, log_slower: np.ndarray | float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same of the load to come, on the machine as it is expected to be."""
        log_slowness = self.service_times.log_slowness_ahead + log_slower
        return self._log_costs(numbers, self.windows, log_slowness, beside, len(self.windows.slowness))

    def _log_costs(
        self,
        numbers: np.ndarray,
        windows: Windows,
        log_slowness: np.ndarray | float,
        beside: int | None,
        mean_of: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The cost is of so many of such windows on average: the fewer, the more chance there is in it."""
        sd = self.standard_deviations(numbers, beside)
        error_sd = self.model_error.standard_deviations(numbers, beside)
        slower = self._slower(log_slowness)
        found = [self._replayed(numbers, slower * np.exp(z * sd), windows) for z in (-1.0, 0.0, 1.0)]
        logs = [np.log(np.maximum(self._predicted(numbers, each).cost, 1e-9)) for each in found]
        spread = 0.5 * (logs[2] - logs[0])
        answered = (found[1].completions > 0).all(axis=0)
        by_window = np.log(np.clip(self._costs(numbers, found[1])[:, answered], 1e-9, LARGEST_COST))
        if self._load.waits_for_answers:
            error_sd = error_sd * self._felt(numbers, found[1])
        if beside is not None:
            by_window = by_window - by_window[np.flatnonzero(numbers == beside)[:1]]
        chance = by_window.std(axis=1) / math.sqrt(mean_of) if answered.any() else 0.0
        return logs[1], np.sqrt(spread**2 + error_sd**2 + chance**2)

    def _felt(self, numbers: np.ndarray, latencies: Latencies) -> np.ndarray:
        """(K,) d ln cost / d ln latency: below 1 where the clients of a closed loop take their time too."""
        less, more = (
            np.log(np.clip(self._costs(numbers, latencies, each), 1e-9, LARGEST_COST)).mean(axis=1)
            for each in (-FELT_BY, FELT_BY)
        )
        return np.asarray((more - less) / (2 * FELT_BY))

    def _slower(self, log_slowness: np.ndarray | float) -> np.ndarray | float:
        """How many times as long as in the replay's table everything takes on a machine so slow."""
        log = log_slowness - self.service_times.log_slowness_to_come
        return np.exp(log) if isinstance(log, np.ndarray) else math.exp(log)

    def _replayed(self, numbers: np.ndarray, scale: np.ndarray, windows: Windows) -> Latencies:
        return self._load.replayed(numbers, scale, windows, self.sharing, self._ratio(numbers))

    def _predicted(self, numbers: np.ndarray, latencies: Latencies) -> Predicted:
        weights = np.maximum(latencies.completions, 1e-9)
        weights = weights / weights.sum(axis=1, keepdims=True)
        costs = np.minimum(self._costs(numbers, latencies), LARGEST_COST)
        p95_ms = self._ratio(numbers) * np.minimum(latencies.p95_ms, LARGEST_COST)
        return Predicted((weights * costs).sum(axis=1), (weights * p95_ms).sum(axis=1))

    def _costs(self, numbers: np.ndarray, latencies: Latencies, log_error: float = 0.0) -> np.ndarray:
        """(K, windows), if the error of the queueing model is so much larger than believed: ln."""
        ratio = self._ratio(numbers) * math.exp(log_error)
        threads = self.space.threads[numbers][:, None]
        fail = self.failures.of(numbers)[:, None]
        felt = self._load.with_error(latencies, ratio)
        return self._objective.costs(
            PredictedIntervals(felt.mean_ms, felt.p95_ms, threads, fail, felt.answered_per_s)
        )

    def _ratio(self, numbers: np.ndarray) -> np.ndarray:
        """(K, 1) of latencies to replayed ones."""
        return np.exp(self.model_error.log_ratio[numbers])[:, None]

    def _typical(self, numbers: np.ndarray) -> np.ndarray:
        return self.replay.typical_entries(numbers, self.forecast.rate_per_s, self._estimates_busy)

    def _refresh(self) -> None:
        """Lets the replay have what is believed of the machine as it will be."""
        self.replay.refresh(self.service_times.service_time_s(self.service_times.log_slowness_to_come))

    def _learn_service_times(self, number: int, measurement: Measurement, log_slower: float) -> None:
        configuration = self.space.configuration(number)
        self._estimates_busy = not telemetry.tells_busy_instances(measurement)
        told = [row for row in telemetry.service_times(measurement) if self._of_this(row, number)]
        in_service = self.replay.unit_load[number] * telemetry.batches_in_service(measurement)
        shares = telemetry.busy_shares(in_service, int(self.replay.instances[number]))
        expected_s = partial(self.service_times.expected_s, configuration)
        rows = [part for row in told for part in telemetry.told_apart(row, shares, expected_s)]
        self._learn_variation(measurement, told)
        mean_busy = telemetry.mean_busy(shares) if self._estimates_busy else None
        if self._disciplines.other is None and telemetry.tells_mean_busy(rows):
            variation = telemetry.variation(measurement, told)
            varies = variation is not None and variation > MAX_DETERMINISTIC_SD
            self._disciplines.begin(varies, self._intervals - 1)
        for each in self._disciplines.all:
            each.service_times.add(configuration, rows, self.replay.variation, mean_busy, log_slower)

    def _of_this(self, row: ServiceTimes, number: int) -> bool:
        """False for what may be of batches that began under another configuration."""
        left = 0 if self._in_force == number else self._left_over
        return row.busy_instances <= self.replay.instances[number] and row.count >= 5 * left

    def _learn_variation(self, measurement: Measurement, rows: list[ServiceTimes]) -> None:
        """Learns the usual σ of lognormal service times, once several intervals have told of it.

        Where the target tells none, a typical one is taken.
        """
        told = telemetry.variation(measurement, rows)
        if told is None:
            if not self._variations:
                self.replay.variation = telemetry.UNTOLD_VARIATION
            return
        self._variations.append(told)
        typical = median(self._variations)
        varies = len(self._variations) > 2 and typical > MAX_DETERMINISTIC_SD
        self.replay.variation = typical if varies else 0.0

    def _learn_error(self, number: int, measurement: Measurement) -> None:
        """Learns what the replay of this interval got wrong.

        Nothing is learned from an interval that began or ended with a backlog, or that was expected to answer
        nothing. One that answered nothing is as slow as an error can be, and one that was aborted no faster
        than it was until then.
        """
        if tells_nothing(measurement):
            return
        if measurement.completions == 0:
            if measurement.failures:  # These count by themselves.
                return
            self.model_error.learn(number, ERROR_LIMIT, ABORTED_SD**2)
            return
        backlog_before = measurement.backlog - measurement.backlog_growth
        few = max(2 * self.replay.instances[number], MAX_SHARE_CARRIED_OVER * measurement.completions)
        observed_ms = measurement.latency.mean_ms
        grew = measurement.backlog_growth > few and not measurement.aborted
        carries_over = not self._load.waits_for_answers and (backlog_before > few or grew)
        if carries_over or not observed_ms > 0:
            return
        stretches = self._possible(measurement)
        slower = self._slower(self.service_times.log_slowness + self.service_times.log_beside)
        windows = as_windows(stretches, slowness=np.full(len(stretches), slower))
        this = np.array([number])
        mean_ms = self._load.as_learned_last(this, np.ones(1), windows, self.sharing).mean_ms[0]
        if not np.isfinite(mean_ms).all():
            return
        logs = np.log(mean_ms)
        variance = REPLAY_SD**2 + float(np.var(logs))
        error = math.log(observed_ms) - float(logs.mean())
        if measurement.aborted:
            if error > 0:
                self.model_error.learn(number, error, variance + ABORTED_SD**2)
            return
        self.model_error.learn(number, error, variance)
        if measurement.arrival_summary.offsets_s and not self._load.waits_for_answers:
            seen = SeenLatency(self._intervals, number, stretches[0], observed_ms, variance)
            self._disciplines.compare(seen, self.replay)
            self._refresh()

    def _possible(self, measurement: Measurement) -> list[tuple[np.ndarray, float]]:
        """The stretches that the interval learned last may have been: one, if nothing of it is uncertain."""
        certain = measurement.arrival_summary.offsets_s and not self.replay.variation
        rng = np.random.default_rng([self._seed, self._intervals])
        return [self._as_seen(measurement, rng) for _ in range(1 if certain else UNCERTAIN_STRETCHES)]

    def _as_seen(self, measurement: Measurement, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """The arrivals of an interval, behind what waited when it began, and its length."""
        offsets_s = arrival_offsets_s(measurement, rng)
        waiting = max(0, measurement.backlog - measurement.backlog_growth)
        waiting = round(waiting * items_per_request(measurement))
        return np.concatenate([np.zeros(waiting), offsets_s]), measurement.duration_s
