"""What the guard takes for the best, and what it leaves at the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from tests.support.runs.guard_told import ABORTED, BAD, GOOD, START, begun, begun_once, measured, tell, turn


def test_the_best_known_is_the_lowest_mean_and_not_one_lucky_interval() -> None:
    guard = begun()
    for mean_ms in (30.0, 31.0, 29.0, 30.0):
        tell(guard, GOOD, mean_ms)
    tell(guard, BAD, 28.0)  # 7% better once: within the noise of one interval
    assert guard.best == GOOD
    tell(guard, 3, 15.0)
    assert guard.best == 3


def test_it_trusts_what_was_measured_unless_another_was_measured_better_beyond_noise() -> None:
    guard = begun()
    assert not guard.choice.trusts(1)
    for mean_ms in (50.0, 52.0, 49.0, 51.0):
        tell(guard, 1, mean_ms)
    assert guard.choice.trusts(1)
    tell(guard, 2, 40.0)  # once may be luck
    tell(guard, 3, 48.0)
    tell(guard, 3, 47.0)  # may be noise
    assert guard.choice.trusts(1)
    for mean_ms in (20.0, 21.0, 19.0):
        tell(guard, 4, mean_ms, rate_per_s=32.0)  # at a lower load
        tell(guard, 5, mean_ms, failures=20)
    assert guard.choice.trusts(1)
    assert not guard.choice.trusts(5)
    for mean_ms in (41.0, 40.0, 39.0):
        tell(guard, 2, mean_ms)
    assert not guard.choice.trusts(1)
    assert guard.choice.trusts(2)


def test_costs_at_very_different_loads_are_not_compared() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 5.0, rate_per_s=4.0)  # cheap only because hardly anybody came
    assert guard.best == BAD  # the present load is 4/s
    tell(guard, START, 100.0, rate_per_s=40.0)
    assert guard.best == GOOD


def test_at_a_load_never_seen_the_nearest_load_speaks() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 5.0, rate_per_s=1.0)
    guard.judge(BAD, math.nan, measured(math.nan, rate_per_s=200.0))  # nothing learned, but the load is seen
    assert guard.best == GOOD


def test_what_broke_the_limit_where_the_start_kept_it_is_never_best_and_never_left() -> None:
    guard = begun(GuardSettings(slo_p95_ms=300.0))
    for mean_ms in (10.0, 10.0, 10.0, 160.0):
        tell(guard, GOOD, mean_ms)
    assert guard.best == guard.to_keep() == START
    assert guard.to_keep({GOOD: [10.0, 10.0], START: [100.0, 100.0]}) == START
    tell(guard, START, 200.0)  # the start breaks it too
    assert guard.best == GOOD


def test_the_better_of_best_and_start_in_validation_is_left() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    assert guard.to_keep({GOOD: [30.0, 32.0], START: [90.0, 110.0]}) == GOOD
    assert guard.to_keep({GOOD: [130.0, 32.0], START: [70.0, 60.0]}) == START
    assert guard.to_keep({GOOD: [50.0], START: [50.0]}) == START
    assert guard.to_keep({GOOD: [50.0]}) == START


@pytest.mark.parametrize(("share", "fits"), [(0.25, True), (1.0, False)])
def test_the_few_requests_of_a_short_turn_tell_no_load(share: float, fits: bool) -> None:
    guard = begun()
    tell(guard, GOOD, 50.0, rate_per_s=60.0, **ABORTED)
    tell(guard, START, 100.0)
    assert guard.fitness.fits(GOOD)  # at this load
    turn(guard, START, 100.0, share, rate_per_s=60.0)
    assert guard.fitness.fits(GOOD) is fits


@pytest.mark.parametrize(("share", "fits"), [(0.25, False), (1.0, True)])
def test_a_short_turn_in_which_the_start_broke_the_limit_excuses_nothing(share: float, fits: bool) -> None:
    guard = begun(GuardSettings(slo_p95_ms=150.0), start_ms=70.0)
    turn(guard, GOOD, 80.0)
    assert not guard.fitness.fits(GOOD)
    turn(guard, START, 80.0, share)
    assert guard.fitness.fits(GOOD) is fits


def test_where_all_that_met_a_new_load_ran_away_the_best_of_the_nearest_load_is_best() -> None:
    """And not a start that was overloaded at half of it."""
    guard = begun(start_ms=900.0)
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 30.0)
    assert tell(guard, BAD, 500.0, rate_per_s=80.0, **ABORTED).rollback
    assert guard.best == GOOD
    assert guard.admit(None) == (GOOD, "rollback", ABORTED["aborted"])


def test_stopped_early_the_best_is_left_only_if_it_is_better_beyond_noise() -> None:
    guard = begun()
    assert guard.to_keep() == START
    tell(guard, GOOD, 95.0)
    assert guard.to_keep() == START
    tell(guard, BAD, 60.0)
    assert guard.to_keep() == BAD


@pytest.mark.parametrize(("start_intervals", "left"), [(1, START), (4, GOOD)])
def test_stopped_early_a_start_measured_once_may_have_been_unlucky(start_intervals: int, left: int) -> None:
    guard = Guard(START)
    for _ in range(start_intervals):
        guard.enter(START)
        guard.judge(START, 100.0, measured(100.0), kind="baseline")
    for _ in range(4):
        tell(guard, GOOD, 78.0)
    assert guard.best == GOOD
    assert guard.to_keep() == left


@settings(max_examples=50, deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(0, 5), st.floats(1, 1000), st.booleans()), min_size=1, max_size=40)
)
def test_the_guard_never_leaves_a_configuration_that_was_seen_to_be_worse_than_the_start(costs: list) -> None:
    guard = begun(start_ms=100.0)
    seen: dict[int, list[float]] = {START: [100.0] * 3}
    for number, mean_ms, abort in costs:
        in_force = guard.admit(number).number
        m = measured(mean_ms, **(ABORTED if abort else {}))
        if guard.judge(in_force, mean_ms + m.drain_ms, m).learn:
            seen.setdefault(in_force, []).append(mean_ms + m.drain_ms)
    left = guard.to_keep()
    assert np.mean(seen[left]) <= np.mean(seen[START]) + 1e-9


def test_worse_than_the_start_is_what_cost_more_beyond_noise_at_this_load_or_is_unfit() -> None:
    guard = begun(start_ms=100.0)
    assert not guard.choice.is_worse(GOOD)
    tell(guard, GOOD, 120.0)
    assert not guard.choice.is_worse(GOOD)
    for _ in range(3):
        tell(guard, BAD, 250.0)
    assert guard.choice.is_worse(BAD)
    tell(guard, GOOD, 120.0, failures=100)
    assert guard.choice.is_worse(GOOD)


def test_a_start_that_was_measured_once_can_be_shown_to_be_better() -> None:
    guard = begun_once(10.0)
    for _ in range(6):
        tell(guard, BAD, 25.0)
    assert guard.choice.is_worse(BAD)


def test_what_met_a_higher_load_than_the_start_is_not_called_worse_for_it() -> None:
    guard = begun_once(100.0)
    for _ in range(6):
        tell(guard, BAD, 250.0, rate_per_s=52.0)
    assert not guard.choice.is_worse(BAD)


def test_stopped_early_what_met_a_lower_load_than_the_start_is_not_called_better_for_it() -> None:
    for rate_per_s, kept in ((30.0, START), (40.0, GOOD), (52.0, GOOD)):
        guard = begun_once(100.0)
        for _ in range(6):
            tell(guard, GOOD, 50.0, rate_per_s)
        assert guard.to_keep() == kept


GROWS: dict[str, Any] = {"backlog": 80, "backlog_growth": 80, "completions": 80}


def test_a_start_whose_queue_grew_is_known_to_be_overloaded_at_this_load_or_a_higher_one() -> None:
    guard = begun_once(900.0, **GROWS)
    for rate_per_s, overloaded in ((40.0, True), (60.0, True), (10.0, False), (40.0, True)):
        for _ in range(2):
            tell(guard, GOOD, 20.0, rate_per_s)
        assert guard.choice.start_is_overloaded is overloaded
    number, reason = guard.keeping()
    assert number == GOOD
    assert "by the intervals of the search; the start could not bear the load" in reason
    for _ in range(2):
        tell(guard, START, 100.0)  # it had been a burst
    assert not guard.choice.start_is_overloaded


@pytest.mark.parametrize("turn_costs", [{GOOD: [], START: []}, {GOOD: [20.0], START: [21.0]}])
def test_turns_that_a_start_could_not_bear_leave_what_the_search_showed(turn_costs: dict) -> None:
    guard = begun_once(900.0, **GROWS)
    for _ in range(2):
        tell(guard, GOOD, 20.0)
    assert guard.choice.start_is_overloaded
    assert guard.to_keep(turn_costs) == GOOD
    assert guard.to_keep({GOOD: [90.0, 90.0], START: [10.0, 10.0]}) == START


def test_stopped_early_a_start_seen_at_another_load_alone_is_compared_where_it_was_seen() -> None:
    """Not a peak's 200 ms of the start with what the best takes at half the load."""
    guard = Guard(START)
    guard.enter(START)
    guard.judge(START, 200.0, measured(200.0, rate_per_s=100.0), kind="baseline")
    for _ in range(2):
        tell(guard, GOOD, 25.0, rate_per_s=50.0)
    assert guard.best == GOOD
    assert guard.to_keep() == START
    tell(guard, GOOD, 60.0, rate_per_s=100.0)
    tell(guard, GOOD, 25.0, rate_per_s=50.0)
    assert guard.to_keep() == GOOD


@pytest.mark.parametrize(("completions", "left"), [(4, START), (100, GOOD)])
def test_stopped_early_few_requests_say_little(completions: int, left: int) -> None:
    few = {"completions": completions, "arrivals": completions}
    guard = Guard(START)
    guard.enter(START)
    guard.judge(START, 100.0, measured(100.0, **few), kind="baseline")
    tell(guard, GOOD, 50.0, **few)
    assert guard.to_keep() == left
