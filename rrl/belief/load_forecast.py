"""The load to expect next, as a distribution of arrivals: stretches of them that may come.

Its level is a Kalman filter on the root of the rate, whose counting noise is the same at all rates. It lets
go when the load jumps.

| symbol | here | meaning |
|---|---|---|
| y_t | | root of the rate counted in interval t, of T seconds |
| x | `_roots` | root of the rate expected |
| P | `_variance` | its variance |
| λ | `_Level.jumped` | probability that the load has jumped in the newest interval |
| I | `_dispersion` | index of dispersion of counts: 1 for Poisson arrivals, more for bursts |
| v | `_noise` | variance of y_t: I/4T, or what is usual between intervals if that is more |
| q | `WALK_SD`² x² / 4 | what the load itself may drift by in an interval |
| m_t | `_mean` | root of the mean rate of the intervals remembered until t |
| w | `_lasting` | how much of x - m is left an interval later |

A surprise beyond √2 of its standard deviations is taken in part for a jump: half of its excess is added to P,
so that the newest interval counts for more, and a great surprise for nearly all. Where the load swings in
most intervals, that is the noise which is usual, and no jump.

What may come next is what came in the last intervals, moved towards the level of now. Where the load stays at
levels that it has come to, w is near 1, and all stretches come at about the level of now. Where it swings and
comes back, w is near 0, and they come about as they came, at the levels of then. w is the slope of
y_(t+1) - m_t over x_t - m_t. The distance of now counts as one that lasts, and chance (`CHANCE` v) as one
that does not. No distance counts for more than that of now: one burst, or one lull, does not decide.

So bursts stay as long and as steep as they were. Until enough intervals were seen, stretches of the same
dispersion are invented beside them. After a surprise the level of now is that of the newest interval with
probability λ, else what it was. Most requests come at the higher of the two. So a single quiet interval says
little of what is best.

A request of several items counts as so many arrivals, as batches and service times are told of items.
"""

from __future__ import annotations

import math
from collections import deque
from copy import copy
from statistics import median
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from rrl.belief.drift import Speeds
from rrl.measurement import MAX_POINTS, Measurement
from rrl.queueing.kernels import Windows

WALK_SD = 0.03  # of ln of the rate, in an interval
CHANCE = 4.0  # squared distances from the mean that say nothing, in variances of y_t
LEAST_SURPRISES = 4
MEDIAN_OF_SQUARE = 0.455  # of a normal variable of variance 1
LEAST_RATE_PER_S = 0.01
LEAST_ROOT = math.sqrt(LEAST_RATE_PER_S)
MEMORY = 20  # intervals whose arrivals may come again
LEAST_WINDOWS = 12  # of which those not seen are invented
MAX_JUMPED = 1 - 1 / LEAST_WINDOWS  # one interval alone never settles that the load is another
MAX_INVENTED_SD = 0.5  # of ln of the rate of an invented stretch
MAX_REQUESTS = 5000  # in all stretches, of which there are at least two
SLICES = 16  # of an invented stretch, each with a rate of its own
MAX_POISSON_DISPERSION = 1.3  # up to it arrivals count as Poisson
DISPERSION_WEIGHT = 0.25  # of the newest interval in the usual dispersion, once several were told


class _Stretch(NamedTuple):
    """The arrivals of an interval."""

    offsets_s: np.ndarray  # ascending
    duration_s: float
    time: int  # the interval's number since the first

    @property
    def root(self) -> float:
        """y_t"""
        return math.sqrt(len(self.offsets_s) / self.duration_s)


class _Level(NamedTuple):
    """What the load may be by now, as roots of rates."""

    usual: float  # if it has not jumped in the newest interval
    newest: float  # if it has
    jumped: float  # probability

    @property
    def rate_per_s(self) -> float:
        return (1 - self.jumped) * self.usual**2 + self.jumped * self.newest**2

    def from_mean(self, root: float, share: float) -> _Level:
        """What is left of it if so much of its distance from this root lasts."""
        usual, newest = (root + share * (each - root) for each in self[:2])
        return _Level(usual, newest, self.jumped)


class LoadForecast:
    """NaN until the first interval with requests."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._time = 0  # of the last interval
        self._roots = [math.nan]  # x when each of the intervals remembered was over
        self._level = _Level(math.nan, math.nan, 0.0)
        self._mean, self._lasting = math.nan, 1.0  # m and w
        self._variance = self._noise = 0.0
        self._dispersion = 1.0
        self._told = 0  # dispersions
        self.items_per_request = 1.0
        """Of the last interval."""
        self._seen: deque[_Stretch] = deque(maxlen=MEMORY)
        self._seed = int(rng.integers(2**32))
        self._order = rng.permutation(LEAST_WINDOWS)
        self._units: list[np.ndarray] = []
        self._units_for = 0, 0.0  # requests, dispersion

    def add(self, measurement: Measurement) -> None:
        """Takes in an interval in which requests came."""
        self._time += 1
        offsets_s = arrival_offsets_s(measurement, self._rng)
        self.items_per_request = len(offsets_s) / measurement.arrivals
        self._take_dispersion(measurement.dispersion * self.items_per_request)
        self._seen.append(_Stretch(offsets_s, measurement.duration_s, self._time))
        self._filter()

    @property
    def rate_per_s(self) -> float:
        """On average over what may come next."""
        lasts = self._level.from_mean(self._mean, self._lasting)
        return max(lasts.rate_per_s, LEAST_RATE_PER_S)

    @property
    def present_rate_per_s(self) -> float:
        """That of now, which need not last."""
        return max(self._level.rate_per_s, LEAST_RATE_PER_S)

    @property
    def log_sd(self) -> float:
        """Standard deviation of ln of the rate that will be counted in the next interval."""
        root = math.sqrt(self.rate_per_s)
        return 2 * math.sqrt(self._variance + self._noise + (WALK_SD * root / 2) ** 2) / root

    @property
    def _interval_s(self) -> float:
        """Of a usual interval."""
        return median(each.duration_s for each in self._seen)

    def _filter(self) -> None:
        """The level when each interval remembered was over, given the noise that is usual by now.

        It begins with the first of them. What was taken for a jump is none where such swings turn out usual.
        """
        counting = self._noise = self.dispersion / (4 * self._interval_s)
        for _ in range(2):
            surprises = self._filtered()
            if len(surprises) >= LEAST_SURPRISES:
                usual = median(surprises) / MEDIAN_OF_SQUARE
                self._noise = max(counting, usual - self._variance)
        self._mean, self._lasting = self._what_lasts()

    def _what_lasts(self) -> tuple[float, float]:
        """m and w after the last interval."""
        roots = np.array([each.root for each in self._seen])
        counts = np.array([len(each.offsets_s) for each in self._seen])
        means = np.sqrt(np.cumsum(counts) / np.cumsum([each.duration_s for each in self._seen]))
        away, later = np.array(self._roots) - means, roots[1:] - means[:-1]
        now = abs(float(away[-1]))
        away, later = np.clip(away, -now, now), np.clip(later, -now, now)
        slope = (away[:-1] @ later + now**2) / (away @ away + CHANCE * self._noise)
        return float(means[-1]), min(max(float(slope), 0.0), 1.0)

    def _filtered(self) -> list[float]:
        """The squared surprises."""
        first, *others = self._seen
        self._roots, self._variance, surprises = [first.root], self._noise, []
        self._level = _Level(first.root, first.root, 0.0)
        for stretch in others:
            root, surprise = self._roots[-1], stretch.root - self._roots[-1]
            variance = self._variance + (WALK_SD * root / 2) ** 2
            usual_gain = variance / (variance + self._noise)
            usual = math.sqrt(2.0 * (variance + self._noise))
            variance += 0.5 * max(0.0, surprise**2 - usual**2)
            gain = variance / (variance + self._noise)
            jumped = min((gain - usual_gain) / (1 - usual_gain), MAX_JUMPED)
            as_usual = root + usual_gain * min(max(surprise, -usual), usual)
            self._level = _Level(as_usual, stretch.root, jumped)
            self._roots.append(root + gain * surprise)
            self._variance = (1 - gain) * variance
            surprises.append(surprise**2)
        return surprises

    @property
    def dispersion(self) -> float:
        """I; 1 where arrivals are about Poisson."""
        return self._dispersion if self._dispersion > MAX_POISSON_DISPERSION else 1.0

    def times(self, factor: float) -> LoadForecast:
        """The same arrivals so many times as fast, to be asked of and not to learn."""
        other = copy(self)
        other._roots = [math.sqrt(factor) * root for root in self._roots]
        usual, newest, jumped = self._level
        other._level = _Level(math.sqrt(factor) * usual, math.sqrt(factor) * newest, jumped)
        other._mean = math.sqrt(factor) * self._mean
        other._variance, other._noise = factor * self._variance, factor * self._noise
        faster = (_Stretch(s.offsets_s / factor, s.duration_s / factor, s.time) for s in self._seen)
        other._seen = deque(faster, maxlen=MEMORY)
        return other

    def windows(self, together: int, speeds: Speeds) -> Windows:
        """The stretches that may come next, oldest first; what is invented comes before what was seen.

        Of many requests only some stretches are taken, spread over what is remembered.

        In each the machine is as slow as it was then, over what it was in all of them on average: how slow it
        will be on average is told elsewhere.
        """
        size = float(np.mean([len(each.offsets_s) for each in self._seen]))
        count = max(2, min(max(len(self._seen), LEAST_WINDOWS), int(MAX_REQUESTS / max(size, 1.0))))
        chosen = _spread(len(self._seen), count, together)
        missing = max(0, count - len(self._seen))
        stretches = [self._seen[k] for k in chosen]
        came_at = np.maximum(np.array(self._roots)[chosen], LEAST_ROOT)
        levels = self._levels(missing + len(chosen), together)
        came_at[-1] = levels[-1]  # whichever its level is, the newest comes as it came
        came_at = np.concatenate([np.resize(came_at, missing), came_at])
        roots = came_at + self._lasting * (levels - came_at)
        speeds_up = (roots[missing:] / came_at[missing:]) ** 2
        gaps = [_sped(*each) for each in zip(stretches, speeds_up, strict=True)]
        slowness = np.array([speeds.seen.get(each.time, 0.0) for each in stretches])
        log_slowness = slowness - slowness.mean()
        if missing:
            gaps = self._invented(roots[:missing] ** 2) + gaps
            quantiles = self._order[::-1][self._order[::-1] < missing]
            invented = speeds.sd * ndtri((quantiles + 0.5) / missing)
            log_slowness = np.concatenate([invented, log_slowness])
        return as_windows(gaps, together, np.exp(log_slowness))

    def _levels(self, count: int, together: int) -> np.ndarray:
        """(count,) roots that it may be now, each as likely, and the same in stretches that go together."""
        usual, newest, jumped = self._level
        groups = -(-count // together)
        at_usual = max(1, round((1 - jumped) * groups))
        roots = np.full(groups, usual)
        if at_usual < groups:  # The newest is one of those that are not.
            order = np.random.default_rng(self._seed).permutation(groups - 1)
            roots[order[at_usual:]] = roots[-1] = newest
        return np.maximum(np.repeat(roots, together)[:count], LEAST_ROOT)

    def _invented(self, levels_per_s: np.ndarray) -> list[tuple[np.ndarray, float]]:
        """Offsets and durations of as many requests as a usual interval has, at quantiles of the rate."""
        count = len(levels_per_s)
        requests = int(min(max(self.rate_per_s * self._interval_s, 20.0), MAX_REQUESTS / LEAST_WINDOWS))
        quantiles = self._order[self._order < count]
        sd = min(self.log_sd, MAX_INVENTED_SD)
        rates_per_s = levels_per_s * np.exp(sd * ndtri((quantiles + 0.5) / count) - sd**2 / 2)
        units = self._units_like(requests)
        return [
            (len(unit) / rate_per_s * unit, len(unit) / rate_per_s)
            for unit, rate_per_s in zip(units, rates_per_s, strict=False)
        ]

    def _units_like(self, requests: int) -> list[np.ndarray]:
        """Stretches of duration 1; new ones only where the load has become another."""
        usual, dispersion = self._units_for
        if not self._units or max(requests / usual, usual / requests) > 1.25 or dispersion != self.dispersion:
            rng = np.random.default_rng(self._seed)
            self._units = [_invented(rng, requests, self.dispersion) for _ in range(LEAST_WINDOWS)]
            self._units_for = requests, self.dispersion
        return self._units

    def _take_dispersion(self, dispersion: float) -> None:
        if not math.isfinite(dispersion):
            return
        self._told += 1
        weight = max(DISPERSION_WEIGHT, 1 / (self._told + 1))  # beside 1, which is expected at first
        log = (1 - weight) * math.log(self._dispersion) + weight * math.log(max(dispersion, 1.0))
        self._dispersion = math.exp(log)


def _spread(available: int, count: int, together: int) -> np.ndarray:
    """Ascending positions of at most so many of those available: all, or groups spread from the newest on."""
    if available <= count:
        return np.arange(available)
    groups = np.linspace(0, available // together - 1, count // together).round().astype(int)
    back = together * groups[:, None] + np.arange(together)
    return np.sort(available - 1 - back.ravel())


def _sped(stretch: _Stretch, speed: float) -> tuple[np.ndarray, float]:
    """Offsets and duration, so many times as fast."""
    return stretch.offsets_s / speed, stretch.duration_s / speed


def as_windows(
    stretches: list[tuple[np.ndarray, float]], together: int = 1, slowness: np.ndarray | None = None
) -> Windows:
    """Stretches given by offsets and duration, one after the other."""
    slowness = np.ones(len(stretches)) if slowness is None else slowness
    edge_s = np.concatenate([[0.0], np.cumsum([duration_s for _, duration_s in stretches])])
    bounds = np.concatenate([[0], np.cumsum([len(offsets_s) for offsets_s, _ in stretches])]).astype(np.int64)
    arrival_s = np.concatenate(
        [begin_s + offsets_s for begin_s, (offsets_s, _) in zip(edge_s[:-1], stretches, strict=True)]
    )
    return Windows(np.maximum.accumulate(arrival_s), bounds, edge_s, slowness, together)


def arrival_offsets_s(measurement: Measurement, rng: np.random.Generator) -> np.ndarray:
    """(items,) when they came, as far as the target tells; else spread as its dispersion says."""
    summary = measurement.arrival_summary
    if summary.offsets_s:
        starts_s = np.array(summary.offsets_s)
        requests, items = np.array(summary.requests), np.array(summary.items)
        # The requests of a group came within one of the slices of time that groups stand for.
        slice_s = (starts_s[-1] - starts_s[0]) / MAX_POINTS
        lengths_s = np.minimum(np.diff(starts_s, append=starts_s[-1] + slice_s), slice_s)
        place = np.arange(items.sum()) - np.repeat(np.cumsum(items) - items, items)
        within = place * np.repeat(requests, items) // np.repeat(items, items) / np.repeat(requests, items)
        return np.asarray(np.repeat(starts_s, items) + within * np.repeat(lengths_s, items))
    dispersion = max(measurement.dispersion, 1.0) if math.isfinite(measurement.dispersion) else 1.0
    count = max(measurement.arrivals, 1)
    requests_s = measurement.duration_s * _invented(rng, count, dispersion)
    items = np.diff(np.round(items_per_request(measurement) * np.arange(count + 1))).astype(int)
    return np.repeat(requests_s, items)


def items_per_request(measurement: Measurement) -> float:
    """On average, at least 1; 1 where the target does not tell."""
    summary = measurement.arrival_summary
    if summary.offsets_s:
        return sum(summary.items) / sum(summary.requests)
    items = sum(row.count * row.batch_size for row in measurement.telemetry)
    return max(1.0, items / measurement.completions) if measurement.completions else 1.0


def _invented(rng: np.random.Generator, requests: int, dispersion: float) -> np.ndarray:
    """(requests,) ascending offsets in [0, 1): Poisson, at a gamma-distributed rate in each slice."""
    times = np.cumsum(rng.exponential(size=requests + 1))
    share = times[:-1] / times[-1]
    if dispersion <= 1.0:
        return np.asarray(share)
    in_slice = requests / SLICES
    work = rng.gamma(in_slice / (dispersion - 1), size=SLICES) + 1e-6
    work = np.concatenate([[0.0], np.cumsum(work)]) / work.sum()
    return np.asarray(np.interp(share, work, np.linspace(0, 1, SLICES + 1)))
