from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from serving_adapter.load.arrivals import (
    Arrivals,
    Bursts,
    CountTrace,
    Dynamic,
    Poisson,
    TimestampTrace,
    Uniform,
    Wiki,
    make_arrivals,
)

PROCESSES: dict[str, Callable[[float], Arrivals]] = {
    "uniform": Uniform,
    "poisson": Poisson,
    "dynamic": lambda rate: Dynamic(rate, period_s=2.0),
    "wiki": lambda rate: Wiki(rate, day_s=100.0),
    "bursts": Bursts,
    "bursts after silence": lambda rate: Bursts(rate, math.inf, mean_burst_s=0.8, mean_calm_s=3.0),
    "counts": lambda rate: CountTrace(np.arange(20_000) % 7, 0.5).at_rate(rate),
    "timestamps": lambda rate: TimestampTrace(np.cumsum(np.arange(20_000) % 7)).at_rate(rate),
}


def times_until(arrivals: Arrivals, end_s: float, seed: int = 1) -> np.ndarray:
    """All arrivals before a moment; the chunks must ascend, within and between them."""
    chunks = []
    last_s = 0.0
    for chunk in arrivals.times_s(np.random.default_rng(seed)):
        assert chunk.size > 0
        assert chunk[0] >= last_s
        assert (np.diff(chunk) >= 0).all()
        last_s = chunk[-1]
        chunks.append(chunk)
        if last_s >= end_s:
            break
    times_s = np.concatenate(chunks)
    return times_s[times_s < end_s]


def counts_per(times_s: np.ndarray, bin_s: float, end_s: float) -> np.ndarray:
    return np.histogram(times_s, bins=round(end_s / bin_s), range=(0, end_s))[0]


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("rate_per_s", [0.5, 100.0])
def test_the_long_run_mean_is_the_asked_rate(name: str, rate_per_s: float) -> None:
    arrivals = PROCESSES[name](rate_per_s)
    assert arrivals.mean_rate_per_s == pytest.approx(rate_per_s)
    end_s = 20_000 / rate_per_s if name == "timestamps" else 4000.0
    times_s = times_until(arrivals, end_s)
    # Five standard errors, from counts over windows that are longer than any process here remembers.
    counts = counts_per(times_s, end_s / 40, end_s)
    standard_error = counts.std() / math.sqrt(len(counts)) / (end_s / 40)
    assert len(times_s) / end_s == pytest.approx(rate_per_s, abs=5 * standard_error + 1e-3 * rate_per_s)


@pytest.mark.parametrize("name", PROCESSES)
def test_the_same_seed_gives_the_same_moments(name: str) -> None:
    arrivals = PROCESSES[name](50.0)
    first, again = (times_until(arrivals, 100.0, seed=3) for _ in range(2))
    assert np.array_equal(first, again)
    if name not in ("uniform", "timestamps"):
        assert not np.array_equal(first, times_until(arrivals, 100.0, seed=4))


def test_chunks_stay_small_at_a_high_rate() -> None:
    for make in PROCESSES.values():
        chunks = itertools.islice(make(100_000.0).times_s(np.random.default_rng(0)), 10)
        assert max(len(chunk) for chunk in chunks) < 150_000


def test_uniform_is_evenly_spaced_from_0() -> None:
    assert times_until(Uniform(4.0), 1.0).tolist() == [0.0, 0.25, 0.5, 0.75]


def test_poisson_gaps_are_exponential() -> None:
    gaps_s = np.sort(np.diff(times_until(Poisson(10.0), 2000.0)))
    expected = 1 - np.exp(-10.0 * gaps_s)
    empirical = np.arange(1, len(gaps_s) + 1) / len(gaps_s)
    assert np.abs(empirical - expected).max() < 1.63 / math.sqrt(len(gaps_s))  # Kolmogorov-Smirnov, 1%


def test_dynamic_is_poisson_within_a_period_and_uneven_between_them() -> None:
    times_s = times_until(Dynamic(200.0, period_s=10.0, spread=0.5), 5000.0)
    per_period = counts_per(times_s, 10.0, 5000.0) / 10.0
    assert per_period.min() > 100 - 5 * math.sqrt(10)
    assert per_period.max() < 300 + 5 * math.sqrt(30)
    assert per_period.std() == pytest.approx(200 * 0.5 / math.sqrt(3), rel=0.1)  # of a uniform mean
    within = counts_per(times_s, 1.0, 5000.0).reshape(-1, 10)
    dispersion = within.var(axis=1, ddof=1).mean() / within.mean()
    assert dispersion == pytest.approx(1.0, abs=0.1)


def test_wiki_follows_the_day_and_has_spikes() -> None:
    wiki = Wiki(1000.0, day_s=100.0, spikes_per_day=4.0, spike_height=2.0, spike_minutes=5)
    per_minute = counts_per(times_until(wiki, 3000.0), 100 / 1440, 3000.0)
    of_day = np.median(per_minute.reshape(30, 1440), axis=0)
    wave = np.sin(2 * np.pi * (np.arange(1440) + 0.5) / 1440)
    amplitude = 2 * (of_day * wave).mean() / of_day.mean()
    assert amplitude == pytest.approx(wiki.amplitude, abs=0.05)
    # A spike more than doubles the rate at once; noise and wave never do.
    smooth = np.convolve(per_minute, np.ones(5), "valid")
    jumps = smooth[5:] / smooth[:-5]
    assert jumps.max() > 1.8
    calm = Wiki(1000.0, day_s=100.0, spikes_per_day=0.0)
    smooth = np.convolve(counts_per(times_until(calm, 3000.0), 100 / 1440, 3000.0), np.ones(5), "valid")
    assert (smooth[5:] / smooth[:-5]).max() < 1.8


def test_bursts_are_burstier_than_poisson_in_the_degree_of_theory() -> None:
    bursts = Bursts(50.0, burst_ratio=10.0, mean_burst_s=1.0, mean_calm_s=4.0)
    counts = counts_per(times_until(bursts, 20_000.0), 100.0, 20_000.0)
    # Index of dispersion of a two-state MMPP for long windows: 1 + 2 (a-b)² r1 r2 / ((r1+r2)³ λ).
    calm = 50.0 * 5 / (4 + 10)
    leave_burst, leave_calm = 1 / 1.0, 1 / 4.0
    excess = 2 * (9 * calm) ** 2 * leave_burst * leave_calm / (leave_burst + leave_calm) ** 3 / 50.0
    assert counts.var() / counts.mean() == pytest.approx(1 + excess, rel=0.35)


def test_between_bursts_there_may_be_silence() -> None:
    """An interrupted Poisson process: its gaps are hyperexponential, so their variation is known."""
    on_s, off_s, rate_per_s = 0.8, 3.0, 50.0
    gaps_s = np.diff(times_until(Bursts(rate_per_s, math.inf, on_s, off_s), 20_000.0))
    burst_per_s = rate_per_s * (on_s + off_s) / on_s
    # A gap ends in the burst (λ) or leaves it first (1/on), and each absence adds an exponential stay (off).
    squared_variation = 1 + 2 * burst_per_s / on_s / (1 / on_s + 1 / off_s) ** 2
    assert gaps_s.std() / gaps_s.mean() == pytest.approx(math.sqrt(squared_variation), rel=0.05)


@pytest.mark.parametrize(
    ("text", "kind"), [("poisson", Poisson), ("dynamic", Dynamic), ("wiki", Wiki), ("bursts", Bursts)]
)
def test_processes_are_made_by_name(text: str, kind: type) -> None:
    arrivals = make_arrivals(text, 12.0)
    assert isinstance(arrivals, kind)
    assert arrivals.mean_rate_per_s == 12.0


def test_their_own_settings_reach_the_processes() -> None:
    assert make_arrivals("dynamic", 1.0, period_s=7.0) == Dynamic(1.0, period_s=7.0)
    assert make_arrivals("wiki", 1.0, day_s=70.0) == Wiki(1.0, day_s=70.0)


def test_nonsense_is_refused_with_what_was_expected() -> None:
    with pytest.raises(ValueError, match=r"unknown arrivals 'posson'; expected poisson, .* FILE\.csv"):
        make_arrivals("posson", 1.0)
    for rate_per_s in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="rate_per_s must be above 0"):
            make_arrivals("poisson", rate_per_s)
    with pytest.raises(ValueError, match="spread must be from 0 to 1, got 2"):
        Dynamic(1.0, spread=2.0)
    with pytest.raises(ValueError, match="the spikes alone would exceed the rate"):
        Wiki(1.0, spikes_per_day=1000.0)
    with pytest.raises(ValueError, match="mean_burst_s must be above 0"):
        Bursts(1.0, mean_burst_s=0.0)
