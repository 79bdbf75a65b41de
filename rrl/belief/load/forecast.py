"""The load to expect next, as a distribution of arrivals: stretches of them that may come.

What may come next is what came in the last intervals, moved towards the level of now (`rate_filter`) by what
of its distance from the mean lasts. Where the load stays at levels that it has come to, all stretches come at
about the level of now. Where it swings and comes back, they come about as they came, at the levels of then.

So bursts stay as long and as steep as they were. Until enough intervals were seen, stretches of the same
dispersion are invented beside them. After a surprise the level of now is that of the newest interval or what
it was. Most requests come at the higher of the two. So a single quiet interval says little of what is best.

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

from rrl.belief.drift import Slowness
from rrl.belief.load.rate_filter import LEAST_RATE_PER_S, NO_RATE, FilteredRate
from rrl.measurement import MAX_POINTS, Measurement
from rrl.queueing.windows import Windows, as_windows, shortened

LEAST_ROOT = math.sqrt(LEAST_RATE_PER_S)
MEMORY = 20  # intervals whose arrivals may come again
LEAST_WINDOWS = 12  # of which those not seen are invented
MAX_INVENTED_SD = 0.5  # of ln of the rate of an invented stretch
MAX_REQUESTS = 5000  # in all stretches, where more than `LEAST_WINDOWS` are taken
MAX_REQUESTS_OF_FEW = 100_000  # in all of at most `LEAST_WINDOWS`, of which there are at least two
MAX_REQUESTS_OF_ONE = MAX_REQUESTS_OF_FEW // 2  # of an interval with more, a shorter stretch is replayed
MAX_CAME = 20_000  # requests, of what came one stretch after the other
SLICES = 16  # of an invented stretch, each with a rate of its own
MAX_POISSON_DISPERSION = 1.3  # up to it arrivals count as Poisson
DISPERSION_WEIGHT = 0.25  # of the newest interval in the usual dispersion, once several were told


class _Stretch(NamedTuple):
    """The arrivals of an interval."""

    offsets_s: np.ndarray  # ascending, of a stretch that is as long as can be replayed
    duration_s: float
    time: int  # the interval's number since the first
    requests: int  # of all of it
    lasted_s: float  # all of it
    then_s: float = 0.0  # that passed after it, of which nothing was learned


class LoadForecast:
    """NaN until the first interval with requests."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._time = 0  # of the last interval
        self._level = NO_RATE
        self._dispersion = 1.0
        self._told = 0  # dispersions
        self.items_per_request = 1.0
        """Of the last interval, or of the last one that told."""
        self._seen: deque[_Stretch] = deque(maxlen=MEMORY)
        self._seed = int(rng.integers(2**32))
        self._order = rng.permutation(LEAST_WINDOWS)
        self._units: list[np.ndarray] = []
        self._units_for = 0, 0.0  # requests, dispersion

    def add(self, measurement: Measurement) -> None:
        """Takes in an interval in which requests came."""
        self._time += 1
        offsets_s = self.offsets_s(measurement, self._rng)
        self.items_per_request = len(offsets_s) / measurement.arrivals
        self._take_dispersion(measurement.dispersion * self.items_per_request)
        lasted_s = measurement.duration_s
        stretch = shortened(offsets_s, lasted_s, MAX_REQUESTS_OF_ONE)
        self._seen.append(_Stretch(*stretch, self._time, len(offsets_s), lasted_s))
        counts = [each.requests for each in self._seen]
        self._level = FilteredRate.after(counts, [each.lasted_s for each in self._seen], self.dispersion)

    def offsets_s(self, measurement: Measurement, rng: np.random.Generator) -> np.ndarray:
        """(items,) when they came; as bursty as the load usually is where the target does not tell."""
        return arrival_offsets_s(measurement, rng, self.dispersion, self.items_per_request)

    def passed(self, duration_s: float) -> None:
        """In this time nothing came, or it is not known what did."""
        if self._seen:
            last = self._seen[-1]
            self._seen[-1] = last._replace(then_s=last.then_s + duration_s)

    @property
    def longest_silence_s(self) -> float:
        """The longest time without requests, of those remembered, after which requests came again."""
        return max((each.then_s for each in list(self._seen)[:-1]), default=0.0)

    @property
    def rate_per_s(self) -> float:
        """On average over what may come next."""
        return self._level.rate_per_s

    @property
    def mean_rate_per_s(self) -> float:
        """Of what is remembered, while requests came."""
        return self._level.mean**2

    @property
    def log_sd(self) -> float:
        """Standard deviation of ln of the rate that will be counted in the next interval."""
        return self._level.log_sd

    @property
    def _interval_s(self) -> float:
        """Of a usual interval."""
        return median(each.lasted_s for each in self._seen)

    @property
    def dispersion(self) -> float:
        """I; 1 where arrivals are about Poisson."""
        return self._dispersion if self._dispersion > MAX_POISSON_DISPERSION else 1.0

    def times(self, factor: float) -> LoadForecast:
        """The same arrivals so many times as fast, to be asked of and not to learn."""
        other = copy(self)
        other._level = self._level.times(factor)
        faster = (
            s._replace(
                offsets_s=s.offsets_s / factor,
                duration_s=s.duration_s / factor,
                lasted_s=s.lasted_s / factor,
                then_s=s.then_s / factor,
            )
            for s in self._seen
        )
        other._seen = deque(faster, maxlen=MEMORY)
        return other

    def windows(self, together: int, slowness: Slowness) -> Windows:
        """The stretches that may come next, oldest first; what is invented comes before what was seen.

        Of many requests only some stretches are taken, spread over what is remembered. Each is taken whole: a
        part of a burst would leave less waiting than all of it. Only what alone has too many is shortened.

        In each the machine is as slow as it was then, over what it was in all of them on average: how slow it
        will be on average is told elsewhere.
        """
        size = float(np.mean([len(each.offsets_s) for each in self._seen]))
        fit = max(2, int(MAX_REQUESTS / max(size, 1.0)))
        few = min(LEAST_WINDOWS, int(MAX_REQUESTS_OF_FEW / max(size, 1.0)))
        chosen = _spread(len(self._seen), max(fit, few), together)
        missing = max(0, min(fit, LEAST_WINDOWS) - len(self._seen))
        stretches = [self._seen[k] for k in chosen]
        came_at = np.maximum(self._level.roots[chosen], LEAST_ROOT)
        levels = self._levels(missing + len(chosen), together)
        came_at[-1] = levels[-1]  # whichever its level is, the newest comes as it came
        came_at = np.concatenate([np.resize(came_at, missing), came_at])
        roots = came_at + self._level.lasting * (levels - came_at)
        speeds_up = (roots[missing:] / came_at[missing:]) ** 2
        gaps = [_sped(*each) for each in zip(stretches, speeds_up, strict=True)]
        log_slowness = np.array([slowness.seen.get(each.time, 0.0) for each in stretches])
        log_slowness = log_slowness - log_slowness.mean()
        if missing:
            gaps = self._invented(roots[:missing] ** 2) + gaps
            quantiles = self._order[::-1][self._order[::-1] < missing]
            invented = slowness.sd * ndtri((quantiles + 0.5) / missing)
            log_slowness = np.concatenate([invented, log_slowness])
        return as_windows(gaps, together, np.exp(log_slowness))

    def came(self, slowness: Slowness) -> Windows:
        """What is remembered, one stretch after the other, on the machine as slow as it was in each.

        Of many requests only the newest stretches are taken.
        """
        requests = np.cumsum([len(each.offsets_s) for each in reversed(self._seen)])
        count = max(1, int(np.searchsorted(requests, MAX_CAME, side="right")))
        stretches = list(self._seen)[-count:]
        slower = np.exp([slowness.seen.get(each.time, 0.0) for each in stretches])
        lasted = [(each.offsets_s, each.duration_s + each.then_s) for each in stretches]
        return as_windows(lasted, count, slower)

    def _levels(self, count: int, together: int) -> np.ndarray:
        """(count,) roots that it may be now, each as likely, and the same in stretches that go together."""
        level, groups = self._level, -(-count // together)
        at_usual = max(1, round((1 - level.jumped) * groups))
        roots = np.full(groups, level.usual)
        if at_usual < groups:  # The newest is one of those that are not.
            order = np.random.default_rng(self._seed).permutation(groups - 1)
            roots[order[at_usual:]] = roots[-1] = level.newest
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
    groups = np.linspace(0, available // together - 1, max(1, count // together)).round().astype(int)
    back = together * groups[:, None] + np.arange(together)
    return np.sort(available - 1 - back.ravel())


def _sped(stretch: _Stretch, speed: float) -> tuple[np.ndarray, float]:
    """Offsets and duration, so many times as fast."""
    return stretch.offsets_s / speed, stretch.duration_s / speed


def arrival_offsets_s(
    measurement: Measurement,
    rng: np.random.Generator,
    usual_dispersion: float = 1.0,
    usual_items_per_request: float = 1.0,
) -> np.ndarray:
    """(items,) when they came, as far as the target tells; else spread as its dispersion says.

    Where it tells none, they are spread as `usual_dispersion`, of items, says, and are as large as usual.
    """
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
    count, size = max(measurement.arrivals, 1), items_per_request(measurement, usual_items_per_request)
    told = math.isfinite(measurement.dispersion)
    dispersion = measurement.dispersion if told else usual_dispersion / size
    requests_s = measurement.duration_s * _invented(rng, count, max(dispersion, 1.0))
    items = np.diff(np.round(size * np.arange(count + 1))).astype(int)
    return np.repeat(requests_s, items)


def items_per_request(measurement: Measurement, usual: float = 1.0) -> float:
    """On average, at least 1; what is usual where the interval does not tell."""
    summary = measurement.arrival_summary
    if summary.offsets_s:
        return sum(summary.items) / sum(summary.requests)
    items = sum(row.count * row.batch_size for row in measurement.telemetry)
    return max(1.0, items / measurement.completions) if items and measurement.completions else usual


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
