"""Which workers count as broken."""

from __future__ import annotations

from serving_adapter.server.workers.health import (
    ERRORS_WHILE_NOBODY_ANSWERS,
    ERRORS_WHILE_OTHERS_ANSWER,
    Health,
)


def errors_until_broken(health: Health, answered_by_others_each: int) -> int | None:
    """How many errors in a row a worker may have while others answer so many batches beside each."""
    answered = 0
    for count in range(1, 1000):
        if health.failed(answered):
            return count
        answered += answered_by_others_each
    return None


def healthy() -> Health:
    health = Health()
    health.answered()
    return health


def test_a_worker_that_fails_while_others_answer_is_broken_new_or_not():
    assert errors_until_broken(Health(), 5) == ERRORS_WHILE_OTHERS_ANSWER
    assert errors_until_broken(healthy(), 5) == ERRORS_WHILE_OTHERS_ANSWER


def test_where_nobody_answers_the_batches_may_be_bad_so_it_takes_longer_and_a_new_worker_is_kept():
    assert errors_until_broken(healthy(), 0) == ERRORS_WHILE_NOBODY_ANSWERS
    assert errors_until_broken(Health(), 0) is None


def test_an_answer_ends_the_row():
    health = healthy()
    for _ in range(5):
        for _ in range(ERRORS_WHILE_NOBODY_ANSWERS - 1):
            assert not health.failed(0)
        health.answered()
