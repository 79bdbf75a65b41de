"""The load expected next: converges where it is constant, follows a jump at once."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.guided.load_forecast import WALK_SD, LoadForecast


def after(*intervals: tuple[int, float]) -> LoadForecast:
    forecast = LoadForecast()
    for arrivals, duration_s in intervals:
        forecast.add(arrivals, duration_s)
    return forecast


def test_the_first_interval_is_taken_as_it_is() -> None:
    forecast = after((50, 4.0))
    assert forecast.rate_per_s == pytest.approx(12.5)
    assert forecast.log_sd == pytest.approx(math.sqrt(1 / 50 + WALK_SD**2))


def test_a_small_surprise_is_a_kalman_step() -> None:
    forecast = after((100, 10.0), (50, 4.5))  # 10.0/s, then 11.1/s: well within Poisson noise
    variance, noise = 1 / 100 + 0.03**2, 1 / 50
    gain = variance / (variance + noise)
    assert forecast.rate_per_s == pytest.approx(10.0 * (50 / 45) ** gain)
    assert forecast.log_sd == pytest.approx(math.sqrt((1 - gain) * variance + 0.03**2))


def test_half_of_what_a_great_surprise_exceeds_is_added_to_the_variance() -> None:
    forecast = after((100, 10.0), (100, 5.0))
    variance, noise = 1 / 100 + 0.03**2, 1 / 100
    variance += 0.5 * (math.log(2) ** 2 - 2 * (variance + noise))
    gain = variance / (variance + noise)
    assert forecast.rate_per_s == pytest.approx(10.0 * 2**gain)


def test_a_constant_load_is_known_better_than_any_interval_of_it() -> None:
    rng = np.random.default_rng(0)
    forecast = after(*[(100, float(rng.exponential(1 / 14, 100).sum())) for _ in range(30)])
    errors, sds = [], []
    for _ in range(200):
        forecast.add(100, float(rng.exponential(1 / 14, 100).sum()))
        errors.append(math.log(forecast.rate_per_s / 14))
        sds.append(forecast.log_sd)
    assert np.std(errors) < 0.07  # an interval's own rate has 0.1
    assert abs(np.mean(errors)) < 0.02
    assert max(sds) < 0.25
    assert np.median(sds) < 0.075


@pytest.mark.parametrize("factor", [0.4, 0.6, 1.6, 3.0])
def test_a_jump_is_followed_within_two_intervals(factor: float) -> None:
    steady = [(100, 10.0)] * 20
    rate_per_s = after(*steady, (100, 10.0 / factor), (100, 10.0 / factor)).rate_per_s
    assert rate_per_s == pytest.approx(10.0 * factor, rel=0.05)


def test_poisson_noise_is_not_followed() -> None:
    steady = [(100, 10.0)] * 20
    assert after(*steady, (100, 9.0)).rate_per_s < 10.6


def test_longer_intervals_weigh_more() -> None:
    short, long = after((100, 10.0), (10, 0.8)), after((100, 10.0), (1000, 80.0))
    assert 10.0 < short.rate_per_s < long.rate_per_s < 12.5


def test_an_interval_without_arrivals_lowers_the_load_but_not_to_nothing() -> None:
    forecast = after((100, 10.0), (0, 10.0))
    assert 0.04 < forecast.rate_per_s < 10.0
