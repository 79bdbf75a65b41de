"""Which failures come whatever is in force, by the order in which they come."""

from __future__ import annotations

from rrl.belief.shared_failures import SharedFailures
from rrl.measurement import Measurement

A, B, C = 1, 2, 3


def interval(share: float, requests: int = 1000) -> Measurement:
    failures = round(share * requests)
    return Measurement(5.0, requests, requests - failures, failures)


def after(*intervals: tuple[int, float]) -> tuple[SharedFailures, dict[int, float]]:
    """What is known after intervals under configurations, and what the last one blamed on which."""
    shared, blamed = SharedFailures(), {}
    for number, share in intervals:
        blamed = shared.learn(number, interval(share))
    return shared, blamed


def test_what_fails_alone_is_blamed_however_often() -> None:
    shared, blamed = after((A, 0.0), (B, 0.0), (A, 0.3), (A, 0.3), (A, 0.4))
    assert (shared.share, blamed) == (0.0, {A: 0.4})


def test_what_fails_under_a_second_one_in_a_row_too_is_blamed_on_neither() -> None:
    shared, blamed = after((A, 0.0), (B, 0.0), (A, 0.3), (B, 0.2))
    assert (shared.share, blamed) == (0.2, {A: 0.0, B: 0.0})


def test_where_none_of_both_ever_served_each_may_be_to_blame() -> None:
    shared, blamed = after((A, 0.3), (B, 0.2))
    assert (shared.share, blamed) == (0.0, {B: 0.2})


def test_one_that_served_between_tells_that_failures_are_not_shared() -> None:
    shared, blamed = after((A, 0.0), (B, 0.0), (A, 0.3), (B, 0.0), (C, 0.3))
    assert (shared.share, blamed) == (0.0, {C: 0.3})


def test_what_fails_far_more_than_the_other_is_blamed_for_the_rest() -> None:
    shared, blamed = after((A, 0.0), (B, 0.5), (A, 0.1))
    assert shared.share == 0.1
    assert blamed == {B: 0.4, A: 0.0}
    assert shared.learn(A, interval(0.15)) == {A: 0.0}  # clients send more of it
    assert shared.learn(C, interval(0.45)) == {C: 0.45 - 0.15}


def test_it_ends_with_an_interval_in_which_few_fail() -> None:
    shared, blamed = after((A, 0.0), (A, 0.3), (B, 0.3), (B, 0.003))
    assert (shared.share, blamed) == (0.0, {B: 0.003})


def test_a_few_failures_of_few_requests_are_none() -> None:
    shared = SharedFailures()
    assert shared.learn(A, interval(0.0)) == {A: 0.0}
    assert shared.learn(A, interval(0.1, requests=30)) == {A: 0.1}
    assert shared.learn(B, interval(0.3)) == {B: 0.3}
    assert shared.share == 0.0
