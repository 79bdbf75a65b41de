"""Service times learned on the way: what telemetry says of one configuration, carried over to all others.

A Gaussian process on the logarithm of the service time S[i, a, c, n, b]: of a batch of b requests that starts
with n of c instances busy, i operators at once and a threads in each.

    ln S = ln S_1 + what `service_time_process` expects, conditioned on what was seen

The process has hypotheses: how many cores there are, how busy a batch keeps its threads, whether batches
share processors, how noisy means are. They are told apart by their likelihood. Predictions are averaged over
those that remain plausible.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cholesky, solve_triangular

from rrl.guided import service_time_process as process
from rrl.guided.service_time_process import AXIS_SD, CROWDING_SD, FIELD_SD, WEIGHTS, Fit, Hypothesis
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
# Of a single batch, as it counts beside `APART_SD` when two means are made one.
BATCH_SD = 0.2
# What a mean learned before the machine changed is less certain by.
OLD_SD = 0.05
# Added to variances, so that entries that go together can be drawn together.
JITTER = 1e-6

# What is remembered.
BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Entries of the table.
MAX_ENTRIES = 160
# Batches that a mean is of: older ones fade.
MAX_BATCHES = 400.0
# Standard deviations from which a mean starts anew.
MIN_SD_TO_START_ANEW = 3.0
# |ln| of the ratio of two rates up to which service times are the same, even where processors are shared.
MAX_LOG_RATIO_OF_LIKE_LOADS = 0.25

# Hypotheses.
UTILISATIONS = (0.6, 1.0)  # η
# Nats of the tempered likelihood below the best, up to which a hypothesis is plausible.
MAX_NATS_BELOW_BEST = 3.0
MAX_PLAUSIBLE = 4
# Up to so many entries every hypothesis is tried in each round, and later in each `RETRIAL`-th round.
FEW_ENTRIES = 30
RETRIAL = 16

# Calibration: squared errors of predictions, in their own variances.
# So many are remembered.
RECENT_ERRORS = 12
# They are averaged with so many errors of 1.
ERRORS_OF_ONE = 3
MAX_SQUARED_ERROR = 16.0


@dataclass
class _Mean:
    """What is known of one batch size of an entry of the table."""

    log_time: float
    batches: float
    configuration: Configuration  # last seen under this one
    rate_per_s: float  # the load then
    era: int  # changes of the machine before
    apart_sd: float = 0.0  # sd of log_time from being told apart from a mean over several busy instances


_Entry = dict[int, _Mean]
"""What is known of one entry of the table, by batch size: those between the table's count to the nearest."""


class ServiceTimeModel:
    """Predicts ln S for every entry of the table that a space needs: P of them, those with n <= c.

    It is longer than other classes: remembering, conditioning and predicting share one numbered table.
    """

    def __init__(
        self, space: ConfigurationSpace, cores: int | None = None, weights: np.ndarray = WEIGHTS
    ) -> None:
        values = {knob.name: knob.values for knob in space.knobs}
        self.inter = np.asarray(values.get("inter_op_threads", (1,)))
        self.intra = np.asarray(values.get("intra_op_threads", (1,)))
        self.instances = np.asarray(values.get("instances", (1,)))
        self.batch = _batch_grid(max(values.get("max_batch_size", (1,))))
        axes = (self.inter, self.intra, self.instances, np.arange(1, self.instances[-1] + 1), self.batch)
        self.shape = tuple(len(axis) for axis in axes)
        grid = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1)
        self._used = grid[..., 3] <= grid[..., 2]
        self._number = np.full(self.shape, -1)  # of each entry among the P
        self._number[self._used] = np.arange(self._used.sum())
        self._points = grid[self._used].astype(float)  # (P, 5): i, a, c, n, b
        self._prior = weights  # (terms, 2) mean and standard deviation
        self._usual_cores = float(cores or max(self.intra[-1], self.instances[-1]))
        self._hypotheses = self._all_hypotheses(cores is not None)
        of_kind = {(h.cores, h.utilisation): process.features(self._points, h) for h in self._hypotheses}
        self._features = {h: of_kind[h.cores, h.utilisation] for h in self._hypotheses}
        self._columns: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._entries: dict[int, _Entry] = {}  # the one seen longest ago first
        self._log_slowness = 0.0  # of the machine now, over the times that are remembered
        self._first_log_time = math.nan
        self._era = 0
        self._fits: list[Fit] = []  # of the plausible hypotheses; with the next three, since the last `fit`
        self._weights = np.empty(0)  # (hypotheses,) plausibility of each
        self._cross: dict[bool, np.ndarray] = {}  # (P, entries) prior covariance, without and with crowding
        self._means = np.empty((0, len(self._points)))  # (hypotheses, P) ln S
        self._rounds = 0
        self._squared_errors: deque[float] = deque(
            maxlen=RECENT_ERRORS
        )  # of the last configurations that were new
        self._log_times = self._expected_a_priori()

    @property
    def known(self) -> bool:
        """False until the first service time."""
        return bool(self._entries)

    @property
    def inflation(self) -> float:
        """By how much predictions have erred lately, in their own standard deviations; at least 1."""
        errors = self._squared_errors
        return math.sqrt(max(1.0, (ERRORS_OF_ONE + sum(errors)) / (ERRORS_OF_ONE + len(errors))))

    @property
    def cores(self) -> float:
        """The likeliest number of cores."""
        return self._fits[0].hypothesis.cores if self._fits else self._usual_cores

    def add(
        self,
        configuration: Configuration,
        rows: Iterable[ServiceTimes],
        rate_per_s: float,
        variation: float = 0.0,
        mean_busy: float | None = None,
    ) -> None:
        """Takes in the telemetry of an interval; `variation` is the σ of a single batch's ln S.

        `mean_busy`: instances busy on average, where the target does not tell them. Then rows of a batch size
        are the parts of one mean (`telemetry.told_apart`). The further they are from it, the less they say.
        """
        rows = [row for row in rows if row.count > 0 and row.total_s > 0]
        numbers = [self._entry_of(configuration, row) for row in rows]
        apart_sds = [_apart_sd(row, mean_busy) for row in rows]
        self._compare_with_prediction(numbers, rows, variation, apart_sds)
        for number, row, apart_sd in zip(numbers, rows, apart_sds, strict=True):
            self._add(number, row, configuration, rate_per_s, variation, apart_sd)
        while len(self._entries) > MAX_ENTRIES:
            forgotten = next(iter(self._entries))
            del self._entries[forgotten]
            self._columns.pop(forgotten, None)

    def surprise(
        self,
        configuration: Configuration,
        parts: Iterable[Sequence[ServiceTimes]],
        rate_per_s: float,
        variation: float,
    ) -> tuple[float, float]:
        """By how much, as ln, the machine is slower than it was, and the standard deviation of that.

        It compares the busy instances and batch sizes seen before under this very configuration at a similar
        load, and is (0, inf) if there are none. `parts` of one mean (`telemetry.told_apart`), or single rows,
        count where all of them were seen: they share what they gain and lose.
        """
        total = weights = 0.0
        for rows in parts:
            means = [self._before(configuration, row, rate_per_s) for row in rows]
            known = [(row, mean) for row, mean in zip(rows, means, strict=True) if mean is not None]
            if len(known) < len(rows):
                continue
            for row, mean in known:
                weight = 1.0 / (1.0 / row.count + 1.0 / mean.batches)
                total += weight * (self._log_time(row) - mean.log_time)
                weights += weight
        if weights == 0:
            return 0.0, math.inf
        return total / weights, math.sqrt(variation**2 / weights + NOISE_SD**2)

    def slowed(self, log_factor: float) -> None:
        """The machine takes exp(log_factor) times as long as before for everything, perhaps for a while."""
        self._log_slowness += log_factor

    def changed(self, log_factor: float) -> None:
        """The machine has become exp(log_factor) times slower. All known times shift, and are worth less."""
        self._era += 1
        for entry in self._entries.values():
            for mean in entry.values():
                mean.log_time += log_factor

    def fit(self, variation: float = 0.0) -> None:
        """Conditions the process on all entries. Some must be known."""
        numbers = np.fromiter(self._entries, dtype=int)
        times = np.array([self._observed(number, variation) for number in self._entries])
        y, noise = times[:, 0] - self._first_log_time, np.diag(times[:, 1])
        columns = [self._column(number) for number in self._entries]
        smooth = np.stack([column[0] for column in columns], axis=1)  # (P, entries)
        cross = {False: smooth, True: smooth + np.stack([column[1] for column in columns], axis=1)}
        covariance = {crowding: c[numbers] + noise for crowding, c in cross.items()}
        usual = self._usual_cores
        fits = [
            process.conditioned(y, self._features[h][numbers], self._prior, covariance[h.crowding], h, usual)
            for h in self._tried()
        ]
        fits.sort(key=lambda fit: -fit.plausibility)
        best = fits[0].plausibility
        self._fits = [fit for fit in fits if fit.plausibility > best - MAX_NATS_BELOW_BEST][:MAX_PLAUSIBLE]
        weights = np.exp([fit.plausibility - best for fit in self._fits])
        self._weights, self._cross = weights / weights.sum(), cross
        self._means = np.stack([self._mean(fit) for fit in self._fits])  # (hypotheses, P)
        self._log_times = self._weights @ self._means
        self._rounds += 1

    def service_time_s(self) -> np.ndarray:
        """(tables, N, B) predicted S of every (i, a, c), row-major, with n = 1..N busy, b over `batch`."""
        log_times = np.zeros(self.shape)
        log_times[self._used] = self._log_slowness + self._log_times
        return np.exp(log_times).reshape(-1, *self.shape[3:])

    def expected_s(self, configuration: Configuration, batch_size: int) -> np.ndarray:
        """(c,) predicted S of a batch of this size with 1 .. c instances busy; relative ones at first."""
        inter, intra, instances = self._positions(configuration)
        numbers = self._number[
            inter, intra, instances, : int(self.instances[instances]), self._nearest(batch_size)
        ]
        result: np.ndarray = np.exp(self._log_slowness + self._log_times[numbers])
        return result

    def standard_deviations(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) of ln S at these entries."""
        fits, weights = self._fits, self._weights
        if len(self._entries) > 2 * FEW_ENTRIES:  # The other hypotheses hardly differ by now.
            fits, weights = fits[:1], np.ones(1)
        within = np.zeros(len(numbers))
        for fit, weight in zip(fits, weights, strict=True):
            own = self._features[fit.hypothesis][numbers]
            v = solve_triangular(fit.cholesky, self._shared(fit, numbers), lower=True, check_finite=False)
            total = own**2 @ self._prior[:, 1] ** 2 + 5 * AXIS_SD**2 + FIELD_SD**2
            total += fit.hypothesis.crowding * CROWDING_SD**2
            within += weight * np.maximum(total - np.einsum("ij,ij->j", v, v), 1e-8)
        means = self._means[:, numbers]
        between = self._weights @ (means - self._weights @ means) ** 2
        result: np.ndarray = self.inflation * np.sqrt(within + between)
        return result

    def draws(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, tables, N, B) S of every (i, a, c) as it may be: all entries drawn together."""
        log_times = np.zeros((count, *self.shape))
        counts = rng.multinomial(count, self._weights)
        drawn = [self._drawn(k, n, rng) for k, n in enumerate(counts) if n > 0]
        log_times[:, self._used] = self._log_slowness + rng.permutation(np.concatenate(drawn))
        return np.exp(log_times).reshape(count, -1, *self.shape[3:])

    def entries(
        self, inter: np.ndarray, intra: np.ndarray, instances: np.ndarray, busy: np.ndarray, batch: np.ndarray
    ) -> np.ndarray:
        """(K,) numbers of entries, given by their positions along the axes."""
        result: np.ndarray = self._number[inter, intra, instances, busy, batch]
        return result

    def _drawn(self, k: int, count: int, rng: np.random.Generator) -> np.ndarray:
        """(count, P) ln S under the k-th of the plausible hypotheses."""
        fit = self._fits[k]
        own = self._features[fit.hypothesis] * self._prior[:, 1]
        covariance = own @ own.T + process.prior_covariance(self._points, fit.hypothesis.crowding)
        v = solve_triangular(fit.cholesky, self._shared(fit, np.arange(len(own))), lower=True)
        covariance -= v.T @ v
        factor = cholesky(covariance + JITTER * np.eye(len(own)), lower=True, check_finite=False)
        deviations = factor @ rng.standard_normal((len(own), count))
        drawn: np.ndarray = self._means[k] + self.inflation * deviations.T
        return drawn

    def _shared(self, fit: Fit, numbers: np.ndarray) -> np.ndarray:
        """(entries, K) prior covariance of what was seen with these entries of the table."""
        own = self._features[fit.hypothesis][numbers]
        shared: np.ndarray = (fit.features * self._prior[:, 1] ** 2) @ own.T
        return shared + self._cross[fit.hypothesis.crowding][numbers].T

    def _all_hypotheses(self, cores_known: bool) -> list[Hypothesis]:
        thirds = [0] if cores_known else range(-4, 7)
        return [
            Hypothesis(round(self._usual_cores * 2 ** (third / 3), 1), utilisation, crowding, noise_sd)
            for third in thirds
            for utilisation in UTILISATIONS
            for crowding in ((False, True) if len(self.instances) > 1 else (False,))
            for noise_sd in NOISE_SDS
        ]

    def _expected_a_priori(self) -> np.ndarray:
        """(P,) ln S/S_1 before anything is known."""
        plausibility = np.exp([process.log_prior(h, self._usual_cores) for h in self._hypotheses])
        means = np.array([self._features[h] @ self._prior[:, 0] for h in self._hypotheses])
        result: np.ndarray = plausibility @ means / plausibility.sum()
        return result

    def _tried(self) -> list[Hypothesis]:
        if len(self._entries) <= FEW_ENTRIES or self._rounds % RETRIAL == 0:
            return self._hypotheses
        return [fit.hypothesis for fit in self._fits]

    def _compare_with_prediction(
        self, numbers: list[int], rows: list[ServiceTimes], variation: float, apart_sds: list[float]
    ) -> None:
        """Notes how far what is new lies from what was predicted, in squared standard deviations."""
        new = [k for k, number in enumerate(numbers) if number not in self._entries]
        if not self._fits or not new:
            return
        entries = np.array([numbers[k] for k in new])
        error = np.array([self._log_time(rows[k]) for k in new]) - self._log_times[entries]
        noise = variation**2 / np.array([rows[k].count for k in new])
        noise += np.array([apart_sds[k] for k in new]) ** 2
        variance = (self.standard_deviations(entries) / self.inflation) ** 2 + noise
        self._squared_errors.append(min(float(np.mean(error**2 / variance)), MAX_SQUARED_ERROR))

    def _add(
        self,
        number: int,
        row: ServiceTimes,
        configuration: Configuration,
        rate_per_s: float,
        variation: float,
        apart_sd: float,
    ) -> None:
        log_time, batches = self._log_time(row), float(row.count)
        if math.isnan(self._first_log_time):
            self._first_log_time = log_time
        entry = self._entries.pop(number, {})
        before = entry.get(row.batch_size)
        if before is not None and before.era == self._era:
            noise_sd = variation * math.sqrt(1 / batches + 1 / before.batches)
            sd = math.hypot(noise_sd, 5 * NOISE_SD, apart_sd, before.apart_sd)
            if abs(log_time - before.log_time) < MIN_SD_TO_START_ANEW * sd:
                log_time, batches, apart_sd = _merged(before, log_time, batches, apart_sd)
        entry[row.batch_size] = _Mean(log_time, batches, configuration, rate_per_s, self._era, apart_sd)
        self._entries[number] = entry

    def _before(self, configuration: Configuration, row: ServiceTimes, rate_per_s: float) -> _Mean | None:
        """The mean under this very configuration at a similar load since the machine changed, if any."""
        mean = self._entries.get(self._entry_of(configuration, row), {}).get(row.batch_size)
        if mean is None or row.count <= 0 or not row.total_s > 0:
            return None
        if mean.configuration != configuration or mean.era != self._era:
            return None
        return mean if abs(math.log(mean.rate_per_s / rate_per_s)) <= MAX_LOG_RATIO_OF_LIKE_LOADS else None

    def _log_time(self, row: ServiceTimes) -> float:
        """ln of the mean, as it would be if the machine were no slower than usual."""
        return math.log(row.total_s / row.count) - self._log_slowness

    def _entry_of(self, configuration: Configuration, row: ServiceTimes) -> int:
        inter, intra, instances = self._positions(configuration)
        busy = min(row.busy_instances, int(self.instances[instances])) - 1
        return int(self._number[inter, intra, instances, busy, self._nearest(row.batch_size)])

    def _positions(self, configuration: Configuration) -> tuple[int, int, int]:
        """Along the first three axes of the table."""
        inter = int(np.searchsorted(self.inter, configuration.get("inter_op_threads", 1)))
        intra = int(np.searchsorted(self.intra, configuration.get("intra_op_threads", 1)))
        return inter, intra, int(np.searchsorted(self.instances, configuration.get("instances", 1)))

    def _nearest(self, batch_size: int) -> int:
        return int(np.argmin(np.abs(np.log(self.batch / batch_size))))

    def _column(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """(P,), (P,) covariance of f, and of h, between every entry and this one."""
        if number not in self._columns:
            point = self._points[number]
            self._columns[number] = process.smooth(self._points, point), process.crowding(self._points, point)
        return self._columns[number]

    def _observed(self, number: int, variation: float) -> tuple[float, float]:
        """ln S of an entry, by all its batch sizes, and the variance of that."""
        entry, grid_size = self._entries[number], self._points[number, 4]
        if len(entry) == 1 and grid_size in entry:
            mean = entry[int(grid_size)]
            return mean.log_time, self._variance(mean, variation)
        precisions = np.array([1.0 / self._variance(mean, variation) for mean in entry.values()])
        weights = precisions / precisions.sum()
        log_time = float(weights @ [mean.log_time for mean in entry.values()])
        offset = float(weights @ np.log(np.array(list(entry)) / grid_size))  # of ln b
        variance = max(NOISE_SD**2, 1.0 / precisions.sum()) + (SLOPE_SD * offset) ** 2
        return log_time - offset * self._slope(number, offset), variance

    def _slope(self, number: int, offset: float) -> float:
        """d ln S / d ln b between an entry and its neighbour on the side of `offset`."""
        step = int(np.sign(offset))
        beside, on_grid = number + step, 0 <= number % len(self.batch) + step < len(self.batch)
        if self._rounds == 0 or step == 0 or not on_grid:
            return float(self._prior[-1, 0])
        distance = math.log(self._points[beside, 4] / self._points[number, 4])
        return float(self._log_times[beside] - self._log_times[number]) / distance

    def _variance(self, mean: _Mean, variation: float) -> float:
        old = OLD_SD**2 if mean.era != self._era else 0.0
        return NOISE_SD**2 + variation**2 / mean.batches + mean.apart_sd**2 + old

    def _mean(self, fit: Fit) -> np.ndarray:
        weights = self._prior[:, 0] + self._prior[:, 1] ** 2 * (fit.features.T @ fit.alpha)
        known = self._features[fit.hypothesis] @ weights
        mean: np.ndarray = self._first_log_time + known + self._cross[fit.hypothesis.crowding] @ fit.alpha
        return mean


def _apart_sd(row: ServiceTimes, mean_busy: float | None) -> float:
    """sd of ln S: the further a number of busy instances is from their mean, the less that tells of it."""
    return 0.0 if mean_busy is None else APART_SD * abs(math.log(row.busy_instances / mean_busy))


def _merged(before: _Mean, log_time: float, batches: float, apart_sd: float) -> tuple[float, float, float]:
    """Two means as one. What batches vary by averages out, but what telling apart gets wrong does not."""
    remembered = min(before.batches, MAX_BATCHES)
    weights = _precision(remembered, before.apart_sd), _precision(batches, apart_sd)
    log_time = float(np.average([before.log_time, log_time], weights=weights))
    if not (apart_sd or before.apart_sd):
        return log_time, batches + remembered, 0.0
    apart_sd = float(np.average([before.apart_sd, apart_sd], weights=weights))
    shares = np.array(weights) / sum(weights)
    return log_time, 1.0 / float(shares**2 @ (1 / np.array([remembered, batches]))), apart_sd


def _precision(batches: float, apart_sd: float) -> float:
    """How much a mean counts, in batches."""
    return batches / (1 + batches * (apart_sd / BATCH_SD) ** 2)


def _batch_grid(largest: int) -> np.ndarray:
    return np.array([size for size in BATCH_SIZES if size < largest] + [largest])
