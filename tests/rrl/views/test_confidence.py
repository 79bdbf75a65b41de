from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t

from rrl.guarding.gain import Noise, pooled_noise
from rrl.views.confidence import NO_ESTIMATE, mean_interval


def test_the_mean_is_weighted_and_its_interval_is_by_the_definition() -> None:
    noise = Noise(relative=0.2, freedom=6.0)
    estimate = mean_interval([10.0, 20.0], [1, 3], noise)
    half = t.ppf(0.975, 6) * 0.2 / math.sqrt(2)
    assert estimate.value == pytest.approx(17.5)
    assert estimate.low == pytest.approx(17.5 * math.exp(-half))
    assert estimate.high == pytest.approx(17.5 * math.exp(half))
    assert estimate.intervals == 2


def test_what_was_not_observed_is_left_out() -> None:
    noise = Noise()
    assert mean_interval([10.0, math.nan, 30.0], [1, 1, 0], noise).intervals == 1
    assert mean_interval([10.0, math.nan, 30.0], [1, 1, 0], noise).value == 10.0
    nothing = mean_interval([math.nan], [5], noise)
    assert not nothing.known
    assert nothing.intervals == 0
    assert not NO_ESTIMATE.known


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        drawn = rng.lognormal(math.log(30.0), 0.3, 6).tolist()
        estimate = mean_interval(drawn[:3], [1, 1, 1], pooled_noise([drawn]))
        held += estimate.low < 30.0 * math.exp(0.3**2 / 2) < estimate.high
    assert 0.91 < held / 400 <= 1.0


def test_half_an_interval_tells_half_as_much() -> None:
    noise = Noise(relative=0.2, freedom=6.0)
    half, whole = (mean_interval([10.0], [1], noise, [share]) for share in (0.5, 1.0))
    assert math.log(half.high / half.low) == pytest.approx(math.sqrt(2) * math.log(whole.high / whole.low))
    assert whole == mean_interval([10.0], [1], noise)
    assert half.intervals == 1
