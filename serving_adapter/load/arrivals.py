"""Arrival processes: when requests come.

Each is a frozen dataclass with `mean_rate_per_s`, its long-run mean, and `times_s(rng)`, which yields
ascending chunks of absolute moments in seconds from 0, for ever (a trace: to its end). The same seed gives
the same moments.

All but `Uniform` and the traces are Poisson processes whose rate λ(t) is constant or a step function. On a
step of length h the number of arrivals is Poisson(λh). Given their number, they are independent and uniform
over the step. This is exact, and unlike thinning it draws nothing in vain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Protocol

import numpy as np

from serving_adapter.load.recordings import RECORDED, recorded_arrivals
from serving_adapter.load.trace_files import read_trace
from serving_adapter.load.traces import ARRIVALS_PER_CHUNK, CountTrace, TimestampTrace, Trace

__all__ = [
    "PROCESSES",
    "RECORDED",
    "Arrivals",
    "Bursts",
    "CountTrace",
    "Dynamic",
    "Poisson",
    "TimestampTrace",
    "Trace",
    "Uniform",
    "Wiki",
    "make_arrivals",
    "read_trace",
    "stepwise_poisson",
]

MINUTES_PER_DAY = 1440
DEFAULT_RATE_PER_S = 10.0


class Arrivals(Protocol):
    @property
    def mean_rate_per_s(self) -> float: ...

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]: ...


@dataclass(frozen=True)
class _SteadyRate:
    rate_per_s: float

    def __post_init__(self) -> None:
        _require_above_zero("rate_per_s", self.rate_per_s)

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s


@dataclass(frozen=True)
class Uniform(_SteadyRate):
    """Evenly spaced, the first at 0."""

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for first in count(0, ARRIVALS_PER_CHUNK):
            yield np.arange(first, first + ARRIVALS_PER_CHUNK) / self.rate_per_s


@dataclass(frozen=True)
class Poisson(_SteadyRate):
    """Independent, exponential gaps."""

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        last_s = 0.0
        while True:
            times_s = last_s + np.cumsum(rng.exponential(1 / self.rate_per_s, ARRIVALS_PER_CHUNK))
            last_s = float(times_s[-1])
            yield times_s


@dataclass(frozen=True)
class Dynamic:
    """Periods of a Poisson process, each with a random mean (RRL, section 6.1).

    A period's mean is uniform over rate_per_s * (1 ± spread). The paper names neither the length of its
    periods nor the distribution of their means.
    """

    rate_per_s: float
    period_s: float = 60.0
    spread: float = 0.8  # up to 1; 0 is plain Poisson

    def __post_init__(self) -> None:
        _require_above_zero("rate_per_s", self.rate_per_s)
        _require_above_zero("period_s", self.period_s)
        _require_within_0_and_1("spread", self.spread)

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        return stepwise_poisson(rng, self.steps(rng))

    def steps(self, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        """(length in s, rate per s) of every step of λ(t), for ever."""
        while True:
            yield self.period_s, self.rate_per_s * rng.uniform(1 - self.spread, 1 + self.spread)


@dataclass(frozen=True)
class Wiki:
    """The shape of Wikipedia's traffic: a daily wave, slow noise and sudden spikes, the day compressed.

    λ = base * (1 + amplitude * sin(2π t / day)) * noise + spikes, by steps of a 1440th of the day. The base
    is such that the long-run mean is rate_per_s.

    Wave and noise are fitted to the minutes of 18-30 September 2007 (WikiBench; Urdaneta, Pierre, van Steen
    2009). Those days hold few spikes, which RRL's figure 12(a) makes the mark of the workload. So their
    number and height are ours.
    """

    rate_per_s: float
    day_s: float = 3600.0  # how long a day takes here
    amplitude: float = 0.33  # of the daily wave, as a share of the base
    noise: float = 0.13  # standard deviation of the noise's logarithm
    noise_correlation: float = 0.99  # between neighbouring minutes of the day
    spikes_per_day: float = 8.0
    spike_height: float = 1.0  # of one spike, as a share of rate_per_s
    spike_minutes: int = 10  # of the compressed day's 1440

    def __post_init__(self) -> None:
        _require_above_zero("rate_per_s", self.rate_per_s)
        _require_above_zero("day_s", self.day_s)
        _require_within_0_and_1("amplitude", self.amplitude)
        _require_within_0_and_1("noise_correlation", self.noise_correlation)
        if not self._spike_share < 1:
            raise ValueError(f"the spikes alone would exceed the rate: {self._spike_share:g} times of it")

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s

    @property
    def _spike_share(self) -> float:
        """The share of all requests that the spikes bring."""
        return self.spikes_per_day * self.spike_minutes / MINUTES_PER_DAY * self.spike_height

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        return stepwise_poisson(rng, self.steps(rng))

    def steps(self, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        """(length in s, rate per s) of every step of λ(t), for ever."""
        wave = 1 + self.amplitude * np.sin(2 * np.pi * (np.arange(MINUTES_PER_DAY) + 0.5) / MINUTES_PER_DAY)
        base_per_s = self.rate_per_s * (1 - self._spike_share)
        log_noise = self.noise * rng.standard_normal()
        fresh = self.noise * math.sqrt(1 - self.noise_correlation**2)  # keeps the noise stationary
        spikes = np.zeros(MINUTES_PER_DAY + self.spike_minutes)  # active in each minute
        while True:
            starts = rng.poisson(self.spikes_per_day / MINUTES_PER_DAY, MINUTES_PER_DAY)
            for start in np.repeat(np.arange(MINUTES_PER_DAY), starts):
                spikes[start : start + self.spike_minutes] += 1
            shocks = fresh * rng.standard_normal(MINUTES_PER_DAY)
            for minute in range(MINUTES_PER_DAY):
                log_noise = self.noise_correlation * log_noise + shocks[minute]
                noise = math.exp(log_noise - self.noise**2 / 2)  # mean 1
                rate_per_s = base_per_s * wave[minute] * noise
                rate_per_s += self.rate_per_s * self.spike_height * spikes[minute]
                yield self.day_s / MINUTES_PER_DAY, rate_per_s
            spikes = np.concatenate([spikes[MINUTES_PER_DAY:], np.zeros(MINUTES_PER_DAY)])


@dataclass(frozen=True)
class Bursts:
    """A Markov-modulated Poisson process of two states, calm and burst, with exponential stays in each."""

    rate_per_s: float
    burst_ratio: float = 5.0  # rate in a burst / rate in calm; inf is silence between bursts
    mean_burst_s: float = 2.0
    mean_calm_s: float = 18.0

    def __post_init__(self) -> None:
        _require_above_zero("rate_per_s", self.rate_per_s)
        if self.burst_ratio != math.inf:
            _require_above_zero("burst_ratio", self.burst_ratio)
        _require_above_zero("mean_burst_s", self.mean_burst_s)
        _require_above_zero("mean_calm_s", self.mean_calm_s)

    @property
    def mean_rate_per_s(self) -> float:
        return self.rate_per_s

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        return stepwise_poisson(rng, self._steps(rng))

    def _steps(self, rng: np.random.Generator) -> Iterator[tuple[float, float]]:
        cycle_s = self.mean_calm_s + self.mean_burst_s
        burst_per_s = self.rate_per_s * cycle_s / (self.mean_burst_s + self.mean_calm_s / self.burst_ratio)
        in_burst = rng.random() < self.mean_burst_s / cycle_s  # starts in equilibrium
        while True:
            if in_burst:
                yield rng.exponential(self.mean_burst_s), burst_per_s
            else:
                yield rng.exponential(self.mean_calm_s), burst_per_s / self.burst_ratio
            in_burst = not in_burst


PROCESSES = ("poisson", "dynamic", "wiki", "bursts")
TRACE_ENDINGS = (".csv", ".tsv", ".jsonl")


def make_arrivals(
    text: str,
    rate_per_s: float | None,
    *,
    period_s: float = Dynamic.period_s,
    day_s: float = Wiki.day_s,
    speed_up: float | None = None,
    offset_s: float = 0.0,
    bin_s: float | None = None,
    time_unit: str | None = None,
    recording: Path | None = None,
) -> Arrivals:
    """The process a command line names: poisson, dynamic, wiki, bursts, or a trace FILE.csv or .jsonl.

    `recorded` is when the requests of `recording` came, at this rate if there is one.
    """
    if rate_per_s is not None:
        _require_above_zero("rate_per_s", rate_per_s)
    if text == RECORDED:
        return recorded_arrivals(recording, rate_per_s, speed_up)
    if rate_per_s is None:
        raise ValueError(f"arrivals {text!r} need a rate")
    if text == "poisson":
        return Poisson(rate_per_s)
    if text == "dynamic":
        return Dynamic(rate_per_s, period_s=period_s)
    if text == "wiki":
        return Wiki(rate_per_s, day_s=day_s)
    if text == "bursts":
        return Bursts(rate_per_s)
    if text.endswith(TRACE_ENDINGS):
        return read_trace(
            Path(text),
            rate_per_s,
            speed_up=speed_up,
            offset_s=offset_s,
            bin_s=bin_s,
            time_unit=time_unit,
        )
    raise ValueError(
        f"unknown arrivals {text!r}; expected {', '.join(PROCESSES)}, {RECORDED} or a trace FILE.csv"
    )


def stepwise_poisson(rng: np.random.Generator, steps: Iterator[tuple[float, float]]) -> Iterator[np.ndarray]:
    """A Poisson process over steps of (length in s, rate per s); long steps come in several chunks."""
    step_starts_s = 0.0
    for length_s, rate_per_s in steps:
        chunks = math.ceil(rate_per_s * length_s / ARRIVALS_PER_CHUNK) or 1
        chunk_s = length_s / chunks
        for chunk in range(chunks):
            moments = rng.random(rng.poisson(rate_per_s * chunk_s))
            if moments.size:
                yield step_starts_s + (chunk + np.sort(moments)) * chunk_s
        step_starts_s += length_s


def _require_above_zero(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} must be above 0, got {value:g}")


def _require_within_0_and_1(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {value:g}")
