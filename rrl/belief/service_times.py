"""Service times learned on the way: what telemetry says of one configuration, carried over to all others.

A Gaussian process on the logarithm of the service time S[i, a, c, n, b]: of a batch of b requests that starts
with n of c instances busy, i operators at once and a threads in each.

    ln S = ln S_1 + what `service_time_process` expects + what the interval shared (`drift`)

All rows of all intervals remembered are conditioned on together. The process has hypotheses: how many cores
there are, how busy a batch keeps its threads, whether batches share processors, how noisy means are. They are
told apart by their likelihood. Predictions are averaged over those that remain plausible.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from rrl.belief import drift
from rrl.belief import service_time_process as process
from rrl.belief.learned_prior import Kind
from rrl.belief.service_time_process import AXIS_SD, CROWDING_SD, FIELD_SD, WEIGHTS, Fit, Hypothesis, Terms
from rrl.belief.service_time_table import ServiceTimeTable
from rrl.measurement import ServiceTimes
from rrl.space import Configuration, ConfigurationSpace

# Standard deviations of ln S in the table.
# Noise beyond telemetry's own: S depends on what the table does not say. Each value is a hypothesis.
NOISE_SDS = (0.004, 0.03, 0.1)
NOISE_SD = NOISE_SDS[0]
# Of d ln S / d ln b, by which a batch size stands for its neighbour in the table.
SLOPE_SD = 0.1
# For each unit of ln n between a number of busy instances and the mean that it was told apart from.
APART_SD = 0.3
# Added to variances, so that entries that go together can be drawn together.
JITTER = 1e-6

# What is remembered: so many intervals, as long as their rows are of so many entries.
MAX_INTERVALS = 80
MAX_ENTRIES = 160
# The newest intervals of one configuration that are remembered.
MAX_INTERVALS_ALIKE = 6
# They lie ever farther apart in the past, so that a slow spell does not become what is usual. None is older.
MAX_AGE = 24
# Rows of a smaller share of an interval's batches are left out.
MIN_SHARE = 0.02

# Hypotheses.
UTILISATIONS = (0.6, 1.0)  # η
# Nats of the tempered likelihood below the best, up to which a hypothesis is plausible.
MAX_NATS_BELOW_BEST = 3.0
MAX_PLAUSIBLE = 4
# Every hypothesis is tried in so many rounds, and then in each `RETRIAL`-th round.
FIRST_ROUNDS = 6
RETRIAL = 8
# From so many entries on, hypotheses hardly differ in how uncertain they are.
MANY_ENTRIES = 60

# The share of the present drift that is left on average over the intervals for which a choice must pay.
PAYS_FOR = 0.3

# Calibration: squared errors of predictions, in their own variances.
# So many are remembered.
RECENT_ERRORS = 12
# They are averaged with so many errors of 1.
ERRORS_OF_ONE = 3
MAX_SQUARED_ERROR = 16.0


class _Interval(NamedTuple):
    """The rows of one interval."""

    time: int  # the interval's number since the first
    configuration: tuple[int, ...]
    entries: np.ndarray  # (rows,) int, each once
    log_times: np.ndarray  # (rows,)
    variances: np.ndarray  # (rows,)


class ServiceTimeModel:
    """Predicts ln S for every entry of the table that a space needs: P of them."""

    def __init__(
        self,
        space: ConfigurationSpace,
        cores: int | None = None,
        kinds: Sequence[Kind] = (),
    ) -> None:
        self.table = ServiceTimeTable(space)
        self._usual_cores = float(cores or max(self.table.intra[-1], self.table.instances[-1]))
        self._hypotheses = self._all_hypotheses(cores is not None)
        points = self.table.points
        of_cores = {(h.cores, h.utilisation): process.terms(points, h, WEIGHTS) for h in self._hypotheses}
        self._terms = {h: of_cores[h.cores, h.utilisation] for h in self._hypotheses}
        for kind in kinds:
            field = kind.field_sd / math.sqrt(5 * AXIS_SD**2 + FIELD_SD**2)
            fewest, most = kind.cores
            for c in sorted({h.cores for h in self._hypotheses if fewest <= h.cores <= most}):
                terms = process.learned_terms(points, c, kind)
                for noise_sd in NOISE_SDS[:2]:
                    self._terms[Hypothesis(c, 1.0, False, noise_sd, kind.name, field)] = terms
        self._hypotheses = list(self._terms)
        self._columns: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._intervals: list[_Interval] = []  # in their order
        self._shocks: dict[int, tuple[float, float]] = {}  # k, k' by the interval's time
        self._time = 0  # of the last interval
        self._scale = drift.SCALES[1]
        self._effects: dict[int, tuple[float, float]] = {}  # d, s by the interval's time
        self._first_log_time = math.nan
        self._fits: list[Fit] = []  # of the plausible hypotheses; with the next four, since the last `fit`
        self._weights = np.empty(0)  # (hypotheses,) plausibility of each
        self._seen = np.empty(0, int)  # (entries,) the numbers of those seen
        self._smooth = self._crowding = np.empty((0, 0))  # (P, entries) prior covariance of f, and of h
        self._cross: dict[tuple[bool, float], np.ndarray] = {}  # of f + χ·h, by χ and f's share
        self._means = np.empty((0, len(points)))  # (hypotheses, P) ln S
        self._rounds = 0
        self._squared_errors: deque[float] = deque(maxlen=RECENT_ERRORS)
        self.log_times = self._expected_a_priori()
        """(P,) ln S in the mean, where the machine is as it usually is."""

    @property
    def known(self) -> bool:
        """False until the first service time."""
        return bool(self._intervals)

    @property
    def inflation(self) -> float:
        """By how much predictions have erred lately, in their own standard deviations."""
        errors = self._squared_errors
        return math.sqrt((ERRORS_OF_ONE + sum(errors)) / (ERRORS_OF_ONE + len(errors)))

    @property
    def log_slowness(self) -> float:
        """ln of how many times as long everything took in the last interval, over what is usual."""
        return sum(self._last_effects)

    @property
    def log_slowness_ahead(self) -> float:
        """The same as it is expected of the next interval."""
        return drift.persisting() * self._last_effects[0]

    @property
    def log_slowness_to_come(self) -> float:
        """The same on average over the intervals for which a choice must pay."""
        return PAYS_FOR * self._last_effects[0]

    @property
    def _last_effects(self) -> tuple[float, float]:
        """d and s of the last interval."""
        return self._effects.get(self._time, (0.0, 0.0))

    @property
    def speeds(self) -> drift.Speeds:
        """How slow the machine was in the intervals remembered."""
        return drift.Speeds(
            {time: sum(both) for time, both in self._effects.items()}, math.hypot(*self._scale)
        )

    def add(
        self,
        configuration: Configuration,
        rows: Iterable[ServiceTimes],
        variation: float = 0.0,
        mean_busy: float | None = None,
    ) -> None:
        """Takes in the telemetry of the next interval; `variation` is the σ of a single batch's ln S.

        `mean_busy`: instances busy on average, where the target does not tell them. Then rows of a batch size
        are the parts of one mean (`telemetry.told_apart`). The further they are from it, the less they say.
        """
        self._time += 1
        rows = [row for row in rows if row.count > 0 and row.total_s > 0]
        batches = sum(row.count for row in rows)
        rows = [row for row in rows if row.count >= MIN_SHARE * batches]
        if not rows:
            return
        found: dict[int, tuple[float, float]] = {}  # precision, precision · ln S by entry
        for row in rows:
            number = self.table.entry(configuration, row.busy_instances, row.batch_size)
            offset = math.log(row.batch_size / self.table.points[number, 4])
            log_time = math.log(row.total_s / row.count) - self._slope(number, offset) * offset
            variance = NOISE_SD**2 + variation**2 / row.count + (SLOPE_SD * offset) ** 2
            variance += _apart_variance(row, mean_busy)
            before = found.get(number, (0.0, 0.0))
            found[number] = before[0] + 1 / variance, before[1] + log_time / variance
        entries = np.array(list(found))
        precisions, weighted = np.array(list(found.values())).T
        interval = _Interval(
            self._time, tuple(configuration.values()), entries, weighted / precisions, 1 / precisions
        )
        if math.isnan(self._first_log_time):
            self._first_log_time = float(np.average(interval.log_times, weights=precisions))
        self._compare_with_prediction(interval)
        self._remember(interval)

    def fit(self) -> None:
        """Conditions the process on all that is remembered. Something must be known."""
        rows, times = self._rows()
        shocks = self._shocks_of(times)
        evidences = {scale: drift.evidence(rows, times, scale, shocks) for scale in drift.SCALES}
        self._seen = evidences[self._scale].entries
        columns = [self._column(number) for number in self._seen]
        self._smooth, self._crowding = (np.stack(each, axis=1) for each in zip(*columns, strict=True))
        self._cross.clear()
        fits = self._conditioned(evidences[self._scale], self._tried())
        likeliest = self._likeliest_scale(evidences, fits[0])
        if likeliest != self._scale:
            self._scale = likeliest
            fits = self._conditioned(evidences[likeliest], self._tried())
        best = fits[0].plausibility
        plausible = [fit for fit in fits if fit.plausibility > best - MAX_NATS_BELOW_BEST][:MAX_PLAUSIBLE]
        self._fits = plausible
        weights = np.exp([fit.plausibility - best for fit in plausible])
        self._weights = weights / weights.sum()
        self._means = np.stack([self._mean(fit) for fit in self._fits])  # (hypotheses, P)
        self.log_times = self._weights @ self._means
        self._take_effects(rows, times, shocks)
        self._rounds += 1

    def service_time_s(self, log_slowness: float = 0.0) -> np.ndarray:
        """(tables, N, B) predicted S of every (i, a, c), row-major, with n = 1..N busy, b over `batch`."""
        return self.table.times_s(self.log_times + log_slowness)

    def expected_s(self, configuration: Configuration, batch_size: int) -> np.ndarray:
        """(c,) predicted S of a batch of this size with 1 .. c instances busy; relative ones at first."""
        entries = self.table.entries(configuration, batch_size)
        return np.asarray(np.exp(self.log_slowness_ahead + self.log_times[entries]))

    def standard_deviations(self, numbers: np.ndarray, beside: int | None = None) -> np.ndarray:
        """(K,) of ln S at these entries, or of what it differs by from that of one entry, `beside`."""
        fits, weights = self._fits, self._weights
        if len(self._seen) > MANY_ENTRIES:
            fits, weights = fits[:1], np.ones(1)
        all_numbers = numbers if beside is None else np.append(numbers, beside)
        within = np.zeros(len(numbers))
        for fit, weight in zip(fits, weights, strict=True):
            within += weight * self._variances(fit, all_numbers, beside)
        means = self._means[:, numbers]
        if beside is not None:
            means = means - self._means[:, [beside]]
        between = self._weights @ (means - self._weights @ means) ** 2
        return np.asarray(self.inflation * np.sqrt(within + between))

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, tables, N, B) S of every (i, a, c) as it may be: all entries drawn together."""
        counts = rng.multinomial(count, self._weights)
        drawn = [self._drawn(k, n, rng) for k, n in enumerate(counts) if n > 0]
        return self.table.times_s(self.log_slowness_ahead + rng.permutation(np.concatenate(drawn)))

    def _variances(self, fit: Fit, numbers: np.ndarray, beside: int | None) -> np.ndarray:
        """(K,) of ln S under one hypothesis, or of its difference from that of the last of the numbers."""
        own = self._terms[fit.hypothesis].factor[numbers]
        v = solve_triangular(fit.cholesky, self._shared(fit, numbers), lower=True, check_finite=False)
        h = fit.hypothesis
        smooth = h.field**2 * (5 * AXIS_SD**2 + FIELD_SD**2) + h.crowding * CROWDING_SD**2
        variances = (own**2).sum(axis=1) + smooth - np.einsum("ij,ij->j", v, v)
        if beside is None:
            return np.maximum(variances, 1e-8)
        column = self._column(beside)
        both = h.field**2 * column[0] + h.crowding * column[1]
        covariances = own @ own[-1] + both[numbers] - v.T @ v[:, -1]
        return np.maximum(variances + variances[-1] - 2 * covariances, 1e-8)[:-1]

    def _drawn(self, k: int, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, P) ln S under the k-th of the plausible hypotheses."""
        fit = self._fits[k]
        own = self._terms[fit.hypothesis].factor
        covariance = own @ own.T + process.prior_covariance(self.table.points, fit.hypothesis)
        v = solve_triangular(fit.cholesky, self._shared(fit, np.arange(len(own))), lower=True)
        covariance -= v.T @ v
        factor = cholesky(covariance + JITTER * np.eye(len(own)), lower=True, check_finite=False)
        deviations = factor @ rng.standard_normal((len(own), count))
        return np.asarray(self._means[k] + self.inflation * deviations.T)

    def _conditioned(self, evidence: drift.Evidence, hypotheses: list[Hypothesis]) -> list[Fit]:
        """The likeliest first."""
        y = evidence.log_times - self._first_log_time
        fits = []
        for h in hypotheses:
            covariance = h.field**2 * self._smooth[self._seen] + evidence.noise
            if h.crowding:
                covariance += self._crowding[self._seen]
            fits.append(process.conditioned(y, self._seen_terms(h), covariance, h, self._usual_cores))
        return sorted(fits, key=lambda fit: -fit.plausibility)

    def _likeliest_scale(self, evidences: dict[drift.Scale, drift.Evidence], best: Fit) -> drift.Scale:
        """The scale of the drift under which the rows are likeliest, by the likeliest hypothesis."""

        def log_likelihood(scale: drift.Scale) -> float:
            evidence = evidences[scale]
            of_scale = scale == self._scale
            fit = best if of_scale else self._conditioned(evidence, [best.hypothesis])[0]
            return fit.plausibility + process.TEMPER * evidence.log_constant

        return max(drift.SCALES, key=log_likelihood)

    def _cross_of(self, hypothesis: Hypothesis) -> np.ndarray:
        """(P, entries) prior covariance of f + χ·h between all entries and those seen."""
        key = hypothesis.crowding, hypothesis.field
        if key not in self._cross:
            cross = hypothesis.field**2 * self._smooth
            self._cross[key] = cross + self._crowding if hypothesis.crowding else cross
        return self._cross[key]

    def _seen_terms(self, hypothesis: Hypothesis) -> Terms:
        mean, factor = self._terms[hypothesis]
        return Terms(mean[self._seen], factor[self._seen])

    def _shared(self, fit: Fit, numbers: np.ndarray) -> np.ndarray:
        """(entries, K) prior covariance of what was seen with these entries of the table."""
        factor = self._terms[fit.hypothesis].factor
        return np.asarray(factor[self._seen] @ factor[numbers].T + self._cross_of(fit.hypothesis)[numbers].T)

    def _mean(self, fit: Fit) -> np.ndarray:
        mean, factor = self._terms[fit.hypothesis]
        known = mean + factor @ (factor[self._seen].T @ fit.alpha)
        return np.asarray(self._first_log_time + known + self._cross_of(fit.hypothesis) @ fit.alpha)

    def _rows(self) -> tuple[drift.Rows, np.ndarray]:
        """What is remembered, and the (T,) times of its intervals."""
        kept = self._intervals
        position = np.repeat(np.arange(len(kept)), [len(each.entries) for each in kept])
        entries, log_times, variances = (
            np.concatenate([getattr(each, name) for each in kept])
            for name in ("entries", "log_times", "variances")
        )
        return drift.Rows(position, entries, log_times, variances), np.array([e.time for e in kept], float)

    def _shocks_of(self, times: np.ndarray) -> drift.Shocks:
        pairs = np.array([self._shocks.get(int(time), (1.0, 1.0)) for time in times])
        return drift.Shocks(pairs[:, 0], pairs[:, 1])

    def _take_effects(self, rows: drift.Rows, times: np.ndarray, shocks: drift.Shocks) -> None:
        effects, again = drift.effects(rows, times, self._scale, shocks, self.log_times[rows.entry])
        numbers = [int(time) for time in times]
        self._effects = dict(zip(numbers, zip(effects.drift, effects.scatter, strict=True), strict=True))
        self._shocks = dict(zip(numbers, zip(again.drift, again.scatter, strict=True), strict=True))

    def _remember(self, interval: _Interval) -> None:
        self._intervals.append(interval)
        alike = [each for each in self._intervals if each.configuration == interval.configuration]
        if len(alike) > MAX_INTERVALS_ALIKE:  # One goes, so that others are not forgotten.
            forgotten = alike[_least_told([self._time - each.time for each in alike])]
            self._intervals = [each for each in self._intervals if each is not forgotten]
        while len(self._intervals) > MAX_INTERVALS or self._entries_seen() > MAX_ENTRIES:
            del self._intervals[0]

    def _entries_seen(self) -> int:
        return len(set().union(*(each.entries.tolist() for each in self._intervals)))

    def _all_hypotheses(self, cores_known: bool) -> list[Hypothesis]:
        thirds = [0] if cores_known else range(-4, 7)
        return [
            Hypothesis(round(self._usual_cores * 2 ** (third / 3), 1), utilisation, crowding, noise_sd)
            for third in thirds
            for utilisation in UTILISATIONS
            for crowding in ((False, True) if len(self.table.instances) > 1 else (False,))
            for noise_sd in NOISE_SDS
        ]

    def _expected_a_priori(self) -> np.ndarray:
        """(P,) ln S/S_1 before anything is known."""
        plausibility = np.exp([process.log_prior(h, self._usual_cores) for h in self._hypotheses])
        means = np.array([self._terms[h].mean for h in self._hypotheses])
        return np.asarray(plausibility @ means / plausibility.sum())

    def _tried(self) -> list[Hypothesis]:
        if self._rounds < FIRST_ROUNDS or self._rounds % RETRIAL == 0:
            return self._hypotheses
        return [fit.hypothesis for fit in self._fits]

    def _compare_with_prediction(self, interval: _Interval) -> None:
        """Notes how far what is new lies from what was predicted, in squared standard deviations."""
        new = ~np.isin(interval.entries, self._seen)
        if not self._fits or not new.any():
            return
        entries = interval.entries[new]
        error = interval.log_times[new] - self.log_times[entries] - self.log_slowness_ahead
        own = (self.standard_deviations(entries) / self.inflation) ** 2
        variance = own + interval.variances[new] + self._scale.drift_sd**2 + self._scale.scatter_sd**2
        self._squared_errors.append(min(float(np.mean(error**2 / variance)), MAX_SQUARED_ERROR))

    def _column(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(P,), (P,) covariance of f, and of h, between every entry and this one."""
        number = int(number)
        if number not in self._columns:
            points, point = self.table.points, self.table.points[number]
            self._columns[number] = process.smooth(points, point), process.crowding(points, point)
        return self._columns[number]

    def _slope(self, number: int, offset: float) -> float:
        """d ln S / d ln b between an entry and its neighbour on the side of `offset`."""
        step, batch = int(np.sign(offset)), self.table.batch
        beside, on_grid = number + step, 0 <= number % len(batch) + step < len(batch)
        if self._rounds == 0 or step == 0 or not on_grid:
            return float(WEIGHTS[-1, 0])
        distance = math.log(self.table.points[beside, 4] / self.table.points[number, 4])
        return float(self.log_times[beside] - self.log_times[number]) / distance


def _apart_variance(row: ServiceTimes, mean_busy: float | None) -> float:
    """Of ln S: the further a number of busy instances is from their mean, the less that tells of it."""
    return 0.0 if mean_busy is None else (APART_SD * math.log(row.busy_instances / mean_busy)) ** 2


def _least_told(ages: Sequence[int]) -> int:
    """Which of the intervals of these descending ages to forget: the one whose neighbours are nearest to it.

    Ages are compared as logarithms. The newest stays, and the oldest until it is too old.
    """
    if ages[0] > MAX_AGE:
        return 0
    logs = [math.log1p(age) for age in ages]
    return min(range(1, len(ages) - 1), key=lambda k: logs[k - 1] - logs[k + 1])
