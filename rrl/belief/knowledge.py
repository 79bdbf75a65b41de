"""What is learned of one server, interval by interval.

| symbol | here | meaning |
|---|---|---|
| S | `service_times` | posterior of service times and of the machine's drift |
| A | `forecast` | the arrivals that may come next |
| ρ | `model_error` | what the queueing model gets wrong of each configuration |
| p | `failures` | the share of requests that fails under each configuration |

What was seen of a configuration is compared with a replay of the same interval: the same arrivals, and the
machine as it was then. So a burst is nobody's fault, and configurations that met different minutes compare.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import numpy as np

from rrl.belief import telemetry
from rrl.belief.discipline import Disciplines, Hypothesised, SeenLatency
from rrl.belief.failure_shares import FailureShares
from rrl.belief.learned_prior import Kind, shipped
from rrl.belief.load.forecast import MAX_REQUESTS_OF_ONE, LoadForecast, items_per_request
from rrl.belief.load.offered import offered_load
from rrl.belief.model_error import ERROR_LIMIT, ModelDiscrepancy
from rrl.belief.remembered import USUAL_INTERVALS
from rrl.belief.replay import Latencies, Replay
from rrl.belief.service_times import ServiceTimeModel
from rrl.measurement import Measurement, ServiceTimes, tells_nothing
from rrl.objective import Objective
from rrl.queueing.windows import Windows, as_windows, shortened
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


class Knowledge:
    """What is known of one server. It is deterministic but for the seeded numbers of its replays."""

    def __init__(
        self,
        space: ConfigurationSpace,
        objective: Objective,
        cores: int | None = None,
        excluded: frozenset[int] = frozenset(),
        seed: Seed = 0,
        kinds: Sequence[Kind] | None = None,
        found: Configuration | None = None,
        concurrency: int | None = None,
        nodes: int | None = None,
    ) -> None:
        """`concurrency`: that of a closed loop, which is the load; None: requests come as users send them.

        `nodes`: of a cluster whose serving units have a queue each. All is told by node then. None: one queue
        serves all. ValueError for a closed loop on such a cluster.

        `kinds` is the learned prior; None: the one that comes with the package.

        A knob that is not in the space has the value in `found`, or 1 (no delay).
        """
        if nodes is not None and concurrency is not None:
            raise ValueError(
                "a closed loop over the serving units of a cluster is not modelled: give nodes or concurrency"
            )
        space, seed = with_fixed(space, found or {}), whole_seed(seed)
        self.space, self.objective = space, objective
        """`space`: the grid, with the knobs that are not tuned as they were found."""
        rng = np.random.default_rng(seed)
        service_times = ServiceTimeModel(space, cores, shipped() if kinds is None else kinds)
        errors = ModelDiscrepancy(space)

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
    def model_error(self) -> ModelDiscrepancy:
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
                WINDOWS_TOGETHER if self._carries else 1, self.service_times.slowness
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
            self.passed(measurement.duration_s)
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

    def passed(self, duration_s: float) -> None:
        """In this time nothing came, or it is not known what did."""
        if duration_s > 0:
            self.forecast.passed(duration_s)

    def _slower(self, log_slowness: np.ndarray | float) -> np.ndarray | float:
        """How many times as long as in the replay's table everything takes on a machine so slow."""
        log = log_slowness - self.service_times.log_slowness_to_come
        return np.exp(log) if isinstance(log, np.ndarray) else math.exp(log)

    def _refresh(self) -> None:
        """Lets the replay have what is believed of the machine as it will be."""
        self.replay.refresh(self.service_times.service_time_s(self.service_times.log_slowness_to_come))

    def _learn_service_times(self, number: int, measurement: Measurement, log_slower: float) -> None:
        configuration = self.space.configuration(number)
        if all_told := telemetry.service_times(measurement):
            self._estimates_busy = not telemetry.tells_busy_instances(measurement)
        told = [row for row in all_told if self._of_this(row, number)]
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
        """Learns the usual σ of lognormal service times; where the target tells none, it is a typical one."""
        told = telemetry.variation(measurement, rows)
        if told is None:
            if not self._variations:
                self.replay.variation = telemetry.UNTOLD_VARIATION
            return
        self._variations.append(told)
        typical = median(self._variations)
        self.replay.variation = typical if typical > MAX_DETERMINISTIC_SD else 0.0

    def _learn_error(self, number: int, measurement: Measurement) -> None:
        """Learns what the replay of this interval got wrong.

        Nothing is learned from an interval that began or ended with a backlog, or that was expected to answer
        nothing. Else one that answered nothing is as slow as an error can be, and one that was aborted no
        faster than it was until then.
        """
        if tells_nothing(measurement):
            return
        if measurement.completions == 0:
            if measurement.failures:  # These count by themselves.
                return
            if self._expected_answers(number, measurement):
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
        logs = self._replayed_logs(number, stretches)
        if not np.isfinite(logs).all():
            return
        variance = REPLAY_SD**2 + float(np.var(logs))
        if not measurement.arrival_summary.offsets_s:
            variance += self._by_bursts(number, measurement, float(logs.mean())) ** 2
        error = math.log(observed_ms) - float(logs.mean())
        if measurement.aborted:
            if error > 0:
                self.model_error.learn(number, error, variance + ABORTED_SD**2)
            return
        self.model_error.learn(number, error, variance)
        if measurement.arrival_summary.offsets_s and not self._load.waits_for_answers:
            seen = SeenLatency(self._intervals, number, stretches[0], observed_ms, variance)
            if self._disciplines.compare(seen, self.replay):
                self._refresh()

    def _replayed_logs(self, number: int, stretches: list[tuple[np.ndarray, float]]) -> np.ndarray:
        """(stretches,) ln of the mean latency, had the interval learned last been each of these."""
        return np.asarray(np.log(self._replayed_then(number, stretches).mean_ms[0]))

    def _expected_answers(self, number: int, measurement: Measurement) -> bool:
        """True if in the interval learned last a request was expected to be answered before its end."""
        after = np.empty(0), measurement.duration_s  # in which the rest is answered
        stretches = [each for seen in self._possible(measurement) for each in (seen, after)]
        return bool((self._replayed_then(number, stretches, together=2).completions[0, ::2] >= 1).all())

    def _replayed_then(
        self, number: int, stretches: list[tuple[np.ndarray, float]], together: int = 1
    ) -> Latencies:
        """(1, stretches) on the machine as it was in the interval learned last."""
        slower = self._slower(self.service_times.log_slowness + self.service_times.log_beside)
        windows = as_windows(stretches, together, np.full(len(stretches), slower))
        return self._load.as_learned_last(np.array([number]), np.ones(1), windows, self.sharing)

    def _by_bursts(self, number: int, measurement: Measurement, log_ms: float) -> float:
        """ln of this latency over that under Poisson arrivals.

        No dispersion tells how long a burst lasts. So what bursts make of a latency is as uncertain.
        """
        poisson = self._possible(replace(measurement, dispersion=1.0))
        return log_ms - float(self._replayed_logs(number, poisson).mean())

    def _possible(self, measurement: Measurement) -> list[tuple[np.ndarray, float]]:
        """The stretches that the interval learned last may have been: one, if nothing of it is uncertain."""
        certain = measurement.arrival_summary.offsets_s and not self.replay.variation
        rng = np.random.default_rng([self._seed, self._intervals])
        return [self._as_seen(measurement, rng) for _ in range(1 if certain else UNCERTAIN_STRETCHES)]

    def _as_seen(self, measurement: Measurement, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """The arrivals of an interval, behind what waited when it began, and its length.

        Too many to replay are shortened.
        """
        offsets_s = self.forecast.offsets_s(measurement, rng)
        waiting = max(0, measurement.backlog - measurement.backlog_growth)
        waiting = round(waiting * items_per_request(measurement, self.forecast.items_per_request))
        offsets_s = np.concatenate([np.zeros(waiting), offsets_s])
        return shortened(offsets_s, measurement.duration_s, MAX_REQUESTS_OF_ONE)
