"""The forecast: a level that follows the load but not each burst, and arrivals as they came."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from rrl.arrival_summary import dispersion_of_times, summarised
from rrl.belief.drift import Slowness
from rrl.belief.load.forecast import (
    LEAST_WINDOWS,
    MAX_REQUESTS_OF_FEW,
    MAX_REQUESTS_OF_ONE,
    LoadForecast,
    arrival_offsets_s,
)
from rrl.measurement import ArrivalSummary, Measurement, ServiceTimes
from serving_adapter.load.arrivals import Arrivals, Bursts, Poisson

INTERVAL_S = 10.0
SLOWNESS = Slowness({}, 0.0)


def measured(offsets_s: np.ndarray, tells_times: bool = True) -> Measurement:
    dispersion = dispersion_of_times(offsets_s, INTERVAL_S)
    summary = summarised(offsets_s) if tells_times else ArrivalSummary((), (), ())
    count = len(offsets_s)
    return Measurement(INTERVAL_S, count, count, 0, arrival_summary=summary, dispersion=dispersion)


def intervals(arrivals: Arrivals, count: int, seed: int = 0) -> Iterator[np.ndarray]:
    """(requests,) offsets of each of consecutive intervals in which something arrived."""
    times_s = np.empty(0)
    chunks = arrivals.times_s(np.random.default_rng(seed))
    while not len(times_s) or times_s[-1] < count * INTERVAL_S:
        times_s = np.concatenate([times_s, next(chunks)])
    for k in range(count):
        inside = times_s[(times_s >= k * INTERVAL_S) & (times_s < (k + 1) * INTERVAL_S)]
        if len(inside):
            yield inside - k * INTERVAL_S


def told(offsets_s: Iterator[np.ndarray], tells_times: bool = True, seed: int = 0) -> LoadForecast:
    forecast = LoadForecast(np.random.default_rng(seed))
    for each in offsets_s:
        forecast.add(measured(each, tells_times))
    return forecast


@pytest.mark.parametrize("rate_per_s", [4.0, 40.0])
def test_under_poisson_arrivals_the_level_is_their_rate(rate_per_s: float) -> None:
    forecast = told(intervals(Poisson(rate_per_s), 40))
    assert forecast.rate_per_s == pytest.approx(rate_per_s, rel=0.12)
    assert forecast.dispersion < 1.8
    counted_sd = (rate_per_s * INTERVAL_S) ** -0.5
    assert 0.8 * counted_sd < forecast.log_sd < 3 * counted_sd


def test_of_a_steady_load_the_level_is_the_mean_of_all_that_came() -> None:
    """What is chance in the last interval moves nothing."""
    logs = [np.log(told(intervals(Poisson(20.0), 20, seed)).rate_per_s / 20.0) for seed in range(40)]
    assert np.sqrt(np.mean(np.square(logs))) < 1.25 / np.sqrt(20 * 20.0 * INTERVAL_S)


@pytest.mark.parametrize("factor", [0.5, 1.5, 3.0])
def test_a_step_is_followed_within_two_intervals(factor: float) -> None:
    forecast = told(intervals(Poisson(20.0), 12))
    for each in intervals(Poisson(factor * 20.0), 2, seed=1):
        forecast.add(measured(each))
    assert forecast.rate_per_s == pytest.approx(factor * 20.0, rel=0.2)


def taken_for_a_step(arrivals: Arrivals, seed: int) -> float:
    """The share of an interval's surprise by which the level follows, as ln, once the load is known."""
    forecast = LoadForecast(np.random.default_rng(0))
    surprises, moves = [], []
    for k, each in enumerate(intervals(arrivals, 40, seed)):
        before = forecast.rate_per_s if k else 1.0
        forecast.add(measured(each))
        if k >= 10:
            surprises.append(np.log(len(each) / INTERVAL_S / before))
            moves.append(np.log(forecast.rate_per_s / before))
    return float(np.dot(surprises, moves) / np.dot(surprises, surprises))


@pytest.mark.parametrize("mean_calm_s", [3.0, 9.0])
def test_a_burst_does_not_move_the_level_as_far_as_a_step_does(mean_calm_s: float) -> None:
    """A step on steady arrivals moves it by more than 0.9 of the surprise."""
    bursts = Bursts(20.0, burst_ratio=20.0, mean_burst_s=1.0, mean_calm_s=mean_calm_s)
    assert np.median([taken_for_a_step(bursts, seed) for seed in range(8)]) < 0.5
    steady = told(intervals(Poisson(20.0), 12))
    before = steady.rate_per_s
    steady.add(measured(next(intervals(Poisson(60.0), 1, seed=1))))
    assert np.log(steady.rate_per_s / before) > 0.9 * np.log(3)


def dispersions(forecast: LoadForecast) -> np.ndarray:
    """Of the windows that may come next."""
    windows = forecast.windows(1, SLOWNESS)
    spans = zip(windows.bounds[:-1], windows.bounds[1:], windows.edge_s[:-1], windows.edge_s[1:], strict=True)
    return np.array(
        [
            dispersion_of_times(windows.arrival_s[a:b] - begin_s, end_s - begin_s)
            for a, b, begin_s, end_s in spans
        ]
    )


@pytest.mark.parametrize("tells_times", [True, False])
@pytest.mark.parametrize("count", [4, 30])
def test_windows_are_as_bursty_as_what_was_seen(tells_times: bool, count: int) -> None:
    """Where a target tells when requests came, where it tells their dispersion, and where few were seen."""
    bursts = Bursts(20.0, burst_ratio=20.0, mean_burst_s=1.0, mean_calm_s=4.0)
    seen = [dispersion_of_times(each, INTERVAL_S) for each in intervals(bursts, count)]
    found = np.median(dispersions(told(intervals(bursts, count), tells_times)))
    assert np.median(seen) > 5
    assert 0.4 < found / np.median(seen) < 2.5


def test_windows_of_poisson_arrivals_are_poisson() -> None:
    assert np.median(dispersions(told(intervals(Poisson(20.0), 20)))) == pytest.approx(1.0, abs=0.4)


@pytest.mark.parametrize("rate_per_s", [4.0, 30.0])
def test_an_invented_stretch_has_as_many_requests_as_a_usual_interval(rate_per_s: float) -> None:
    """Whatever that is: what an interval costs by chance alone depends on how many requests it has."""
    forecast = told(intervals(Poisson(rate_per_s), 3))
    invented = np.diff(forecast.windows(1, SLOWNESS).bounds)[:-3]
    assert len(invented) == LEAST_WINDOWS - 3
    np.testing.assert_allclose(invented, forecast.rate_per_s * INTERVAL_S, atol=1)


def test_windows_come_at_the_level_of_now() -> None:
    forecast = told(intervals(Poisson(20.0), 12))
    for each in intervals(Poisson(60.0), 4, seed=1):
        forecast.add(measured(each))
    windows = forecast.windows(1, SLOWNESS)
    rates_per_s = np.diff(windows.bounds) / np.diff(windows.edge_s)
    assert np.median(rates_per_s) == pytest.approx(forecast.rate_per_s, rel=0.15)
    assert (np.diff(windows.arrival_s) >= 0).all()


@pytest.mark.parametrize("before", [1, 3, 8, 14])
@pytest.mark.parametrize(("per_s", "both"), [(1.0, True), (400.0, True), (41.0, False)])
def test_after_one_surprise_the_load_may_be_as_before_or_as_it_is_now(
    before: int, per_s: float, both: bool
) -> None:
    """A second interval like it settles that."""
    forecast = told(intervals(Poisson(40.0), before), seed=before)
    forecast.add(measured(next(intervals(Poisson(per_s), 1, seed=1))))
    as_before, as_now = at_levels(forecast, 40.0, per_s)
    assert as_before > 0
    assert (as_before < 1) == both
    assert as_now >= as_before
    for each in intervals(Poisson(per_s), 2, seed=2):
        forecast.add(measured(each))
    assert at_levels(forecast, 40.0, per_s)[1] > 0.9


@pytest.mark.parametrize("per_s", [60.0, 90.0, 400.0])
def test_no_stretch_comes_faster_than_one_that_was_seen(per_s: float) -> None:
    """Within chance: the load may be as before or as it is now, but nothing beyond both."""
    forecast = told(intervals(Poisson(40.0), 14))
    forecast.add(measured(next(intervals(Poisson(per_s), 1, seed=1))))
    windows = forecast.windows(1, SLOWNESS)
    assert (np.diff(windows.bounds) / np.diff(windows.edge_s)).max() < 1.25 * per_s


@pytest.mark.parametrize("together", [1, 2])
def test_stretches_that_go_together_come_at_one_level(together: int) -> None:
    forecast = told(intervals(Poisson(40.0), 14))
    forecast.add(measured(next(intervals(Poisson(1.0), 1, seed=1))))
    windows = forecast.windows(together, SLOWNESS)
    levels = np.diff(windows.bounds) / np.diff(windows.edge_s) > 6.0
    assert all(len(set(levels[k : k + together])) == 1 for k in range(0, len(levels), together))


def at_rates(rates_per_s: list[float], seed: int = 0) -> LoadForecast:
    """What was told of intervals of Poisson arrivals at these rates."""
    forecast = LoadForecast(np.random.default_rng(0))
    for k, rate_per_s in enumerate(rates_per_s):
        forecast.add(measured(next(intervals(Poisson(rate_per_s), 1, seed=100 * seed + k))))
    return forecast


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rare", [5.0, 200.0])
def test_a_load_that_swings_and_comes_back_is_expected_as_it_came(rare: float, seed: int) -> None:
    """A lull at the end, or a burst, tells little where there were others."""
    rates_per_s = [60.0, 60.0, 60.0, 60.0, rare, rare, 60.0, 60.0, 60.0, 60.0, rare, 60.0, 60.0, 60.0, rare]
    forecast = at_rates([*rates_per_s, rare], seed)
    mean_per_s = np.mean([*rates_per_s, rare])
    assert abs(np.log(forecast.rate_per_s / mean_per_s)) < 0.6 * abs(np.log(rare / mean_per_s))
    windows = forecast.windows(1, SLOWNESS)
    rates = np.diff(windows.bounds) / np.diff(windows.edge_s)
    assert rates.max() / rates.min() > 1.5


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("now", [10.0, 90.0])
def test_a_load_that_moved_and_stayed_is_expected_to_stay(now: float, seed: int) -> None:
    """From a steady load, after it moved before and stayed there, and after one interval of another kind."""
    assert at_rates([30.0] * 12 + [now] * 4, seed).rate_per_s == pytest.approx(now, rel=0.1)
    assert at_rates([now] * 7 + [30.0] * 7 + [now] * 4, seed).rate_per_s == pytest.approx(now, rel=0.25)
    after_a_lull = at_rates([30.0] * 6 + [1.0] + [30.0] * 6 + [now] * 4, seed)
    assert abs(np.log(after_a_lull.rate_per_s / now)) < 0.4 * np.log(3)


def at_levels(forecast: LoadForecast, *rates_per_s: float, together: int = 1) -> list[float]:
    """The shares of the windows that come at about each of these rates: within a factor of 1.8."""
    windows = forecast.windows(together, SLOWNESS)
    found = np.log(np.diff(windows.bounds) / np.diff(windows.edge_s))
    return [float(np.mean(np.abs(found - np.log(rate)) < 0.6)) for rate in rates_per_s]


def test_a_window_that_was_seen_is_as_slow_beside_the_others_as_the_machine_was_then() -> None:
    forecast = told(intervals(Poisson(20.0), 14))
    windows = forecast.windows(2, Slowness({3: 0.5}, 0.0))
    assert windows.together == 2
    others = np.delete(windows.slowness, 2)
    np.testing.assert_allclose(windows.slowness[2] / others, np.exp(0.5))
    assert np.log(windows.slowness).mean() == pytest.approx(0.0)


def test_what_came_is_all_that_is_remembered_in_its_order() -> None:
    forecast = at_rates([5.0, 50.0, 20.0])
    windows = forecast.came(Slowness({2: 0.5}, 0.0))
    assert windows.together == 3
    np.testing.assert_allclose(np.diff(windows.edge_s), INTERVAL_S)
    np.testing.assert_allclose(np.diff(windows.bounds) / INTERVAL_S, [5.0, 50.0, 20.0], rtol=0.4)
    np.testing.assert_allclose(windows.slowness, np.exp([0.0, 0.5, 0.0]))


def test_of_many_requests_that_came_the_newest_are_taken() -> None:
    assert len(at_rates([1000.0, 100.0, 1500.0]).came(SLOWNESS).slowness) == 2
    assert len(at_rates([1200.0, 800.0, 100.0]).came(SLOWNESS).slowness) == 2
    assert len(at_rates([10.0, 3000.0]).came(SLOWNESS).slowness) == 1  # the newest, however many


@pytest.mark.parametrize("together", [1, 2])
def test_of_many_requests_bursts_are_expected_about_as_often_as_they_came(together: int) -> None:
    """One in every sixth interval; of 1,000 requests/s all that is remembered would be too many."""
    rng, forecast, shares = np.random.default_rng(0), LoadForecast(np.random.default_rng(1)), []
    for k in range(44):
        offsets_s = rng.uniform(0, 5, 5000)
        if k % 6 == 3:
            offsets_s = np.append(offsets_s, rng.uniform(2, 3, 3000))
        summary = summarised(np.sort(offsets_s))
        forecast.add(Measurement(5.0, len(offsets_s), len(offsets_s), 0, arrival_summary=summary))
        if k >= 20:
            windows = forecast.windows(together, SLOWNESS)
            assert len(windows.arrival_s) <= MAX_REQUESTS_OF_FEW
            parts = np.split(windows.arrival_s, windows.bounds[1:-1])
            peaks = [np.histogram(part, bins=10)[0].max() / len(part) for part in parts]
            shares.append(np.mean(np.array(peaks) > 0.2))
    assert 0 < min(shares) <= max(shares) < 0.4
    assert np.mean(shares) == pytest.approx(1 / 6, abs=0.06)


def test_silence_lies_between_what_came_before_it_and_after() -> None:
    forecast = at_rates([20.0, 30.0])
    forecast.passed(3 * INTERVAL_S)
    forecast.passed(INTERVAL_S)
    forecast.add(measured(next(intervals(Poisson(40.0), 1))))
    windows = forecast.came(SLOWNESS)
    np.testing.assert_allclose(np.diff(windows.edge_s), [INTERVAL_S, 5 * INTERVAL_S, INTERVAL_S])
    assert windows.arrival_s[windows.bounds[2]] > 6 * INTERVAL_S
    np.testing.assert_allclose(forecast.times(2.0).came(SLOWNESS).edge_s, windows.edge_s / 2)


def test_requests_of_a_group_stay_a_burst() -> None:
    """Points of a summary that stand for many requests, as where an interval has thousands."""
    offsets_s = np.sort(np.concatenate([np.linspace(0, 10, 200, endpoint=False), np.full(2000, 4.0)]))
    measurement = measured(offsets_s)
    assert max(measurement.arrival_summary.requests) > 1500
    again_s = arrival_offsets_s(measurement, np.random.default_rng(0))
    assert len(again_s) == len(offsets_s)
    assert (np.diff(again_s) >= 0).all()
    assert np.sum((again_s > 3.9) & (again_s < 4.1)) > 1990


def test_a_request_of_several_items_counts_as_so_many_arrivals() -> None:
    offsets_s = np.array([1.0, 2.0, 5.0])
    items = np.array([4, 1, 3])
    told_s = replace(measured(offsets_s), arrival_summary=summarised(offsets_s, items))
    np.testing.assert_allclose(
        arrival_offsets_s(told_s, np.random.default_rng(0)), np.repeat(offsets_s, items)
    )
    forecast = LoadForecast(np.random.default_rng(0))
    forecast.add(told_s)
    assert forecast.rate_per_s == pytest.approx(8 / INTERVAL_S)


def test_where_times_are_not_told_batches_tell_how_many_items_a_request_holds() -> None:
    offsets_s = np.linspace(0, 9, 30)
    untold = replace(measured(offsets_s, tells_times=False), telemetry=(ServiceTimes(0, 4, 30, 1.0),))
    assert len(arrival_offsets_s(untold, np.random.default_rng(0))) == 4 * 30


def test_an_interval_without_answers_is_of_requests_as_large_as_before() -> None:
    forecast = LoadForecast(np.random.default_rng(0))
    untold = measured(np.linspace(0, 9, 30), tells_times=False)
    forecast.add(replace(untold, telemetry=(ServiceTimes(0, 4, 30, 1.0),)))
    before_per_s = forecast.rate_per_s
    forecast.add(replace(untold, completions=0))
    assert forecast.items_per_request == 4.0
    assert forecast.rate_per_s == pytest.approx(before_per_s)


def test_many_times_the_load_is_the_same_arrivals_so_many_times_as_fast() -> None:
    forecast = at_rates([60.0, 60.0, 5.0, 60.0, 60.0, 60.0, 5.0])
    faster = forecast.times(3.0)
    assert faster.rate_per_s == pytest.approx(3 * forecast.rate_per_s)
    here, there = forecast.windows(1, SLOWNESS), faster.windows(1, SLOWNESS)
    np.testing.assert_allclose(there.edge_s[-7:] - there.edge_s[-8], (here.edge_s[-7:] - here.edge_s[-8]) / 3)


@pytest.mark.parametrize("together", [1, 2])
def test_where_requests_are_many_stretches_are_spread_over_what_came(together: int) -> None:
    """More than ten thousand requests an interval, of which few stretches can be replayed."""
    lull, burst = 400.0, 2000.0
    forecast = at_rates([burst, lull, lull, burst, burst, lull, lull, burst, burst, lull] * 2)
    windows = forecast.windows(together, SLOWNESS)
    assert 4 <= len(windows.slowness) < 10
    as_lull, as_burst = at_levels(forecast, lull, burst, together=together)
    assert min(as_lull, as_burst) > 0.2


def test_of_too_many_requests_a_shorter_stretch_is_remembered() -> None:
    """Which comes at the same rate; the level is that of all that came."""
    forecast = at_rates([3.0 * MAX_REQUESTS_OF_ONE / INTERVAL_S] * 3)
    assert forecast.rate_per_s == pytest.approx(3 * MAX_REQUESTS_OF_ONE / INTERVAL_S, rel=0.01)
    assert forecast.log_sd < 0.05
    for windows in (forecast.windows(1, SLOWNESS), forecast.came(SLOWNESS)):
        assert np.diff(windows.bounds).max() <= MAX_REQUESTS_OF_ONE
        rates_per_s = np.diff(windows.bounds) / np.diff(windows.edge_s)
        np.testing.assert_allclose(rates_per_s, forecast.rate_per_s, rtol=0.03)
    assert len(forecast.windows(1, SLOWNESS).arrival_s) <= MAX_REQUESTS_OF_FEW


def test_the_seed_fixes_the_windows() -> None:
    first, again = (told(intervals(Poisson(20.0), 3), False).windows(1, SLOWNESS) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
