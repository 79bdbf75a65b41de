"""Service times learned on the way: what telemetry says of one configuration, carried over to all others.

A Gaussian process on the logarithm of the service time S, of the entries of `service_time_table`:

    ln S = ln S_1 + what `service_time_process` expects + what the interval shared (`drift`)

| part | class |
|---|---|
| the rows of past intervals | `Remembered` |
| what all rows of an interval share: how slow the machine was then | `MachineSlowness` |
| ln S of all entries, given all rows, averaged over hypotheses | `ServiceTimePosterior` |
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy

import numpy as np

from rrl.belief import drift
from rrl.belief import service_time_process as process
from rrl.belief.learned_prior import Kind
from rrl.belief.machine_slowness import MachineSlowness
from rrl.belief.remembered import MAX_INTERVALS, Remembered, SeenInterval
from rrl.belief.service_time_posterior import ServiceTimePosterior
from rrl.belief.service_time_process import WEIGHTS, Fit, Hypothesis
from rrl.belief.service_time_table import ServiceTimeTable
from rrl.measurement import ServiceTimes
from rrl.space import Configuration, ConfigurationSpace

# Standard deviations of ln S in the table.
# Of what telemetry says at its surest.
LEAST_SD = 0.001
# Of d ln S / d ln b, by which a batch size stands for its neighbour in the table.
SLOPE_SD = 0.1
# For each unit of ln n between a number of busy instances and the mean that it was told apart from.
APART_SD = 0.3

# Rows of a smaller share of an interval's batches are left out, where the others hold `LEAST_TOLD` of them.
MIN_SHARE = 0.02
LEAST_TOLD = 0.5
# Every hypothesis is tried in so many rounds, and then in each `RETRIAL`-th round.
FIRST_ROUNDS = 6
RETRIAL = 8

# Calibration: squared errors of predictions, in their own variances.
# So many are remembered.
RECENT_ERRORS = 12
# They are averaged with so many errors of 1.
ERRORS_OF_ONE = 3
MAX_SQUARED_ERROR = 16.0


class ServiceTimeModel:
    """Predicts ln S for every entry of the table that a space needs: P of them."""

    def __init__(
        self,
        space: ConfigurationSpace,
        cores: int | None = None,
        kinds: Sequence[Kind] = (),
        by_mean_busy: bool = False,
    ) -> None:
        """`by_mean_busy`: n counts the instances busy on average while a batch runs, not when it starts."""
        self.table = ServiceTimeTable(space)
        self._posterior = ServiceTimePosterior(self.table, cores, kinds)
        self._forget(by_mean_busy)

    def _forget(self, by_mean_busy: bool) -> None:
        self._by_mean_busy = by_mean_busy
        self._remembered, self._machine = Remembered(), MachineSlowness()
        self._time = 0  # of the last interval
        self._beside: dict[int, float] = {}  # ln of what neighbours made batches take longer by, by time
        self._first_log_time = math.nan
        self._rounds = 0  # of `fit`
        self.noise_sd = drift.LIKELIEST_NOISE_SD
        """Of ln S in a row of one interval, beyond what telemetry says of it."""
        self._squared_errors: deque[float] = deque(maxlen=RECENT_ERRORS)

    def anew(self, by_mean_busy: bool) -> ServiceTimeModel:
        """One that knows nothing yet."""
        other = copy(self)
        other._posterior = self._posterior.anew()
        other._forget(by_mean_busy)
        return other

    @property
    def known(self) -> bool:
        """False until the first service time."""
        return bool(self._remembered)

    @property
    def log_times(self) -> np.ndarray:
        """(P,) ln S in the mean, where the machine is as it usually is."""
        return self._posterior.log_times

    @property
    def inflation(self) -> float:
        """By how much predictions have erred lately, in their own standard deviations."""
        errors = self._squared_errors
        return math.sqrt((ERRORS_OF_ONE + sum(errors)) / (ERRORS_OF_ONE + len(errors)))

    @property
    def log_slowness(self) -> float:
        """ln of how many times as long everything took in the last interval, over what is usual."""
        return self._machine.log_slowness(self._time)

    @property
    def log_slowness_ahead(self) -> float:
        """The same as it is expected of the next interval."""
        return self._machine.log_slowness_ahead(self._time)

    @property
    def log_slowness_to_come(self) -> float:
        """The same on average over the intervals for which a choice must pay."""
        return self._machine.log_slowness_to_come(self._time)

    @property
    def slowness(self) -> drift.Slowness:
        """How slow the machine was in the intervals remembered."""
        return self._machine.remembered

    @property
    def log_slowness_told(self) -> dict[int, float]:
        """ln of how slow the machine was in the intervals whose rows are remembered, by their number."""
        return self._machine.log_slowness_told

    @property
    def log_beside(self) -> float:
        """ln of how many times as long everything took in the last interval for the sake of neighbours."""
        return self._beside.get(self._time, 0.0)

    @property
    def slowness_seen(self) -> dict[int, float]:
        """ln of how slow everything was in the intervals remembered, by machine and neighbours together."""
        return {time: log + self._beside.get(time, 0.0) for time, log in self.slowness.seen.items()}

    def slowed_by(self, log_slower: Mapping[int, float]) -> None:
        """Takes for known what neighbours slowed past intervals by, from the next `fit` on."""
        self._beside |= log_slower

    def skip(self, intervals: int) -> None:
        """Intervals that tell nothing."""
        self._time += intervals

    def add(
        self,
        configuration: Configuration,
        rows: Iterable[ServiceTimes],
        variation: float = 0.0,
        mean_busy: float | None = None,
        log_slower: float = 0.0,
    ) -> None:
        """Takes in the telemetry of the next interval; `variation` is the σ of a single batch's ln S.

        A row that does not tell the instances busy on average is taken for one of those busy at its start.

        `mean_busy`: instances busy on average, where the target does not tell them. Then rows of a batch size
        are the parts of one mean (`telemetry.told_apart`). The further they are from it, the less they say.
        `log_slower`: ln of how many times as long other models made everything take.
        """
        self._time += 1
        if log_slower:
            self._beside[self._time] = log_slower
        rows = _frequent([row for row in rows if row.count > 0 and row.total_s > 0])
        if not rows:
            return
        found: dict[int, tuple[float, float]] = {}  # precision, precision · ln S by entry
        for row in rows:
            told = self._by_mean_busy and math.isfinite(row.mean_busy)
            busy = row.mean_busy if told else row.busy_instances
            number = self.table.entry(configuration, round(busy), row.batch_size)
            offset = math.log(row.batch_size / self.table.points[number, 4])
            log_time = math.log(row.total_s / row.count) - self._slope(number, offset) * offset
            variance = LEAST_SD**2 + variation**2 / row.count + (SLOPE_SD * offset) ** 2
            if self._by_mean_busy:
                beyond = math.log(busy / self.table.points[number, 3])
                log_time -= self._busy_slope(number, beyond) * beyond
                variance += (SLOPE_SD * beyond) ** 2
            else:
                variance += _apart_variance(row, mean_busy)
            before = found.get(number, (0.0, 0.0))
            found[number] = before[0] + 1 / variance, before[1] + log_time / variance
        entries = np.array(list(found))
        precisions, weighted = np.array(list(found.values())).T
        interval = SeenInterval(
            self._time, tuple(configuration.values()), entries, weighted / precisions, 1 / precisions
        )
        if math.isnan(self._first_log_time):
            self._first_log_time = float(np.average(interval.log_times, weights=precisions)) - log_slower
        self._compare_with_prediction(interval)
        self._remembered.add(interval)

    def fit(self) -> None:
        """Conditions the process on all that is remembered. Something must be known."""
        posterior, machine = self._posterior, self._machine
        rows, times = self._remembered.rows()
        known, oldest = set(times.tolist()), self._time - MAX_INTERVALS
        self._beside = {time: log for time, log in self._beside.items() if time in known or time > oldest}
        if self._beside:
            beside = np.array([self._beside.get(int(time), 0.0) for time in times])
            rows = rows._replace(log_time=rows.log_time - beside[rows.interval])
        shocks = machine.shocks(times)
        noisy = drift.with_likeliest_noise(rows, times, drift.SCALES, shocks)
        evidences = {scale: each.evidence for scale, each in noisy.items()}
        posterior.see(evidences[machine.scale].entries, self._first_log_time)
        tried = self._tried()
        fits = posterior.conditioned(evidences[machine.scale], tried)
        likeliest = self._likeliest_scale(evidences, fits[0])
        if likeliest != machine.scale:
            machine.scale = likeliest
            fits = posterior.conditioned(evidences[likeliest], tried)
        posterior.take(fits)
        self.noise_sd = noisy[machine.scale].noise_sd
        machine.learn(rows.with_noise(self.noise_sd), times, shocks, self.log_times[rows.entry])
        self._rounds += 1

    def service_time_s(self, log_slowness: float = 0.0) -> np.ndarray:
        """(tables, N, B) predicted S of every table, row-major, with n = 1..N busy, b over `batch`."""
        return self.table.times_s(self.log_times + log_slowness)

    def expected_s(self, configuration: Configuration, batch_size: int) -> np.ndarray:
        """(c,) predicted S of a batch of this size with 1 .. c instances busy; relative ones at first."""
        entries = self.table.entries(configuration, batch_size)
        return np.asarray(np.exp(self.log_slowness_ahead + self.log_times[entries]))

    def standard_deviations(self, numbers: np.ndarray, beside: int | None = None) -> np.ndarray:
        """(K,) of ln S at these entries, or of what it differs by from that of one entry, `beside`."""
        return self.inflation * self._posterior.standard_deviations(numbers, beside)

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, tables, N, B) S of every table as it may be: all entries drawn together."""
        drawn = self._posterior.draws(count, rng, self.inflation)
        return self.table.times_s(self.log_slowness_ahead + drawn)

    def _tried(self) -> list[Hypothesis]:
        often = self._rounds < FIRST_ROUNDS or self._rounds % RETRIAL == 0
        return self._posterior.all_hypotheses if often else self._posterior.plausible

    def _likeliest_scale(self, evidences: dict[drift.Scale, drift.Evidence], best: Fit) -> drift.Scale:
        """The scale of the drift under which the rows are likeliest, by the likeliest hypothesis."""

        def log_likelihood(scale: drift.Scale) -> float:
            evidence = evidences[scale]
            of_scale = scale == self._machine.scale
            fit = best if of_scale else self._posterior.conditioned(evidence, [best.hypothesis])[0]
            return fit.plausibility + process.TEMPER * evidence.log_constant

        return max(drift.SCALES, key=log_likelihood)

    def _compare_with_prediction(self, interval: SeenInterval) -> None:
        """Notes how far what is new lies from what was predicted, in squared standard deviations.

        The interval counts already, and nothing was learned of it yet: so its slowness is the one expected.
        """
        new = (interval.entries[:, None] != self._posterior.seen).all(axis=1)
        if not self._posterior.known or not new.any():
            return
        entries = interval.entries[new]
        error = interval.log_times[new] - self.log_times[entries] - self.log_slowness
        error -= self._beside.get(interval.time, 0.0)
        own = (self.standard_deviations(entries) / self.inflation) ** 2
        scale = self._machine.scale
        noise = interval.variances[new] + self.noise_sd**2
        variance = own + noise + scale.drift_sd**2 + scale.scatter_sd**2
        self._squared_errors.append(min(float(np.mean(error**2 / variance)), MAX_SQUARED_ERROR))

    def _slope(self, number: int, offset: float) -> float:
        """d ln S / d ln b between an entry and its neighbour on the side of `offset`."""
        step = int(np.sign(offset))
        beside = self.table.neighbour_by_batch(number, step)
        if self._rounds == 0 or step == 0 or beside is None:
            return float(WEIGHTS[-1, 0])
        distance = math.log(self.table.points[beside, 4] / self.table.points[number, 4])
        return float(self.log_times[beside] - self.log_times[number]) / distance

    def _busy_slope(self, number: int, beyond: float) -> float:
        """d ln S / d ln n between an entry and that of one more, or one less, busy."""
        step = int(np.sign(beyond))
        beside, busy = self.table.neighbour_by_busy(number, step), self.table.points[number, 3]
        if self._rounds == 0 or step == 0 or beside is None:
            return 0.0
        distance = math.log((busy + step) / busy)
        return float(self.log_times[beside] - self.log_times[number]) / distance


def _frequent(rows: list[ServiceTimes]) -> list[ServiceTimes]:
    """Those of `MIN_SHARE` of all batches, or where these are few, the most frequent that hold enough."""
    counts = np.array([row.count for row in rows])
    order = np.argsort(-counts, kind="stable")
    enough = 1 + int(np.searchsorted(np.cumsum(counts[order]), LEAST_TOLD * counts.sum()))
    kept = counts >= MIN_SHARE * counts.sum()
    kept[order[: min(enough, round(1 / MIN_SHARE))]] = True
    return [row for row, is_kept in zip(rows, kept, strict=True) if is_kept]


def _apart_variance(row: ServiceTimes, mean_busy: float | None) -> float:
    """Of ln S: the further a number of busy instances is from their mean, the less that tells of it."""
    return 0.0 if mean_busy is None else (APART_SD * math.log(row.busy_instances / mean_busy)) ** 2
