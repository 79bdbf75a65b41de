from __future__ import annotations

import math

import numpy as np
import pytest

from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.guarding.turns import PLANNED_PAIRS, best_goes_first
from rrl.measurement import SoFar
from tests.support.runs.guard_told import BAD, GOOD, START, begun, tell, turn

# Of the best, A, and the start, B; twice as many pairs as are planned may follow one another.
TURNS = "AB BA AB BA"


def test_the_order_of_the_turns_is_a_b_b_a() -> None:
    pairs = TURNS.split()
    assert len(pairs) == 2 * PLANNED_PAIRS
    assert [best_goes_first(pair) for pair in range(len(pairs))] == [pair == "AB" for pair in pairs]


def test_a_better_mean_that_is_within_the_noise_of_the_turns_is_not_kept() -> None:
    guard = begun()
    tell(guard, GOOD, 90.0)
    validation = {GOOD: [90.0, 99.0], START: [101.0, 97.0]}
    assert guard.turns.gain(validation).estimate > 1
    number, reason = guard.keeping(validation)
    assert number == START
    assert reason.startswith(
        "nothing was better beyond noise: in turns the best had 1.05x lower cost than the"
    )


@pytest.mark.parametrize("rate_per_s", [40.0, 30.0, 20.0])
def test_what_was_better_before_the_turns_must_be_better_in_them(rate_per_s: float) -> None:
    """The load may have fallen since the start was measured, or the machine may have become faster."""
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, 25.0, rate_per_s)
    validation = {GOOD: [45.0, 49.0], START: [50.0, 47.0]}
    assert guard.turns.gain(validation).undecided
    assert guard.to_keep(validation) == START


def test_the_less_the_run_has_seen_costs_scatter_the_less_the_turns_must_differ() -> None:
    validation = {GOOD: [72.0, 70.0], START: [100.0, 99.0]}
    quiet, loud = begun(), begun()
    for i in range(10):
        tell(quiet, GOOD, 70.0 + i % 2)
        tell(loud, GOOD, 50.0 + 40 * (i % 2))
    assert quiet.to_keep(validation) == GOOD
    assert loud.to_keep(validation) == START
    assert quiet.keeping(validation).reason.endswith("measured in turns with it")


@pytest.mark.parametrize(
    ("best_ms", "start_ms", "are_over", "count"),
    [
        ([20.0], [200.0], True, True),  # shown in one pair
        ([200.0], [20.0], True, True),  # shown to be worse
        ([95.0], [100.0], False, False),
        ([95.0, 100.0], [100.0, 90.0], True, True),  # as many as planned, and no better
        ([90.0, 100.0], [100.0, 101.0], False, True),  # perhaps better
        ([90.0, 100.0] * 2, [100.0, 101.0] * 2, True, True),  # as many again
        ([], [], False, False),
        ([95.0], [], False, False),
    ],
)
def test_the_turns_are_over_once_they_show_it_or_are_as_many_as_planned(
    best_ms: list[float], start_ms: list[float], are_over: bool, count: bool
) -> None:
    guard = begun()
    for _ in range(20):
        tell(guard, GOOD, 90.0)
    costs = {GOOD: best_ms, START: start_ms}
    assert guard.turns.are_over(costs) == are_over
    assert guard.turns.validate(costs) == count


def validated(
    rng: np.random.Generator,
    gain: float,
    noise: float,
    drift: float = 0.0,
    steps: float = 0.0,
    steps_in_turns: float = 0.0,
    turns: str = TURNS,
) -> bool:
    """True if a run keeps a configuration that is so much better than the start.

    It is the best of nine before the turns. The machine drifts: an autoregression of standard deviation
    `drift`, and `steps` more in each interval, and in each turn so many more.
    """
    guard = Guard(START, GuardSettings(latency_factor=1e9))
    slow = rng.normal(0, drift)
    trend = 0.0

    def cost(number: int, step: float = steps) -> float:
        nonlocal slow, trend
        slow = 0.8 * slow + rng.normal(0, 0.6 * drift)
        trend += step
        log = rng.normal(0, noise) + slow + trend
        return 100 * math.exp(log) * (gain if number == START else 1.0)

    guard.enter(START)
    tell(guard, START, cost(START))
    for number in (*range(1, 9), *range(1, 9)):
        tell(guard, number, cost(number))
    for _ in range(8):
        tell(guard, guard.best, cost(guard.best))
    best = guard.best if guard.best != START else GOOD
    turn_costs: dict[int, list[float]] = {best: [], START: []}
    for pair in turns.split():
        if guard.turns.are_over(turn_costs):
            break
        for letter in pair:
            number = best if letter == "A" else START
            turn_costs[number].append(cost(number, steps + steps_in_turns))
            turn(guard, number, turn_costs[number][-1])
    return guard.to_keep(turn_costs) != START


@pytest.mark.parametrize(
    ("noise", "drift", "steps"),
    [(0.05, 0.0, 0.0), (0.1, 0.07, 0.0), (0.3, 0.1, 0.0), (0.1, 0.07, -0.02), (0.02, 0.0, 0.02)],
)
def test_what_is_no_better_is_seldom_kept_though_the_machine_drifts(
    noise: float, drift: float, steps: float
) -> None:
    rng = np.random.default_rng(0)
    assert np.mean([validated(rng, 1.0, noise, drift, steps) for _ in range(200)]) <= 0.05


@pytest.mark.parametrize(("steps", "misled"), [(0.1, "AB AB AB AB"), (-0.1, "BA BA BA BA")])
def test_a_machine_that_changes_in_the_turns_only_would_mislead_any_other_order(
    steps: float, misled: str
) -> None:
    """Slower and slower, it makes worse what is always second; faster and faster, what is always first."""

    def kept(turns: str) -> float:
        rng = np.random.default_rng(0)
        runs = [validated(rng, 1.0, 0.1, steps_in_turns=steps, turns=turns) for _ in range(200)]
        return float(np.mean(runs))

    assert kept(TURNS) <= 0.05 < kept(misled)


@pytest.mark.parametrize(("gain", "noise", "power"), [(1.3, 0.05, 0.9), (1.3, 0.1, 0.7), (1.6, 0.1, 0.95)])
def test_what_is_better_is_mostly_kept(gain: float, noise: float, power: float) -> None:
    rng = np.random.default_rng(0)
    assert np.mean([validated(rng, gain, noise, drift=0.07) for _ in range(200)]) >= power


@pytest.mark.parametrize("noise", [0.05, 0.15, 0.3])
def test_a_turn_of_an_equal_start_is_seldom_ended_early(noise: float) -> None:
    """Its cost so far is looked at three times, and every look may be luck."""
    rng = np.random.default_rng(0)
    ended, runs = 0, 400
    for _ in range(runs):
        guard = Guard(START, GuardSettings(latency_factor=1e9))
        for number, cost in enumerate(100 * np.exp(rng.normal(0, noise, (9, 2)))):
            tell(guard, number, cost[0])
            tell(guard, number, cost[1])
        best, before = guard.best, float(100 * np.exp(rng.normal(0, noise)))
        quarters = rng.normal(0, 2 * noise, 4)
        looks = [(k / 4, float(100 * np.exp(quarters[:k].mean()))) for k in (1, 2, 3)]
        ended += any(
            guard.turns.first_has_shown(best, before, SoFar(share, start, 200)) for share, start in looks
        )
    assert ended / runs <= 0.025


def test_a_start_that_is_far_worse_is_not_measured_for_longer_than_shows_it() -> None:
    guard = begun()
    for _ in range(15):
        tell(guard, GOOD, 80.0)
    assert guard.turns.first_has_shown(GOOD, 80.0, SoFar(0.25, 400.0, 50))
    for not_yet in (
        SoFar(0.25, 90.0, 50),
        SoFar(0.25, 400.0, 5),
        SoFar(0.25, math.nan, 50),
        SoFar(0.1, 400.0, 50),
    ):
        assert not guard.turns.first_has_shown(GOOD, 80.0, not_yet)
    for cost in (math.nan, 0.0):
        assert not guard.turns.first_has_shown(GOOD, cost, SoFar(0.25, 400.0, 50))
    assert not guard.turns.first_has_shown(GOOD, 80.0, SoFar(0.25, 120.0, 50))
    assert guard.turns.first_has_shown(GOOD, 80.0, SoFar(0.75, 120.0, 150))


def test_a_short_turn_of_the_start_widens_the_gains_interval() -> None:
    turns = {GOOD: [30.0], START: [100.0]}
    whole, short = begun(), begun()
    for guard, share in ((whole, 1.0), (short, 0.25)):
        for _ in range(15):
            tell(guard, GOOD, 30.0)
        turn(guard, START, 100.0, share)
    assert short.turns.gain(turns).estimate == pytest.approx(whole.turns.gain(turns).estimate)
    assert short.turns.gain(turns).low < whole.turns.gain(turns).low


def test_only_the_present_validations_first_turn_counts_as_short() -> None:
    turns = {GOOD: [30.0], START: [100.0]}
    anew = begun()
    for _ in range(15):
        tell(anew, GOOD, 30.0)
    turn(anew, START, 100.0, share=0.25)
    short = anew.turns.gain(turns)
    tell(anew, BAD, 90.0)
    turn(anew, START, 100.0)
    assert anew.turns.gain(turns).low > short.low


def test_without_turns_of_both_there_is_no_gain() -> None:
    assert math.isnan(begun().turns.gain({GOOD: [50.0]}).estimate)
    assert math.isnan(begun().turns.gain({START: [50.0]}).estimate)
