from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrl.guarding.guard import Guard
from rrl.guarding.settings import GuardSettings
from rrl.measurement import Progress
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from tests.support.runs.guard_told import ABORTED, BAD, GOOD, START, begun, begun_once, measured, tell, turn

# watch

Service = Literal["exponential", "constant", "uniform"]


def queue_glances(
    rng: np.random.Generator,
    rate_per_s: float,
    capacity_per_s: float,
    servers: int,
    service: Service,
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
    seed: int, rate_per_s: float, utilisation: float, servers: int, service: Service, start_ms: float
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


@pytest.mark.parametrize(
    ("elapsed_s", "completions", "failures", "aborts"),
    [(2.0, 80, 40, True), (2.0, 0, 20, True), (2.0, 80, 3, False), (0.9, 80, 40, False), (2.0, 9, 10, False)],
)
def test_an_interval_in_which_requests_fail_is_aborted_before_its_time_is_over(
    elapsed_s: float, completions: int, failures: int, aborts: bool
) -> None:
    progress = Progress(elapsed_s, completions + failures, completions, 0, 0, failures)
    guard = begun()
    guard.admit(BAD)
    reason = guard.watch(progress)
    assert reason == (
        f"{failures} of {completions + failures} requests failed within {elapsed_s:.1f} s" if aborts else ""
    )
    guard.enter(START)
    assert guard.watch(progress) == ""


def test_an_interval_that_fails_as_much_as_the_start_goes_on() -> None:
    guard = begun_failing(failures=80)  # half
    guard.admit(BAD)
    assert guard.watch(Progress(2.0, 40, 20, 0, 0, failures=20)) == ""
    assert guard.watch(Progress(2.0, 40, 1, 0, 0, failures=39))


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
    assert guard.fitness.fits(GOOD)


def test_nothing_is_learned_from_a_gap_and_the_best_known_comes_back() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 1.0, gap="the server restarted")
    assert not verdict.learn
    assert guard.best == GOOD
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_silence_moves_nothing() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    assert tell(guard, BAD, 1.0, arrivals=0, completions=0)[:3] == (False, False, "no requests arrive")
    assert guard.best == GOOD
    assert guard.admit(None) == (BAD, "hold", "no requests arrive")
    tell(guard, BAD, 30.0)
    assert guard.admit(GOOD).decision == "agent"


def test_requests_that_only_fail_are_no_silence() -> None:
    """As where clients have gone, and what waits for them is given up."""
    guard = begun()
    tell(guard, GOOD, 20.0)
    verdict = tell(guard, BAD, 4000.0, arrivals=0, completions=0, failures=40, backlog_growth=-40)
    assert verdict.rollback
    assert verdict.reason == "40 requests failed"
    assert guard.memory.rate_per_s == 40.0
    assert guard.admit(None)[:2] == (GOOD, "rollback")


def test_a_configuration_under_which_the_target_was_lost_twice_is_refused() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    for refused in (False, True):
        tell(guard, BAD, 1.0, gap="the server restarted")
        tell(guard, GOOD, 20.0)
        assert (guard.admit(BAD).decision == "refused") is refused


@pytest.mark.parametrize("served", [1, 5, 21])
def test_what_served_between_two_losses_of_the_target_was_not_to_blame(served: int) -> None:
    """An operator restarts the server, and a run of days sees it restart every night."""
    guard = begun()
    for _ in range(3):
        tell(guard, GOOD, 20.0, gap="the server restarted")
        for _ in range(served):
            tell(guard, GOOD, 20.0)
    assert guard.admit(GOOD).decision == "agent"
    assert guard.fitness.fits(GOOD)


def test_what_others_do_to_the_target_speaks_against_no_configuration() -> None:
    guard = begun()
    tell(guard, GOOD, 20.0)
    for _ in range(3):
        assert not tell(guard, GOOD, 20.0, gap="another client changed it", gap_by_others=True).rollback
        assert guard.admit(None)[:2] == (GOOD, "hold")
        assert not guard.must_act
    tell(guard, GOOD, 20.0)
    assert guard.best == GOOD
    assert guard.admit(GOOD).decision == "agent"


def test_what_was_in_force_too_seldom_to_meet_two_losses_by_chance_is_to_blame_though_it_served() -> None:
    guard = begun()
    for _ in range(2):
        for _ in range(10):
            tell(guard, GOOD, 20.0)
        tell(guard, BAD, 10.0)
        tell(guard, BAD, 1.0, gap="the server restarted")
    tell(guard, GOOD, 20.0)
    assert guard.admit(BAD).decision == "refused"
    assert guard.admit(GOOD).decision == "agent"


def test_a_start_under_which_the_target_is_lost_and_not_under_another_is_left() -> None:
    guard = begun_once(50.0)
    for _ in range(4):
        turn(guard, START, 50.0)
        assert not guard.choice.avoids_start
        guard.enter(START)
        guard.judge(START, 50.0, measured(gap="the server restarted"))
        for _ in range(3):
            tell(guard, GOOD, 80.0)
    assert guard.choice.avoids_start
    assert guard.best == guard.to_keep() == GOOD
    assert "the target was lost under the start" in guard.keeping().reason
    assert guard.admit(START)[:2] == (GOOD, "refused")


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
        assert guard.to_keep({GOOD: [10.0, 10.0], START: [100.0, 100.0]}) == guard.to_keep() == START


def test_failures_are_forgiven_once_it_has_served_for_long_without_any() -> None:
    """Or one client that sends what cannot be served bans what is best from a run of days."""
    guard = begun(GuardSettings(cooldown=5))
    for _ in range(2):
        tell(guard, GOOD, 10.0, failures=100)
        for _ in range(5):
            tell(guard, GOOD, 10.0)
        assert not guard.fitness.fits(GOOD)
    tell(guard, GOOD, 10.0)
    assert guard.best == GOOD


def test_what_fails_at_the_start_too_is_not_held_against_a_configuration() -> None:
    guard = Guard(START)
    for _ in range(3):
        guard.enter(START)
        guard.judge(START, 100.0, measured(100.0, failures=16), kind="baseline")
    assert not tell(guard, GOOD, 10.0, failures=20).rollback
    assert tell(guard, BAD, 10.0, failures=60).rollback


def begun_failing(failures: int = 40) -> Guard:
    guard = Guard(START)
    guard.enter(START)
    assert not guard.judge(START, 400.0, measured(100.0, failures=failures), kind="baseline").rollback
    return guard


def test_a_start_that_fails_is_left_for_what_fails_less() -> None:
    guard = begun_failing()
    assert guard.best == START
    assert not guard.fitness.start_fails  # All may fail as much.
    tell(guard, BAD, 300.0)
    assert guard.best == guard.to_keep() == guard.to_keep({BAD: [300.0], START: [400.0]}) == BAD
    assert "failed under the start" in guard.keeping().reason
    assert guard.choice.avoids_start
    assert guard.refuses == {START}
    assert guard.admit(START)[:2] == (BAD, "refused")
    tell(guard, GOOD, 50.0)
    assert guard.best == GOOD


def test_a_start_that_fails_stays_where_all_fail_as_much() -> None:
    guard = begun_failing()
    tell(guard, GOOD, 400.0, failures=40)
    assert not guard.fitness.start_fails
    assert guard.refuses == frozenset()


def test_a_best_that_begins_to_fail_is_rolled_back_from() -> None:
    guard = begun()
    for _ in range(3):
        tell(guard, GOOD, 10.0)
    assert tell(guard, GOOD, 10.0, failures=30).rollback
    assert guard.admit(None)[:2] == (START, "rollback")


def test_a_few_requests_that_came_too_late_to_be_answered_tell_nothing() -> None:
    """As where a burst begins just before an interval ends."""
    guard = begun()
    guard.admit(BAD)
    late = replace(measured(math.nan, completions=0), arrivals=3, backlog=3, backlog_growth=3)
    assert guard.judge(BAD, math.nan, late)[:3] == (False, False, "too few requests came to tell anything")
    assert guard.admit(None)[:2] == (BAD, "hold")
    waited = replace(late, backlog=6)
    assert guard.judge(BAD, math.nan, waited).rollback


def test_an_interval_in_which_nothing_completes_is_an_abort_unless_it_is_the_starts() -> None:
    guard = begun()
    guard.admit(BAD)
    nothing = measured(math.nan, completions=0)
    assert guard.judge(BAD, math.nan, nothing)[:3] == (True, False, "nothing was completed")
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
    assert guard.memory.knows(START)
    assert not guard.memory.knows(GOOD)
    tell(guard, GOOD, 95.0, rate_per_s=1.0)
    assert guard.memory.knows(GOOD)


# what is left at the end


def test_what_broke_the_limit_where_the_start_kept_it_is_never_best_and_never_left() -> None:
    guard = begun(GuardSettings(slo_p95_ms=300.0))
    for mean_ms in (10.0, 10.0, 10.0, 160.0):
        tell(guard, GOOD, mean_ms)
    assert guard.best == guard.to_keep() == START
    assert guard.to_keep({GOOD: [10.0, 10.0], START: [100.0, 100.0]}) == START
    tell(guard, START, 200.0)  # the start breaks it too
    assert guard.best == GOOD


@pytest.mark.parametrize(
    "objective", [MeanLatency(), MeanLatency(300.0), StrictSLO(300.0), LeastResources(300.0)]
)
def test_costs_rise_with_failed_requests_and_a_broken_limit_and_are_none_if_nothing_completes(
    objective: Objective,
) -> None:
    def cost(mean_ms: float, **changes: Any) -> float:
        return objective.cost(measured(mean_ms, **changes), {"instances": 2})

    assert cost(100.0, failures=16) > 1.5 * cost(100.0)
    assert math.isnan(cost(math.nan, completions=0))
    assert cost(100.0, **ABORTED) > cost(100.0)
    if objective.slo_p95_ms is not None:
        assert cost(151.0) > cost(149.0) + 60


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


def test_requests_that_fail_while_a_change_settles_speak_against_it_unless_it_is_a_rollback() -> None:
    lost = measured(failures=50)
    guard = begun()
    guard.admit(GOOD)
    assert guard.judge(GOOD, 50.0, measured(50.0), settling=lost).reason == "50 requests failed"
    assert not guard.fitness.fits(GOOD)
    guard = begun()
    for _ in range(3):
        tell(guard, GOOD, 50.0)
    assert tell(guard, BAD, 500.0, **ABORTED).rollback
    assert guard.admit(None).number == GOOD
    assert not guard.judge(GOOD, 50.0, measured(50.0), settling=lost).reason
    assert guard.fitness.fits(GOOD)
