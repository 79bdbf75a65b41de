"""Whether the target fails all requests, or the configuration in force does."""

from __future__ import annotations

import pytest

from rrl.guarding.guard import Guard, Judgement
from rrl.guarding.outage import DOWN, IN_DOUBT
from rrl.measurement import LatencySummary, Measurement

START, GOOD, OTHER = 0, 1, 2
SERVES = Measurement(5.0, 200, 200, 0, LatencySummary(20.0))
FAILS = Measurement(5.0, 200, 0, 200)
FAILS_FEW = Measurement(5.0, 3, 0, 3)
HANGS = Measurement(5.0, 200, 0, 0, backlog=200, backlog_growth=200)


@pytest.fixture
def guard() -> Guard:
    guard = Guard(START)
    for number, cost in ((START, 40.0), (GOOD, 10.0), (OTHER, 20.0)):
        tell(guard, number, SERVES, cost)
    return guard


def tell(guard: Guard, number: int, measurement: Measurement, cost: float = 1e4) -> Judgement:
    guard.enter(number)
    return guard.judge(number, cost, measurement)


def test_what_served_and_fails_all_is_left_for_what_tells_whether_it_is_to_blame(guard: Guard) -> None:
    judgement = tell(guard, GOOD, FAILS)
    assert judgement == Judgement(True, False, IN_DOUBT, IN_DOUBT)
    assert guard.admit(None).number == OTHER
    assert not guard.judge(OTHER, 20.0, SERVES).gap
    assert not guard.fitness.fits(GOOD)
    assert GOOD in guard.refuses
    assert tell(guard, GOOD, FAILS).gap == ""  # it is known by now


def test_where_another_that_served_fails_all_as_well_nobody_is_to_blame(guard: Guard) -> None:
    tell(guard, GOOD, FAILS)
    assert guard.admit(None).number == OTHER
    assert guard.judge(OTHER, 1e4, FAILS).gap == DOWN
    for _ in range(30):
        number = guard.admit(None).number
        assert number in (START, GOOD)
        assert guard.judge(number, 1e4, FAILS).gap == DOWN
    assert not tell(guard, GOOD, SERVES, 10.0).gap
    assert all(guard.fitness.fits(number) for number in (START, GOOD, OTHER))
    assert guard.best == GOOD
    assert not guard.refuses


@pytest.mark.parametrize("then", [FAILS_FEW, HANGS])
def test_where_nothing_is_answered_under_another_either_nobody_is_to_blame(
    guard: Guard, then: Measurement
) -> None:
    tell(guard, GOOD, FAILS)
    number = guard.admit(None).number
    assert number == OTHER
    assert guard.judge(number, 1e4, then).gap == (DOWN if then.failures else "")
    tell(guard, START, SERVES, 40.0)
    assert guard.fitness.fits(GOOD)
    assert GOOD not in guard.refuses
    assert guard.best == GOOD


def test_few_requests_of_which_none_is_answered_leave_the_doubt_as_it_is(guard: Guard) -> None:
    tell(guard, GOOD, FAILS)
    tell(guard, OTHER, Measurement(5.0, 5, 0, 0, backlog=2, backlog_growth=2))
    assert guard.fitness.outage.in_doubt == {GOOD}
    assert GOOD not in guard.refuses
    tell(guard, OTHER, SERVES, 20.0)
    assert not guard.fitness.fits(GOOD)


def test_few_failures_before_an_outage_are_none(guard: Guard) -> None:
    assert not tell(guard, GOOD, FAILS_FEW).gap
    assert not guard.fitness.outage.in_doubt


def test_what_never_served_is_to_blame_at_once_and_stays_so(guard: Guard) -> None:
    judgement = tell(guard, 3, FAILS)
    assert judgement.rollback
    assert not judgement.gap
    assert guard.judge(guard.admit(None).number, 1e4, FAILS).gap == DOWN
    tell(guard, GOOD, SERVES, 10.0)
    assert not guard.fitness.fits(3)
    assert guard.fitness.fits(GOOD)


def test_a_start_that_never_served_is_to_blame() -> None:
    guard = Guard(START)
    assert not tell(guard, START, FAILS).gap
    assert not tell(guard, GOOD, FAILS).gap
    tell(guard, OTHER, SERVES, 20.0)
    assert guard.to_keep() == OTHER


def test_a_start_that_alone_fails_all_now_is_left(guard: Guard) -> None:
    assert tell(guard, START, FAILS).gap == IN_DOUBT
    number = guard.admit(None).number
    assert number != START
    guard.judge(number, 20.0, SERVES)
    assert tell(guard, START, FAILS).gap == ""
    assert guard.fitness.start_fails
