"""Which configuration is probably better than the one in force, from its costs in several worlds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.advice.possible_costs import PossibleCosts, likely_worlds

WORLDS = 20
SURE, RISKY, SAME, PRESENT = range(4)
DISTANCES = np.array([2.0, 3.0, 1.0, 0.0])


def possible(sure: float = 30.0, failures: int = 3) -> PossibleCosts:
    """Of two better configurations the one promises less but surely, the other overloads in some worlds."""
    risky = [math.inf] * failures + [10.0] * (WORLDS - failures)
    costs = [[sure] * WORLDS, risky, [39.5] * WORLDS, [40.0] * WORLDS]
    return PossibleCosts(np.array(costs), DISTANCES, 40.0, np.arange(4), np.arange(WORLDS))


def test_the_largest_gain_that_is_probably_none_the_worse_is_recommended() -> None:
    assert possible(failures=3).no_worse.tolist() == [1.0, 0.85, 1.0, 1.0]
    assert possible(failures=3).recommended() == SURE
    assert possible(failures=2).recommended() == RISKY


def test_a_world_that_was_drawn_twice_does_not_judge_what_it_chose() -> None:
    """Two worlds, drawn ten times each: each is for another configuration, so that nothing is sure."""
    costs = np.array([[10.0] * 10 + [90.0] * 10, [90.0] * 10 + [10.0] * 10, [40.0] * WORLDS])
    worlds = np.repeat([0, 1], 10)
    alternating = np.arange(WORLDS) // 2 + np.arange(WORLDS) % 2 * 10
    costs, worlds = costs[:, alternating % WORLDS], worlds[alternating % WORLDS]
    two = PossibleCosts(costs, np.array([2.0, 1.0, 0.0]), 40.0, np.arange(3), worlds)
    assert two.recommended() is None


def test_of_many_that_cost_the_same_hardly_ever_is_one_recommended() -> None:
    """Some look surely better in the worlds that choose. The others find each no worse in half of them."""
    recommended = 0
    for seed in range(40):
        costs = 40.0 * np.exp(np.random.default_rng(seed).normal(0.0, 0.2, (6000, 16)))
        distances = np.minimum(np.arange(6000.0), 1.0)
        same = PossibleCosts(costs, distances, 40.0, np.arange(6000), np.arange(16))
        assert same.no_worse.max() > 0.9
        recommended += same.recommended() is not None
    assert recommended <= 3


def test_the_best_guess_need_not_be_sure() -> None:
    assert possible(failures=3).best_guess() == RISKY


def test_a_gain_too_small_is_no_reason_to_change() -> None:
    assert possible(sure=39.0).recommended() is None
    assert possible(sure=36.0).recommended() == SURE


def test_of_gains_as_good_as_equal_that_of_the_smallest_change_is_taken() -> None:
    costs = np.array([[20.0] * WORLDS, [20.3] * WORLDS, [20.3] * WORLDS, [22.0] * WORLDS, [40.0] * WORLDS])
    equal = PossibleCosts(costs, np.array([3.0, 2.0, 1.0, 0.5, 0.0]), 40.0, np.arange(5), np.arange(WORLDS))
    assert equal.recommended() == equal.best_guess() == 2


def test_an_overload_counts_as_ten_times_the_cost_observed() -> None:
    gain = possible(failures=2).gain
    assert gain[RISKY] == pytest.approx(math.exp((18 * math.log(4) - 2 * math.log(10)) / WORLDS))
    assert gain[PRESENT] == 1.0


def test_an_overload_is_no_better_than_an_overload() -> None:
    costs = np.array([[math.inf] * WORLDS, [math.inf] * WORLDS])
    overloaded = PossibleCosts(costs, np.array([1.0, 0.0]), 5000.0, np.arange(2), np.arange(WORLDS))
    assert overloaded.no_worse.tolist() == [0.0, 0.0]
    assert overloaded.recommended() is None


def test_an_interval_holds_nine_in_ten_worlds() -> None:
    costs = np.stack([np.arange(1.0, 101.0)])
    assert PossibleCosts(costs, np.zeros(1), 50.0, np.arange(1), np.arange(100)).expectation(
        0
    ) == pytest.approx((6, 50, 95), abs=1.5)
    assert math.isinf(possible(failures=3).expectation(RISKY).high)


def test_worlds_that_explain_what_was_observed_are_drawn_in_preference() -> None:
    predicted = np.array([10.0, 40.0, 44.0, 160.0])
    drawn = likely_worlds(predicted, 41.0, 0.15, 1000, np.random.default_rng(0))
    shares = np.bincount(drawn, minlength=4) / 1000
    expected = np.exp(-0.5 * (np.log(predicted / 41.0) / 0.15) ** 2)[1:3]
    assert shares[1] / shares[2] == pytest.approx(expected[0] / expected[1], rel=0.02)
    assert shares[[0, 3]].max() < 0.01


def test_worlds_none_of_which_explains_it_stay_as_likely_as_they_were() -> None:
    drawn = likely_worlds(np.array([1.0, math.inf, 3.0]), 1000.0, 0.15, 300, np.random.default_rng(0))
    assert np.bincount(drawn).tolist() == [100, 100, 100]
