"""Failed requests speak against a configuration, and against the start."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rrl.guarding.guard import Guard, Judgement
from rrl.guarding.settings import GuardSettings
from rrl.joint import together
from rrl.measurement import LatencySummary, Measurement
from rrl.objective import LeastResources, MeanLatency, Objective, StrictSLO
from tests.support.runs.guard_told import ABORTED, BAD, GOOD, START, begun, begun_failing, measured, tell


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


def test_while_answers_take_longer_than_an_interval_under_the_start_too_to_wait_for_one_is_no_fault() -> None:
    guard = begun(start_ms=6e3)  # intervals of 4 s
    one = replace(measured(math.nan, completions=0), arrivals=1, backlog=2, backlog_growth=1)
    late, waits = replace(one, backlog=1), replace(one, arrivals=0, backlog=1, backlog_growth=0)
    answered = replace(measured(6e3, completions=1), arrivals=0, backlog_growth=-1)
    guard.admit(BAD)
    for _ in range(10):  # each request is answered in the fourth interval that it is there
        assert not guard.judge(BAD, math.nan, late).rollback
        for _ in range(2):
            assert guard.admit(None)[:2] == (BAD, "hold")
            assert not guard.judge(BAD, math.nan, waits).rollback
        assert guard.admit(None)[:2] == (BAD, "hold")
        assert not guard.judge(BAD, 6e3, answered).rollback
        guard.admit(BAD)
    assert guard.fitness.fits(BAD)


def test_a_server_that_hangs_is_left_after_a_few_times_what_answers_take_under_the_start() -> None:
    guard = begun(start_ms=6e3)
    waits = replace(measured(math.nan, completions=0), arrivals=1, backlog=2, backlog_growth=1)
    for _ in range(4):  # 16 s, and 3 x 6 s is a fault
        guard.admit(BAD)
        assert guard.judge(BAD, math.nan, waits)[:2] == (False, False)
    assert guard.admit(None)[:2] == (BAD, "hold")
    assert guard.judge(BAD, math.nan, waits)[:3] == (True, False, "nothing was completed")
    assert not guard.fitness.fits(BAD)


def test_many_requests_of_which_none_is_answered_are_a_fault_however_long_answers_take() -> None:
    guard = begun(start_ms=6e3)
    guard.admit(BAD)
    many = replace(measured(math.nan, completions=0), arrivals=40, backlog=41, backlog_growth=40)
    assert guard.judge(BAD, math.nan, many).rollback


def test_an_interval_in_which_nothing_completes_is_an_abort_unless_it_is_the_starts() -> None:
    guard = begun()
    guard.admit(BAD)
    nothing = measured(math.nan, completions=0)
    assert guard.judge(BAD, math.nan, nothing)[:3] == (True, False, "nothing was completed")
    assert guard.admit(None)[:2] == (START, "rollback")
    assert not guard.judge(START, math.nan, nothing).rollback
    assert guard.admit(BAD).decision == "refused"


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


def untold(guard: Guard, failures: int = 0) -> Judgement:
    """An interval of GOOD with answers whose p95 nobody tells."""
    guard.admit(GOOD)
    m = replace(measured(failures=failures), latency=LatencySummary(50.0))
    return guard.judge(GOOD, StrictSLO(100.0).cost(m, {}), m)


def test_answers_whose_p95_is_not_told_speak_against_no_configuration() -> None:
    guard = begun()
    judgement = untold(guard)
    assert not judgement.rollback
    assert not judgement.learn
    assert "not told" in judgement.reason
    assert guard.fitness.fits(GOOD)
    assert GOOD not in guard.refuses


def test_failures_among_them_do() -> None:
    guard = begun()
    judgement = untold(guard, failures=100)
    assert judgement.rollback
    assert judgement.reason == "100 requests failed"
    assert not guard.fitness.fits(GOOD)


def of_two(rare_failures: int, rare_completions: int) -> Measurement:
    """An interval of a busy model without failures, and of one with few requests."""
    rare = measured(30.0, arrivals=3, completions=rare_completions, failures=rare_failures)
    return together({"busy": measured(20.0, rate_per_s=100.0), "rare": rare})


def tell_of_two(guard: Guard, number: int, *rare: int) -> Judgement:
    if number == START:
        guard.enter(number)
    else:
        guard.admit(number)
    return guard.judge(number, 20.0, of_two(*rare))


def test_a_rare_model_that_fails_every_request_counts_over_intervals() -> None:
    """Three of three may be chance, once."""
    guard = begun()
    tell_of_two(guard, START, 0, 3)
    assert not tell_of_two(guard, GOOD, 3, 0).rollback
    assert guard.fitness.fits(GOOD)
    judgement = tell_of_two(guard, GOOD, 3, 0)
    assert judgement.rollback
    assert judgement.reason == "6 requests failed"
    assert not guard.fitness.fits(GOOD)
    assert guard.to_keep() == START


def test_a_rare_model_that_is_answered_in_between_fails_by_chance() -> None:
    guard = begun()
    for rare in [(3, 0), (2, 1)] * 3:
        assert not tell_of_two(guard, GOOD, *rare).rollback
    assert guard.fitness.fits(GOOD)


@pytest.mark.parametrize("before", [[(3, 0), (3, 0)], [(0, 3)] * 9 + [(3, 0), (3, 0)]])
def test_a_rare_model_that_fails_under_the_start_too_is_held_against_nothing(
    before: list[tuple[int, int]],
) -> None:
    guard = begun()
    for rare in before:
        tell_of_two(guard, START, *rare)
    for _ in range(4):
        assert not tell_of_two(guard, GOOD, 3, 0).rollback
    assert guard.fitness.fits(GOOD)
