from __future__ import annotations

import heapq
import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.guard import Guard, GuardSettings
from rrl.measurement import LatencySummary, Measurement, Progress, SoFar
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from rrl.validation import LEAST_SHARE

START, GOOD, BAD = 0, 1, 2


def measured(mean_ms: float = 50.0, rate_per_s: float = 40.0, **changes: object) -> Measurement:
    n = int(rate_per_s * 4)
    values = {"duration_s": 4.0, "arrivals": n, "completions": n, "failures": 0} | changes
    return Measurement(latency=LatencySummary(mean_ms, mean_ms, 2 * mean_ms, 3 * mean_ms), **values)


ABORTED = {"aborted": "the queue is running away", "backlog": 80, "backlog_growth": 80, "completions": 80}


def tell(guard: Guard, number: int, mean_ms: float, rate_per_s: float = 40.0, **changes: object):
    guard.admit(number)
    m = measured(mean_ms, rate_per_s, **changes)
    return guard.judge(number, mean_ms + m.drain_ms, m)


def turn(guard: Guard, number: int, mean_ms: float, share: float = 1.0, rate_per_s: float = 40.0) -> None:
    guard.enter(number)
    guard.judge(number, mean_ms, measured(mean_ms, rate_per_s), "validation", share)


def begun(settings: GuardSettings | None = None, start_ms: float = 100.0) -> Guard:
    guard = Guard(START, settings or GuardSettings())
    for _ in range(3):
        guard.enter(START)
        guard.judge(START, start_ms, measured(start_ms), kind="baseline")
    return guard


# watch


def queue_glances(
    rng: np.random.Generator,
    rate_per_s: float,
    capacity_per_s: float,
    servers: int,
    service: Literal["exponential", "constant", "uniform"],
    warm_s: float = 30.0,
    watched_s: float = 10.0,
) -> list[Progress]:
    """A first-come-first-served queue, glanced at four times a second once it is in its steady state."""
    n = rng.poisson(rate_per_s * (warm_s + watched_s))
    arrivals = np.sort(rng.uniform(0, warm_s + watched_s, n))
    mean_s = servers / capacity_per_s
    draws = {
        "exponential": rng.exponential(mean_s, n),
        "constant": np.full(n, mean_s),
        "uniform": rng.uniform(0, 2 * mean_s, n),
    }[service]
    free = [0.0] * servers
    finishes = []
    for at, s in zip(arrivals, draws, strict=True):
        begin = max(at, heapq.heappop(free))
        heapq.heappush(free, begin + s)
        finishes.append(begin + s)
    done = np.sort(finishes)
    before = int(np.searchsorted(arrivals, warm_s)), int(np.searchsorted(done, warm_s))
    glances = []
    for elapsed in np.arange(0.25, watched_s, 0.25):
        a = int(np.searchsorted(arrivals, warm_s + elapsed)) - before[0]
        d = int(np.searchsorted(done, warm_s + elapsed)) - before[1]
        growth = a - d
        glances.append(Progress(float(elapsed), a, d, before[0] - before[1] + growth, growth))
    return glances


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rate_per_s=st.floats(2, 200),
    utilisation=st.floats(0.05, 0.85),
    servers=st.integers(1, 8),
    service=st.sampled_from(["exponential", "constant", "uniform"]),
    start_ms=st.floats(1, 500),
)
def test_a_stable_queue_is_never_aborted(
    seed: int, rate_per_s: float, utilisation: float, servers: int, service: str, start_ms: float
) -> None:
    guard = begun(start_ms=start_ms)
    guard.admit(BAD)
    rng = np.random.default_rng(seed)
    for progress in queue_glances(rng, rate_per_s, rate_per_s / utilisation, servers, service):
        assert guard.watch(progress) == ""


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rate_per_s=st.floats(50, 200), overload=st.floats(2.0, 20.0))
def test_a_queue_that_runs_away_is_aborted_within_five_seconds(
    seed: int, rate_per_s: float, overload: float
) -> None:
    guard = begun(start_ms=50.0)
    guard.admit(BAD)
    rng = np.random.default_rng(seed)
    glances = queue_glances(rng, rate_per_s, rate_per_s / overload, 1, "constant", warm_s=0.0)
    reasons = [(p.elapsed_s, reason) for p in glances if (reason := guard.watch(p))]
    assert reasons
    elapsed_s, reason = reasons[0]
    assert 1.0 <= elapsed_s <= 5.0
    assert "running away" in reason


@pytest.mark.parametrize("progress", [Progress(0.9, 100, 0, 100, 100), Progress(5.0, 19, 0, 19, 19)])
def test_too_little_seen_aborts_nothing(progress: Progress) -> None:
    guard = begun()
    guard.admit(BAD)
    assert guard.watch(progress) == ""


def test_what_a_rollback_would_return_to_is_not_aborted() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    runaway = Progress(3.0, 300, 20, 280, 280)
    for number, aborts in ((START, False), (GOOD, False), (BAD, True)):
        guard.admit(number)
        assert bool(guard.watch(runaway)) is aborts


def test_a_queue_that_was_there_before_and_goes_down_is_not_a_runaway() -> None:
    guard = begun()
    guard.admit(BAD)
    assert guard.watch(Progress(3.0, 120, 300, 500, -180)) == ""


# best known


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
    assert not guard.trusts(1)
    for mean_ms in (50.0, 52.0, 49.0, 51.0):
        tell(guard, 1, mean_ms)
    assert guard.trusts(1)
    tell(guard, 2, 40.0)  # once may be luck
    tell(guard, 3, 48.0)
    tell(guard, 3, 47.0)  # may be noise
    assert guard.trusts(1)
    for mean_ms in (20.0, 21.0, 19.0):
        tell(guard, 4, mean_ms, rate_per_s=32.0)  # at a lower load
        tell(guard, 5, mean_ms, failures=20)
    assert guard.trusts(1)
    assert not guard.trusts(5)
    for mean_ms in (41.0, 40.0, 39.0):
        tell(guard, 2, mean_ms)
    assert not guard.trusts(1)
    assert guard.trusts(2)


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


# judge and admit


def test_an_aborted_interval_rolls_back_to_the_best_known_whatever_the_agent_proposes() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 50.0, **ABORTED)
    assert verdict.rollback
    assert verdict.learn
    assert guard.takes_over
    assert guard.admit(5)[:2] == (GOOD, "rollback")
    assert guard.admit(5)[:2] == (5, "agent")


def test_a_broken_limit_rolls_back() -> None:
    guard = begun(GuardSettings(slo_p95_ms=300.0))
    verdict = tell(guard, BAD, 151.0)
    assert verdict.rollback
    assert "302 ms broke the limit of 300 ms" in verdict.reason


@pytest.mark.parametrize(("mean_ms", "rolls_back"), [(290.0, False), (310.0, True)])
def test_latency_far_worse_than_at_the_start_rolls_back(mean_ms: float, rolls_back: bool) -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    assert tell(guard, BAD, mean_ms).rollback is rolls_back


def test_the_best_known_itself_is_never_rolled_back() -> None:
    guard = begun(GuardSettings(slo_p95_ms=10.0))  # nothing can keep this limit
    assert not tell(guard, GOOD, 20.0).rollback
    assert not tell(guard, START, 100.0).rollback


def test_an_aborted_configuration_is_refused_for_a_while_at_this_or_a_higher_load() -> None:
    guard = begun(GuardSettings(cooldown=5))
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    tell(guard, GOOD, 20.0)
    assert guard.admit(BAD)[:2] == (GOOD, "refused")
    tell(guard, GOOD, 40.0, rate_per_s=80.0)
    assert guard.admit(BAD).decision == "refused"
    tell(guard, GOOD, 5.0, rate_per_s=10.0)
    assert guard.admit(BAD).decision == "agent"  # much less load than it failed under
    for _ in range(3):
        tell(guard, GOOD, 20.0)
    assert guard.admit(BAD).decision == "agent"  # long ago


def test_the_interval_that_drains_an_aborted_ones_queue_is_not_held_against_its_configuration() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    number, decision, _ = guard.admit(None)
    assert (number, decision) == (GOOD, "rollback")
    draining = measured(900.0, backlog=2, backlog_growth=-78, completions=238)
    verdict = guard.judge(GOOD, 900.0, draining)
    assert not verdict.learn
    assert not verdict.rollback
    assert guard.best == GOOD


def test_a_configuration_that_drains_a_long_queue_is_kept_until_it_is_gone_but_not_for_ever() -> None:
    guard = begun()
    tell(guard, BAD, 50.0, **ABORTED)
    guard.admit(None)
    guard.judge(START, 9e3, measured(9e3, backlog=1000))
    assert guard.admit(GOOD)[:2] == (GOOD, "agent")
    draining = measured(9e3, backlog=500, backlog_growth=-200, completions=360)
    assert not guard.judge(GOOD, 9e3, draining).learn
    assert guard.admit(None)[:2] == (GOOD, "hold")
    taken = 1
    while not guard.judge(GOOD, 9e3, draining).learn:
        guard.admit(None)
        taken += 1
    assert taken == GuardSettings().drain_intervals


def test_failures_of_a_queue_that_a_rollback_met_are_forgiven_until_it_is_gone() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 50.0, **ABORTED)
    for decision in ("rollback", "hold"):
        assert guard.admit(None)[:2] == (GOOD, decision)
        draining = measured(9e3, backlog=500, backlog_growth=-200, completions=360, failures=30)
        guard.judge(GOOD, 9e3, draining)
    assert guard.fits(GOOD)


@pytest.mark.parametrize("nothing", [{"arrivals": 0, "completions": 0}, {"gap": "the server restarted"}])
def test_nothing_is_learned_without_traffic_or_from_a_gap_and_the_best_known_is_held(nothing: dict) -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 1.0, **nothing)
    assert not verdict.learn
    assert guard.best == GOOD
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_a_configuration_under_which_the_target_was_lost_twice_is_refused() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    for refused in (False, True):
        tell(guard, BAD, 1.0, gap="the server restarted")
        tell(guard, GOOD, 20.0)
        assert (guard.admit(BAD).decision == "refused") is refused


# failures


@pytest.mark.parametrize(("failures", "fails"), [(3, False), (4, True), (100, True)])
def test_a_configuration_under_which_requests_fail_is_rolled_back_refused_and_never_left(
    failures: int, fails: bool
) -> None:
    guard = begun()
    assert tell(guard, GOOD, 10.0, failures=failures).rollback is fails
    assert (guard.best == START) is fails
    if fails:
        assert guard.admit(None)[:2] == (START, "rollback")
        guard.judge(START, 100.0, measured(100.0))
        assert guard.admit(GOOD)[:2] == (START, "refused")
        for _ in range(30):  # long ago
            tell(guard, START, 100.0)
        tell(guard, GOOD, 10.0)
        assert guard.best == START
        assert guard.to_leave({GOOD: [10.0, 10.0], START: [100.0, 100.0]}) == guard.to_leave() == START


def test_what_fails_at_the_start_too_is_not_held_against_a_configuration() -> None:
    guard = Guard(START)
    for _ in range(3):
        guard.enter(START)
        guard.judge(START, 100.0, measured(100.0, failures=16), kind="baseline")
    assert not tell(guard, GOOD, 10.0, failures=20).rollback
    assert tell(guard, BAD, 10.0, failures=60).rollback


def test_a_best_that_begins_to_fail_is_rolled_back_from() -> None:
    guard = begun()
    for _ in range(3):
        tell(guard, GOOD, 10.0)
    assert tell(guard, GOOD, 10.0, failures=30).rollback
    assert guard.admit(None)[:2] == (START, "rollback")


def test_an_interval_in_which_nothing_completes_is_an_abort_unless_it_is_the_starts() -> None:
    guard = begun()
    guard.admit(BAD)
    nothing = measured(math.nan, completions=0)
    assert guard.judge(BAD, math.nan, nothing) == (True, False, "nothing was completed")
    assert guard.admit(None)[:2] == (START, "rollback")
    assert not guard.judge(START, math.nan, nothing).rollback
    assert guard.admit(BAD).decision == "refused"


# what no limit may hold back


@pytest.mark.parametrize(
    ("number", "changes", "must_act"),
    [
        (BAD, ABORTED, True),
        (BAD, {"failures": 80}, True),
        (BAD, {"arrivals": 0, "completions": 0}, False),  # quiet: nothing bad is known
        (BAD, {"gap": "the server restarted"}, True),  # perhaps because of it
        (START, {"gap": "the server restarted"}, False),
    ],
)
def test_the_guard_must_act_where_what_is_in_force_may_be_bad(
    number: int, changes: dict, must_act: bool
) -> None:
    guard = begun()
    tell(guard, GOOD, 95.0)
    tell(guard, number, 90.0, **changes)
    assert guard.takes_over
    assert guard.must_act is must_act


def test_the_guard_knows_what_it_was_told_of() -> None:
    guard = begun()
    assert guard.knows(START)
    assert not guard.knows(GOOD)
    tell(guard, GOOD, 95.0, rate_per_s=1.0)
    assert guard.knows(GOOD)


# what is left at the end


def test_what_broke_the_limit_where_the_start_kept_it_is_never_best_and_never_left() -> None:
    guard = begun(GuardSettings(slo_p95_ms=300.0))
    for mean_ms in (10.0, 10.0, 10.0, 160.0):
        tell(guard, GOOD, mean_ms)
    assert guard.best == guard.to_leave() == START
    assert guard.to_leave({GOOD: [10.0, 10.0], START: [100.0, 100.0]}) == START
    tell(guard, START, 200.0)  # the start breaks it too
    assert guard.best == GOOD


@pytest.mark.parametrize(
    "objective", [MeanLatency(), MeanLatency(300.0), StrictSLO(300.0), LeastResources(300.0)]
)
def test_costs_rise_with_failed_requests_and_a_broken_limit_and_are_none_if_nothing_completes(
    objective: Objective,
) -> None:
    def cost(mean_ms: float, **changes: object) -> float:
        return objective.cost(measured(mean_ms, **changes), {"instances": 2})

    assert cost(100.0, failures=16) > 1.5 * cost(100.0)
    assert math.isnan(cost(math.nan, completions=0))
    assert cost(100.0, **ABORTED) > cost(100.0)
    if objective.slo_p95_ms is not None:
        assert cost(151.0) > cost(149.0) + 60


def test_the_better_of_best_and_start_in_validation_is_left() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    assert guard.to_leave({GOOD: [30.0, 32.0], START: [90.0, 110.0]}) == GOOD
    assert guard.to_leave({GOOD: [130.0, 32.0], START: [70.0, 60.0]}) == START
    assert guard.to_leave({GOOD: [50.0], START: [50.0]}) == START
    assert guard.to_leave({GOOD: [50.0]}) == START


def test_a_better_mean_that_is_within_the_noise_of_the_turns_is_not_left() -> None:
    guard = begun()
    tell(guard, GOOD, 90.0)
    validation = {GOOD: [90.0, 99.0], START: [101.0, 97.0]}
    assert guard.gain(validation).estimate > 1
    number, reason = guard.leaving(validation)
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
    assert not guard.gain(validation).beyond_noise
    number, reason = guard.leaving(validation)
    assert number == left
    assert ("before them 4.00x lower cost" in reason) == (left == GOOD)


def test_the_less_the_run_has_seen_costs_scatter_the_less_the_turns_must_differ() -> None:
    validation = {GOOD: [82.0, 80.0], START: [100.0, 99.0]}
    quiet, loud = begun(), begun()
    for i in range(10):
        tell(quiet, GOOD, 80.0 + i % 2)
        tell(loud, GOOD, 60.0 + 40 * (i % 2))
    assert quiet.to_leave(validation) == GOOD
    assert loud.to_leave(validation) == START
    assert quiet.leaving(validation).reason.endswith("measured in turns with it")


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
    assert guard.is_settled({GOOD: [best_ms, best_ms], START: [start_ms]}) == settled
    assert not guard.is_settled({GOOD: [best_ms, start_ms], START: [start_ms]})  # the second does not agree
    for turns in ({GOOD: [], START: []}, {GOOD: [20.0], START: [100.0]}, {GOOD: [20.0, 20.0]}):
        assert not guard.is_settled(turns)


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
        share = guard.share_for_first_turn(best)
        before, start, after = 100 * np.exp(rng.normal(0, [noise, noise * share**-0.5, noise]))
        turn(guard, START, start, share)
        settled += guard.is_settled({best: [before, after], START: [start]})
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
            if guard.has_shown(best, float(before), SoFar(share, start, round(share * 200))):
                break
        ended += share < 1
        turn(guard, START, start, share)
        settled += guard.is_settled({best: [before, after], START: [start]})
    assert ended / runs <= 0.025
    assert settled / runs <= 0.025


def test_a_start_that_is_far_worse_than_before_is_not_measured_for_longer_than_shows_it() -> None:
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, 80.0)
    assert guard.share_for_first_turn(GOOD) > 0.5
    assert guard.has_shown(GOOD, 80.0, SoFar(0.25, 400.0, 50))
    for not_yet in (SoFar(0.25, 90.0, 50), SoFar(0.25, 400.0, 5), SoFar(0.25, math.nan, 50)):
        assert not guard.has_shown(GOOD, 80.0, not_yet)
    for cost in (math.nan, 0.0):
        assert not guard.has_shown(GOOD, cost, SoFar(0.25, 400.0, 50))
    tell(guard, BAD, 100.0)  # no better, before: it must be clearly so in the turns
    assert not guard.has_shown(BAD, 80.0, SoFar(0.25, 170.0, 50))
    assert not guard.has_shown(BAD, 80.0, SoFar(0.25, 800.0, 50))
    assert guard.has_shown(BAD, 80.0, SoFar(0.5, 800.0, 100))
    assert guard.has_shown(GOOD, 80.0, SoFar(0.75, 170.0, 150))


def test_the_start_is_measured_for_shorter_where_the_best_was_better_before() -> None:
    near, far = begun(), begun()
    for _ in range(4):
        tell(near, GOOD, 95.0)
        tell(far, GOOD, 30.0)
    assert near.share_for_first_turn(GOOD) == 1.0
    assert far.share_for_first_turn(GOOD) == LEAST_SHARE


def test_a_short_turn_of_the_start_widens_the_gains_interval() -> None:
    turns = {GOOD: [30.0, 31.0], START: [100.0]}
    whole, short = begun(), begun()
    turn(whole, START, 100.0)
    turn(short, START, 100.0, share=0.25)
    assert short.gain(turns).estimate == whole.gain(turns).estimate
    assert short.gain(turns).low < whole.gain(turns).low


def test_only_the_present_validations_first_turn_counts_as_short() -> None:
    turns = {GOOD: [30.0, 31.0], START: [100.0]}
    anew = begun()
    turn(anew, START, 100.0, share=0.25)
    short = anew.gain(turns)
    tell(anew, BAD, 90.0)
    turn(anew, START, 100.0)
    assert anew.gain(turns).low > short.low


def test_at_another_load_than_the_starts_its_turn_is_a_whole_one() -> None:
    guard = begun()
    for _ in range(4):
        tell(guard, GOOD, 30.0)
    tell(guard, GOOD, 20.0, rate_per_s=8.0)
    assert guard.share_for_first_turn(GOOD) == 1.0


@pytest.mark.parametrize(("share", "fits"), [(0.25, True), (1.0, False)])
def test_the_few_requests_of_a_short_turn_tell_no_load(share: float, fits: bool) -> None:
    guard = begun()
    tell(guard, GOOD, 50.0, rate_per_s=60.0, **ABORTED)
    tell(guard, START, 100.0)
    assert guard.fits(GOOD)  # at this load
    turn(guard, START, 100.0, share, rate_per_s=60.0)
    assert guard.fits(GOOD) is fits


@pytest.mark.parametrize(("share", "fits"), [(0.25, False), (1.0, True)])
def test_a_short_turn_in_which_the_start_broke_the_limit_excuses_nothing(share: float, fits: bool) -> None:
    guard = begun(GuardSettings(slo_p95_ms=150.0), start_ms=70.0)
    turn(guard, GOOD, 80.0)
    assert not guard.fits(GOOD)
    turn(guard, START, 80.0, share)
    assert guard.fits(GOOD) is fits


def test_where_all_that_met_a_new_load_ran_away_the_best_of_the_nearest_load_is_best() -> None:
    """And not a start that was overloaded at half of it."""
    guard = begun(start_ms=900.0)
    tell(guard, GOOD, 20.0)
    tell(guard, BAD, 30.0)
    assert tell(guard, BAD, 500.0, rate_per_s=80.0, **ABORTED).rollback
    assert guard.best == GOOD
    assert guard.admit(None) == (GOOD, "rollback", ABORTED["aborted"])


def test_without_turns_of_both_there_is_no_gain() -> None:
    assert math.isnan(begun().gain({GOOD: [50.0]}).estimate)
    assert math.isnan(begun().gain({START: [50.0]}).estimate)


def test_stopped_early_the_best_is_left_only_if_it_is_better_beyond_noise() -> None:
    guard = begun()
    assert guard.to_leave() == START
    tell(guard, GOOD, 95.0)
    assert guard.to_leave() == START
    tell(guard, BAD, 60.0)
    assert guard.to_leave() == BAD


@pytest.mark.parametrize(("start_intervals", "left"), [(1, START), (4, GOOD)])
def test_stopped_early_a_start_measured_once_may_have_been_unlucky(start_intervals: int, left: int) -> None:
    guard = Guard(START)
    for _ in range(start_intervals):
        guard.enter(START)
        guard.judge(START, 100.0, measured(100.0), kind="baseline")
    for _ in range(4):
        tell(guard, GOOD, 78.0)
    assert guard.best == GOOD
    assert guard.to_leave() == left


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
    left = guard.to_leave()
    assert np.mean(seen[left]) <= np.mean(seen[START]) + 1e-9


def test_worse_than_the_start_is_what_cost_more_beyond_noise_at_this_load_or_is_unfit() -> None:
    guard = begun(start_ms=100.0)
    assert not guard.is_worse(GOOD)
    tell(guard, GOOD, 120.0)
    assert not guard.is_worse(GOOD)
    for _ in range(3):
        tell(guard, BAD, 250.0)
    assert guard.is_worse(BAD)
    tell(guard, GOOD, 120.0, failures=100)
    assert guard.is_worse(GOOD)


def test_stopped_early_a_start_seen_at_another_load_alone_is_compared_where_it_was_seen() -> None:
    """Not a peak's 200 ms of the start with what the best takes at half the load."""
    guard = Guard(START)
    guard.enter(START)
    guard.judge(START, 200.0, measured(200.0, rate_per_s=100.0), kind="baseline")
    for _ in range(2):
        tell(guard, GOOD, 25.0, rate_per_s=50.0)
    assert guard.best == GOOD
    assert guard.to_leave() == START
    tell(guard, GOOD, 60.0, rate_per_s=100.0)
    tell(guard, GOOD, 25.0, rate_per_s=50.0)
    assert guard.to_leave() == GOOD
