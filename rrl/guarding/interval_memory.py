"""What is remembered of a run's intervals, and which of them were at one load. Pure logic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rrl.load_levels import newest_of_each
from rrl.measured_costs import costs_by_configuration
from rrl.measurement import Measurement
from rrl.records import Kind

SAME_LOAD = 1.4  # rates within this factor are one load (Poisson noise of 100 requests: 10%)
LEAST_RATE_PER_S = 0.01  # what is less counts as this
ONE_LOAD_PER_S = 1.0  # stands for the load of a closed loop
COMPARABLE_LOAD = 1.15  # at rates within this factor, costs of two configurations compare directly


class Seen(NamedTuple):
    """One interval as it is remembered."""

    number: int
    rate_per_s: float
    cost: float
    latency_ms: float
    broke_limit: bool  # never of a short turn: the p95 of its few requests tells nothing
    overloaded: bool  # the queue grew beyond noise, and was long at the end
    completions: int
    kind: Kind


@dataclass
class IntervalMemory:
    """Every interval in which something was completed, in their order, and the present load."""

    closed_loop: bool = False  # all intervals are at one load, whatever rate it comes to
    rate_per_s: float = 0.0  # the present load
    all: list[Seen] = field(default_factory=list)
    numbers: set[int] = field(default_factory=set)  # the configurations that were measured, at whatever load
    _baseline: list[Seen] = field(default_factory=list)
    _near: list[Seen] = field(default_factory=list)  # the answer to what was asked last
    _near_asked: tuple[int, float] = (0, 0.0)  # what was asked: intervals seen, load

    @property
    def start_latency_ms(self) -> float:
        """Mean latency over the requests of the baseline intervals; NaN before the first."""
        baseline = self._baseline
        completions = sum(seen.completions for seen in baseline)
        return sum(s.completions * s.latency_ms for s in baseline) / completions if completions else math.nan

    def load_of(self, measurement: Measurement) -> float:
        """The rate by which its load is told: that of its arrivals, where these do not wait for answers."""
        return ONE_LOAD_PER_S if self.closed_loop else measurement.arrival_rate_per_s

    def add(self, seen: Seen) -> None:
        self.all.append(seen)
        self.numbers.add(seen.number)
        if seen.kind == "baseline":
            self._baseline.append(seen)

    def forget(self, newest: int, each: int) -> None:
        """Keeps the newest, and of each configuration at each load level the newest few before them."""
        older, kept = self.all[:-newest], self.all[-newest:]
        few = newest_of_each([(seen.number, seen.rate_per_s) for seen in older], each)
        self.all[:] = [*(older[i] for i in reversed(few)), *kept]
        self._near_asked = (-1, 0.0)

    def knows(self, number: int) -> bool:
        """True if this configuration was measured, at whatever load."""
        return number in self.numbers

    def near_present_load(self) -> list[Seen]:
        """The intervals at the present load; if there are none, those at the nearest load that was seen."""
        asked = len(self.all), self.rate_per_s
        if asked != self._near_asked:
            self._near, self._near_asked = self.nearest(self.all), asked
        return self._near

    def nearest(self, among: Sequence[Seen]) -> list[Seen]:
        """Those among these at the present load; if there are none, those at the nearest load."""
        if not among:
            return []
        ratios = _load_ratios(among, self.rate_per_s)
        nearest = int(np.argmin(ratios))
        if ratios[nearest] <= SAME_LOAD:
            return [among[i] for i in np.flatnonzero(ratios <= SAME_LOAD).tolist()]
        return _at_load(among[nearest].rate_per_s, among)

    def near_load_of(self, number: int) -> list[Seen]:
        """The intervals at the present load if this configuration was measured at it, else at its own."""
        near = self.near_present_load()
        if any(seen.number == number for seen in near):
            return near
        rates_per_s = [seen.rate_per_s for seen in self.all if seen.number == number]
        return _at_load(mean(rates_per_s), self.all) if rates_per_s else []


def no_lower_load(number: int, among: Sequence[Seen]) -> list[Seen]:
    """One configuration's intervals, and those of others that met no lower load than these.

    What cost less under as many requests is better. What cost less under fewer may not be.
    """
    rate_per_s = mean([seen.rate_per_s for seen in among if seen.number == number])
    return [s for s in among if s.number == number or s.rate_per_s >= rate_per_s / COMPARABLE_LOAD]


def costs_of(intervals: Sequence[Seen]) -> dict[int, list[float]]:
    return costs_by_configuration((seen.number, seen.cost) for seen in intervals)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _at_load(rate_per_s: float, among: Sequence[Seen]) -> list[Seen]:
    return [among[i] for i in np.flatnonzero(_load_ratios(among, rate_per_s) <= SAME_LOAD).tolist()]


def _load_ratios(among: Sequence[Seen], rate_per_s: float) -> np.ndarray:
    """(intervals,) how many times the larger of its rate and this one is the smaller."""
    rates_per_s = np.maximum([seen.rate_per_s for seen in among], LEAST_RATE_PER_S)
    rate_per_s = max(rate_per_s, LEAST_RATE_PER_S)
    return np.asarray(np.maximum(rates_per_s, rate_per_s) / np.minimum(rates_per_s, rate_per_s))
