from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rrl.guarding.gain import (
    GAIN_CONFIDENCE,
    UNKNOWN,
    Gain,
    Noise,
    gain_interval,
    in_words,
    neighbours_noise,
    pooled_noise,
    unpaired_gain,
)

costs = st.floats(0.1, 1e4)
turns = st.lists(st.tuples(costs, costs), min_size=1, max_size=8)
noises = st.builds(Noise, st.floats(0.01, 1.0), st.floats(8.0, 50.0))


def of(pairs: list[tuple[float, float]], noise: Noise | None = None):
    return gain_interval([a for a, _ in pairs], [b for _, b in pairs], noise)


@given(pairs=turns, noise=noises)
def test_the_gain_lies_in_its_interval_and_is_the_geometric_mean_of_the_pairs_ratios(
    pairs: list[tuple[float, float]], noise: Noise
) -> None:
    gain = of(pairs, noise)
    assert gain.low < gain.estimate < gain.high
    ratios = [a / b for a, b in pairs]
    assert gain.estimate == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))


@given(pairs=turns, noise=noises, factors=st.lists(st.floats(0.1, 10), min_size=8, max_size=8))
def test_a_load_that_drifts_bears_on_both_turns_of_a_pair_alike(
    pairs: list[tuple[float, float]], noise: Noise, factors: list[float]
) -> None:
    drifted = [(a * f, b * f) for (a, b), f in zip(pairs, factors, strict=False)]
    assert of(drifted, noise) == pytest.approx(of(pairs, noise))


@given(pairs=turns, noise=noises)
def test_seen_from_the_start_the_gain_is_a_loss_of_the_same_size(
    pairs: list[tuple[float, float]], noise: Noise
) -> None:
    there, back = of(pairs, noise), of([(b, a) for a, b in pairs], noise)
    assert back == pytest.approx((1 / there.high, 1 / there.estimate, 1 / there.low))


@given(pairs=turns, noise=noises)
def test_the_interval_narrows_with_every_turn_that_agrees_and_widens_with_noise(
    pairs: list[tuple[float, float]], noise: Noise
) -> None:
    gain = of(pairs, noise)
    assume(gain.high < 1e12)
    middle = (gain.estimate, 1.0)
    more, louder = of([*pairs, middle], noise), of(pairs, noise._replace(relative=2 * noise.relative))
    assert more.high / more.low < gain.high / gain.low < louder.high / louder.low


@pytest.mark.parametrize(("noise", "pairs"), [(0.05, 2), (0.1, 2), (0.2, 3), (0.2, 4), (0.4, 8)])
def test_the_truth_lies_within_the_interval_as_often_as_promised(noise: float, pairs: int) -> None:
    rng = np.random.default_rng(0)
    within, proven, runs = 0, 0, 2000
    for _ in range(runs):
        start, best = ((100 * np.exp(rng.normal(0, noise, 6 + pairs))).tolist() for _ in range(2))
        seen = neighbours_noise([start[:6], best[:6]])
        gain = gain_interval(start[6:], best[6:], seen)  # in truth they are equal
        within += gain.low <= 1 <= gain.high
        proven += gain_interval([4 * cost for cost in start[6:]], best[6:], seen).beyond_noise
    assert within / runs >= GAIN_CONFIDENCE - 0.01
    assert proven / runs >= 0.9


def test_two_turns_of_little_noise_prove_what_two_of_much_noise_do_not() -> None:
    pairs = [(130.0, 100.0), (128.0, 99.0)]
    assert of(pairs, Noise(0.03, 8)).beyond_noise
    assert not of(pairs, Noise(0.2, 8)).beyond_noise
    assert not of([(120.0, 100.0), (90.0, 110.0)], Noise(0.03, 8)).beyond_noise


@pytest.mark.parametrize(("start", "best"), [([], []), ([100.0], []), ([math.nan], [50.0]), ([100.0], [0.0])])
def test_without_a_pair_nothing_is_known(start: list[float], best: list[float]) -> None:
    gain = gain_interval(start, best)
    assert all(map(math.isnan, gain))
    assert not gain.beyond_noise
    assert "no comparison" in in_words(gain)
    assert all(map(math.isnan, UNKNOWN))


def test_turns_that_tell_no_cost_are_left_out_with_their_pair() -> None:
    nan = math.nan
    assert gain_interval([90.0, nan, 80.0], [30.0, 31.0, 20.0]) == gain_interval([90.0, 80.0], [30.0, 20.0])


def test_costs_that_do_not_scatter_are_compared_too() -> None:
    """As those of the objective least-resources, which are counts of threads."""
    gain = gain_interval([4.0, 4.0], [3.0, 3.0], neighbours_noise([[4.0] * 9, [3.0] * 19]))
    assert gain.beyond_noise
    assert gain.estimate == pytest.approx(4 / 3)


def test_noise_is_pooled_within_configurations_and_not_between_them() -> None:
    quiet = pooled_noise([[100.0, 101.0] * 20, [10.0, 10.1] * 20])
    loud = pooled_noise([[100.0, 150.0] * 20, [10.0, 15.0] * 20])
    assert quiet.relative < 0.05 < 0.15 < loud.relative
    assert quiet.freedom == loud.freedom == 79
    assert pooled_noise([]) == pooled_noise([[3.0], []]) == Noise()


def test_words_tell_gain_and_interval() -> None:
    words = in_words(Gain(1.391, 1.512, 1.638))
    assert words == "1.51x lower cost than the start (90% interval 1.39x to 1.64x)"


def test_without_turns_the_gain_is_that_of_the_geometric_means() -> None:
    gain = unpaired_gain([100.0, 110.0, 90.0], [50.0, 55.0])
    assert gain.estimate == pytest.approx((100 * 110 * 90) ** (1 / 3) / (50 * 55) ** (1 / 2))
    assert 1.0 < gain.low < gain.estimate < gain.high
    assert unpaired_gain([100.0, 110.0, 90.0], [50.0, 55.0, 52.0, 53.0]).low > gain.low


@pytest.mark.parametrize(("start", "best"), [([], [50.0, 51.0]), ([100.0], []), ([math.nan], [50.0, 51.0])])
def test_without_turns_and_without_an_interval_of_either_there_is_no_gain(
    start: list[float], best: list[float]
) -> None:
    assert math.isnan(unpaired_gain(start, best).estimate)


@pytest.mark.parametrize(
    ("noise", "of_start", "of_best"), [(0.05, 3, 3), (0.1, 3, 4), (0.3, 3, 8), (0.05, 1, 4), (0.2, 1, 8)]
)
def test_without_turns_the_truth_lies_within_the_interval_as_often_as_promised(
    noise: float, of_start: int, of_best: int
) -> None:
    rng = np.random.default_rng(1)
    gains = [
        unpaired_gain(
            np.exp(rng.normal(0, noise, of_start)).tolist(), np.exp(rng.normal(0, noise, of_best)).tolist()
        )
        for _ in range(1500)
    ]
    assert np.mean([gain.low <= 1 <= gain.high for gain in gains]) > GAIN_CONFIDENCE - 0.03


@given(pairs=turns, noise=noises)
def test_a_short_first_turn_tells_less(pairs: list[tuple[float, float]], noise: Noise) -> None:
    (a, b), *_ = pairs
    alike = [(a, b)] * len(pairs)
    whole = of(alike, noise)
    short = gain_interval([a for a, _ in alike], [b for _, b in alike], noise, [0.5])
    assume(math.isfinite(short.high))
    assert short.estimate == pytest.approx(whole.estimate)
    assert short.high / short.low > whole.high / whole.low


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_looks_within_the_starts_first_turn_let_no_more_noise_pass(share: float) -> None:
    rng = np.random.default_rng(0)
    noise, runs = 0.1, 2000
    costs = np.exp(rng.normal(0, [noise, noise * share**-0.5], (runs, 2)))
    gains = [gain_interval([start], [best], Noise(noise, 10), [share]) for best, start in costs]
    assert np.mean([gain.beyond_noise for gain in gains]) <= (1 - GAIN_CONFIDENCE) / 2


def test_a_slow_drift_is_no_noise_of_neighbours() -> None:
    drifting = (100 * np.exp(np.linspace(0, 1, 20))).tolist()
    assert neighbours_noise([drifting]).relative < 0.08 < 0.25 < pooled_noise([drifting]).relative
    steady = (100 * np.exp(np.random.default_rng(0).normal(0, 0.1, 200))).tolist()
    assert neighbours_noise([steady]).relative == pytest.approx(pooled_noise([steady]).relative, rel=0.1)


def test_a_gain_below_1_is_told_as_a_higher_cost() -> None:
    assert in_words(Gain(0.4, 0.5, 0.8)) == (
        "2.00x higher cost than the start (90% interval 2.50x higher to 1.25x higher)"
    )
    assert in_words(Gain(0.8, 0.8, 1.2)).endswith("(90% interval 1.25x higher to 1.20x lower)")
