"""The loads of a comparison: the true arrival rate of every interval, and arrivals that follow it exactly.

| text | rates |
|---|---|
| `stationary` | one rate |
| `dynamic` | periods of a random rate each (RRL, section 6.1): `serving_adapter.load.arrivals.Dynamic` |
| `wiki` | daily wave, slow noise and spikes (RRL, figure 12a): `serving_adapter.load.arrivals.Wiki` |
| `script` | the five loads of RRL's released script in turn, each for a fifth of the decisions |
| `minutes:wiki` | `wiki` with a day so long that at the mean rate each interval is a minute of it |
| `TRACE.csv` | the rates of a trace file, spread over the decisions |
| `minutes:TRACE.csv` | those of as many minutes of a trace as there are decisions, from a random one on |

An interval holds a fixed number of requests, so that it lasts the longer the lower its rate. Its rate is the
process's mean over it, put on a geometric grid of 5 % steps around the mean rate. So few distinct rates
occur, and the costs at each of them can be found by long simulation.

A trace is replayed once, whole. Its clock is sped up (or slowed down) so that its requests, at the mean rate
asked for, are as many as the run's. Every interval stands for the same number of the trace's requests. The
mean over time of the rates is the one asked for. `script` begins with that rate, and is lower in the mean. Of
a stretch of minutes the mean over the whole trace is the one asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from serving_adapter.load.arrivals import Dynamic, Wiki
from serving_adapter.load.trace_files import read_trace
from serving_adapter.load.traces import CountTrace, Trace

RATE_STEP = 1.05  # ratio of neighbouring rates of the grid
DYNAMIC_SPREAD = 0.5  # a period's rate lies within mean · (1 ± spread), which RRL does not give
SCRIPT_GAPS_MS = (70, 60, 70, 100, 120)  # between requests, in RRL's released script
MINUTES = "minutes:"
MINUTES_PER_DAY = 1440
WORKLOADS = ("stationary", "dynamic", "wiki", "script", f"{MINUTES}wiki")


class Workload(Protocol):
    def rates_per_s(self, decisions: int, rng: np.random.Generator) -> np.ndarray:
        """(decisions,) the true arrival rate of every interval."""
        ...


@dataclass(frozen=True)
class Stationary:
    """One rate."""

    rate_per_s: float

    def rates_per_s(self, decisions: int, rng: np.random.Generator) -> np.ndarray:
        return np.full(decisions, self.rate_per_s)


@dataclass(frozen=True)
class Modulated:
    """The rates of a process whose rate is a step function of time."""

    process: Dynamic | Wiki
    requests_per_interval: int = 100

    def rates_per_s(self, decisions: int, rng: np.random.Generator) -> np.ndarray:
        requests = self.requests_per_interval
        ends_s, expected = [0.0], [0.0]  # the integral of the rate
        steps = self.process.steps(rng)
        while expected[-1] < decisions * requests:
            length_s, rate_per_s = next(steps)
            ends_s.append(ends_s[-1] + length_s)
            expected.append(expected[-1] + length_s * rate_per_s)
        bounds_s = np.interp(np.arange(decisions + 1) * float(requests), expected, ends_s)
        return _on_grid(requests / np.diff(bounds_s), self.process.rate_per_s)


@dataclass(frozen=True)
class Replayed:
    """The rates of a whole trace, its clock sped up so that it lasts for all decisions."""

    trace: Trace
    requests_per_interval: int = 100

    def rates_per_s(self, decisions: int, rng: np.random.Generator) -> np.ndarray:
        """The rates between equal shares of the trace's requests. They do not depend on its clock."""
        lengths_s, rates_per_s = np.array(_steps_of(self.trace, self.requests_per_interval)).T
        ends_s, expected = (np.pad(np.cumsum(x), (1, 0)) for x in (lengths_s, lengths_s * rates_per_s))
        bounds_s = np.interp(np.linspace(0, expected[-1], decisions + 1), expected, ends_s)
        bounds_s[0], bounds_s[-1] = 0.0, ends_s[-1]  # idle time at the ends counts too
        return _on_grid(expected[-1] / decisions / np.diff(bounds_s), self.trace.mean_rate_per_s)


@dataclass(frozen=True)
class ScriptedPeriods:
    """The loads of `SCRIPT_GAPS_MS` in turn, each for as many decisions. The first is the rate asked for."""

    rate_per_s: float

    def rates_per_s(self, decisions: int, rng: np.random.Generator) -> np.ndarray:
        gaps = np.array(SCRIPT_GAPS_MS)
        period = np.arange(decisions) * len(gaps) // decisions
        rates: np.ndarray = self.rate_per_s * gaps[0] / gaps[period]
        return rates


@dataclass(frozen=True)
class MinutesOfTrace:
    """A stretch of a trace of counts, one bin of it for each decision, from a random bin on."""

    trace: CountTrace

    def rates_per_s(self, decisions: int, rng: np.random.Generator) -> np.ndarray:
        counts = np.maximum(self.trace.counts, 1)  # an interval has a rate
        if len(counts) < decisions:
            raise ValueError(
                f"the trace has {len(counts)} bins, too few for {decisions} decisions of a bin each: give "
                "fewer decisions, or the file without 'minutes:'"
            )
        first = int(rng.integers(len(counts) - decisions + 1))
        rates_per_s = counts[first : first + decisions] * self.trace.copies / self.trace.bin_s
        return _on_grid(rates_per_s, self.trace.mean_rate_per_s)


def make_workload(text: str, rate_per_s: float, requests_per_interval: int = 100) -> Workload:
    """The load that a command line names; ValueError that lists the known ones for an unknown one."""
    if not 0 < rate_per_s < math.inf:
        raise ValueError(f"the rate must be a positive number of requests per second, got {rate_per_s:g}")
    if requests_per_interval < 1:
        raise ValueError(f"an interval must hold at least 1 request, got {requests_per_interval}")
    if text == "stationary":
        return Stationary(rate_per_s)
    if text == "dynamic":
        return Modulated(Dynamic(rate_per_s, spread=DYNAMIC_SPREAD), requests_per_interval)
    if text == "wiki":
        return Modulated(Wiki(rate_per_s), requests_per_interval)
    if text == "script":
        return ScriptedPeriods(rate_per_s)
    if text == f"{MINUTES}wiki":
        day_s = MINUTES_PER_DAY * requests_per_interval / rate_per_s
        return Modulated(Wiki(rate_per_s, day_s=day_s), requests_per_interval)
    trace = trace_of(text)
    if trace is not None and text.startswith(MINUTES):
        return MinutesOfTrace(_counts(trace, rate_per_s))
    if trace is not None:
        return Replayed(read_trace(trace, rate_per_s), requests_per_interval)
    raise ValueError(f"unknown workload {text!r}; known: {', '.join(WORKLOADS)} or a trace FILE.csv")


def trace_of(text: str) -> Path | None:
    """The trace file of a load that a command line names; None for one that has none."""
    return Path(text.removeprefix(MINUTES)) if text.endswith(".csv") else None


@dataclass(frozen=True, eq=False)
class PerIntervalPoisson:
    """Poisson arrivals, equally many in each interval, each interval at a rate of its own. Then they end.

    Interval k begins with its first arrival and ends with the first of interval k + 1. So its length is the
    sum of `requests_per_interval` exponential gaps of mean 1/rates_per_s[k]. An environment's `reset` takes
    the first interval.
    """

    rates_per_s: np.ndarray  # (intervals,)
    requests_per_interval: int = 100

    def __post_init__(self) -> None:
        rates_per_s = np.asarray(self.rates_per_s, dtype=float)
        if rates_per_s.ndim != 1 or not np.all(np.isfinite(rates_per_s) & (rates_per_s > 0)):
            raise ValueError("the rates of the intervals must be a one-dimensional array of positive numbers")
        if self.requests_per_interval < 1:
            raise ValueError(f"an interval must hold at least 1 request, got {self.requests_per_interval}")

    @property
    def mean_rate_per_s(self) -> float:
        return len(self.rates_per_s) / float(np.sum(1 / np.asarray(self.rates_per_s)))

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """The arrival times, one chunk for each interval."""
        begin_s = 0.0
        for rate_per_s in self.rates_per_s:
            ends_s = begin_s + np.cumsum(rng.exponential(1 / rate_per_s, self.requests_per_interval))
            yield np.concatenate([[begin_s], ends_s[:-1]])
            begin_s = float(ends_s[-1])


def _on_grid(rates_per_s: np.ndarray, mean_per_s: float) -> np.ndarray:
    """The nearest rates of the grid: the mean rate times powers of `RATE_STEP`."""
    steps: np.ndarray = np.rint(np.log(rates_per_s / mean_per_s) / math.log(RATE_STEP))
    return mean_per_s * RATE_STEP**steps


def _counts(path: Path, rate_per_s: float) -> CountTrace:
    trace = read_trace(path, rate_per_s)
    if not isinstance(trace, CountTrace):
        raise ValueError(f"{path} holds moments; {MINUTES}FILE.csv needs requests counted per minute")
    return trace


def _steps_of(trace: Trace, requests: int) -> list[tuple[float, float]]:
    """(length, rate) of a trace's bins. A trace of timestamps gets bins of about `requests` each."""
    if isinstance(trace, CountTrace):
        return [(trace.bin_s, float(count) * trace.copies / trace.bin_s) for count in trace.counts]
    last = len(trace.moments_s) - 1
    bounds = np.linspace(0, last, max(1, last // requests) + 1).astype(int)
    lengths_s = np.diff(trace.moments_s[bounds])
    if np.any(lengths_s <= 0):
        return [(trace.duration_s, trace.mean_rate_per_s)]
    return list(zip(lengths_s.tolist(), (np.diff(bounds) / lengths_s).tolist(), strict=True))
