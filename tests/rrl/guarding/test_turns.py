from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.guarding.gain import MIN_TURN_SHARE
from rrl.guarding.guard import Guard, GuardSettings
from rrl.measurement import SoFar
from tests.support.guard_told import BAD, GOOD, START, begun, tell, turn


def test_a_better_mean_that_is_within_the_noise_of_the_turns_is_not_left() -> None:
    guard = begun()
    tell(guard, GOOD, 90.0)
    validation = {GOOD: [90.0, 99.0], START: [101.0, 97.0]}
    assert guard.turns.gain(validation).estimate > 1
    number, reason = guard.keeping(validation)
    assert number == START
    assert reason.startswith(
        "nothing was better beyond noise: in turns the best had 1.05x lower cost than the"
    )


@pytest.mark.parametrize(
    ("rate_per_s", "turns_ms", "left"),
    [
        (40.0, [40.0, 49.0], GOOD),  # seems better in turns, and was before them
        (40.0, [52.0, 50.0], START),  # seems worse in turns, whatever was before
        (20.0, [40.0, 49.0], START),  # was better at half the load of the baseline, which says nothing
    ],
)
def test_what_seems_better_in_turns_is_left_if_it_was_better_beyond_noise_before_them(
    rate_per_s: float, turns_ms: list[float], left: int
) -> None:
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, 25.0, rate_per_s)
    validation = {GOOD: turns_ms, START: [50.0, 47.0]}
    assert not guard.turns.gain(validation).beyond_noise
    number, reason = guard.keeping(validation)
    assert number == left
    assert ("before them 4.00x lower cost" in reason) == (left == GOOD)


def test_the_less_the_run_has_seen_costs_scatter_the_less_the_turns_must_differ() -> None:
    validation = {GOOD: [82.0, 80.0], START: [100.0, 99.0]}
    quiet, loud = begun(), begun()
    for i in range(10):
        tell(quiet, GOOD, 80.0 + i % 2)
        tell(loud, GOOD, 60.0 + 40 * (i % 2))
    assert quiet.to_keep(validation) == GOOD
    assert loud.to_keep(validation) == START
    assert quiet.keeping(validation).reason.endswith("measured in turns with it")


@pytest.mark.parametrize(
    ("before_ms", "turns_ms", "settled"),
    [
        (20.0, (20.0, 100.0), True),
        (60.0, (60.0, 100.0), True),
        (60.0, (85.0, 100.0), False),  # in turns it may be chance
        (95.0, (60.0, 100.0), False),  # no better before: the turn may have met a slow spell of the machine
        (95.0, (20.0, 100.0), True),  # which is never that slow
    ],
)
def test_only_what_was_better_before_or_is_clearly_so_in_turns_spares_the_start_another(
    before_ms: float, turns_ms: tuple[float, float], settled: bool
) -> None:
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, before_ms)
    best_ms, start_ms = turns_ms
    assert guard.turns.are_settled({GOOD: [best_ms, best_ms], START: [start_ms]}) == settled
    assert not guard.turns.are_settled(
        {GOOD: [best_ms, start_ms], START: [start_ms]}
    )  # the second does not agree
    too_few: tuple[dict[int, list[float]], ...] = (
        {GOOD: [], START: []},
        {GOOD: [20.0], START: [100.0]},
        {GOOD: [20.0, 20.0]},
    )
    for turns in too_few:
        assert not guard.turns.are_settled(turns)


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
def test_what_is_no_better_but_looked_so_is_seldom_settled_to_be_better(noise: float) -> None:
    """The best before the turns is the luckiest of eight equals: the turns are not to believe it."""
    rng = np.random.default_rng(0)
    settled, runs = 0, 400
    for _ in range(runs):
        guard = Guard(START, GuardSettings(latency_factor=1e9))
        for number, cost in enumerate(100 * np.exp(rng.normal(0, noise, (9, 2)))):
            tell(guard, number, cost[0])
            tell(guard, number, cost[1])
        best = guard.best
        share = guard.turns.share_for_first(best)
        before, start, after = 100 * np.exp(rng.normal(0, [noise, noise * share**-0.5, noise]))
        turn(guard, START, start, share)
        settled += guard.turns.are_settled({best: [before, after], START: [start]})
    assert settled / runs <= 0.025


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
def test_a_turn_of_an_equal_start_is_seldom_ended_early_and_settled(noise: float) -> None:
    """Its cost so far is looked at three times, and every look may be luck."""
    rng = np.random.default_rng(0)
    ended, settled, runs = 0, 0, 400
    for _ in range(runs):
        guard = Guard(START, GuardSettings(latency_factor=1e9))
        for number, cost in enumerate(100 * np.exp(rng.normal(0, noise, (9, 2)))):
            tell(guard, number, cost[0])
            tell(guard, number, cost[1])
        best, (before, after) = guard.best, 100 * np.exp(rng.normal(0, noise, 2))
        quarters = rng.normal(0, 2 * noise, 4)
        for k in (1, 2, 3, 4):
            start, share = float(100 * np.exp(quarters[:k].mean())), k / 4
            if guard.turns.first_has_shown(best, float(before), SoFar(share, start, round(share * 200))):
                break
        ended += share < 1
        turn(guard, START, start, share)
        settled += guard.turns.are_settled({best: [before, after], START: [start]})
    assert ended / runs <= 0.025
    assert settled / runs <= 0.025


def test_a_start_that_is_far_worse_than_before_is_not_measured_for_longer_than_shows_it() -> None:
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, 80.0)
    assert guard.turns.share_for_first(GOOD) > 0.5
    assert guard.turns.first_has_shown(GOOD, 80.0, SoFar(0.25, 400.0, 50))
    for not_yet in (SoFar(0.25, 90.0, 50), SoFar(0.25, 400.0, 5), SoFar(0.25, math.nan, 50)):
        assert not guard.turns.first_has_shown(GOOD, 80.0, not_yet)
    for cost in (math.nan, 0.0):
        assert not guard.turns.first_has_shown(GOOD, cost, SoFar(0.25, 400.0, 50))
    tell(guard, BAD, 100.0)  # no better, before: it must be clearly so in the turns
    assert not guard.turns.first_has_shown(BAD, 80.0, SoFar(0.25, 170.0, 50))
    assert not guard.turns.first_has_shown(BAD, 80.0, SoFar(0.25, 800.0, 50))
    assert guard.turns.first_has_shown(BAD, 80.0, SoFar(0.5, 800.0, 100))
    assert guard.turns.first_has_shown(GOOD, 80.0, SoFar(0.75, 170.0, 150))


def test_the_start_is_measured_for_shorter_where_the_best_was_better_before() -> None:
    near, far = begun(), begun()
    for _ in range(4):
        tell(near, GOOD, 95.0)
        tell(far, GOOD, 30.0)
    assert near.turns.share_for_first(GOOD) == 1.0
    assert far.turns.share_for_first(GOOD) == MIN_TURN_SHARE


def test_a_short_turn_of_the_start_widens_the_gains_interval() -> None:
    turns = {GOOD: [30.0, 31.0], START: [100.0]}
    whole, short = begun(), begun()
    turn(whole, START, 100.0)
    turn(short, START, 100.0, share=0.25)
    assert short.turns.gain(turns).estimate == whole.turns.gain(turns).estimate
    assert short.turns.gain(turns).low < whole.turns.gain(turns).low


def test_only_the_present_validations_first_turn_counts_as_short() -> None:
    turns = {GOOD: [30.0, 31.0], START: [100.0]}
    anew = begun()
    turn(anew, START, 100.0, share=0.25)
    short = anew.turns.gain(turns)
    tell(anew, BAD, 90.0)
    turn(anew, START, 100.0)
    assert anew.turns.gain(turns).low > short.low


def test_at_another_load_than_the_starts_its_turn_is_a_whole_one() -> None:
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, 30.0)
    tell(guard, GOOD, 20.0, rate_per_s=8.0)
    assert guard.turns.share_for_first(GOOD) == 1.0


def test_without_turns_of_both_there_is_no_gain() -> None:
    assert math.isnan(begun().turns.gain({GOOD: [50.0]}).estimate)
    assert math.isnan(begun().turns.gain({START: [50.0]}).estimate)
