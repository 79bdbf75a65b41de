"""The arrivals that a server tells, from the ring that remembers them to the reader's log."""

from __future__ import annotations

import sys
from itertools import count

import grpc
import numpy as np
import pytest

from serving_adapter import recent_arrivals
from serving_adapter.recent_arrivals import METHOD, Question, Told
from serving_adapter.server.statistics.arrival_ring import ArrivalRing
from serving_adapter.target.open_inference.arrival_log import ArrivalLog

MS = 1_000_000


def told(total: int, ages_us: list[int], rows: list[int] | None = None) -> Told:
    return Told(total, np.array(ages_us, np.uint32), np.array(rows or [1] * len(ages_us), np.uint16))


def same(one: Told, other: Told) -> bool:
    return one.total == other.total and all(map(np.array_equal, one[1:], other[1:]))


def test_a_ring_tells_what_its_reader_does_not_know() -> None:
    ring = ArrivalRing(8)
    for k in range(5):
        ring.record(k * MS, k + 1)
    assert same(ring.since(0, 10 * MS), told(5, [10_000, 9_000, 8_000, 7_000, 6_000], [1, 2, 3, 4, 5]))
    assert same(ring.since(3, 10 * MS), told(5, [7_000, 6_000], [4, 5]))
    assert same(ring.since(5, 10 * MS), told(5, []))
    assert len(ring.since(9, 10 * MS).rows) == 5  # its reader knew the server before it started again


def test_a_full_ring_tells_the_newest_and_grows_no_more() -> None:
    ring = ArrivalRing(8)
    bytes_at_first = sum(sys.getsizeof(v) for v in vars(ring).values())
    for k in range(1000):
        ring.record(k * MS, 1 + k % 7)
    assert sum(sys.getsizeof(v) for v in vars(ring).values()) <= bytes_at_first + 16
    newest = ring.since(0, 1000 * MS)
    assert newest.ages_us.tolist() == [8_000, 7_000, 6_000, 5_000, 4_000, 3_000, 2_000, 1_000]
    assert newest.rows.tolist() == [1 + k % 7 for k in range(992, 1000)]
    assert ring.since(998, 1000 * MS).ages_us.tolist() == [2_000, 1_000]


def test_an_arrival_of_long_ago_has_the_longest_age() -> None:
    ring = ArrivalRing(8)
    ring.record(0, 1)
    assert ring.since(0, 10**16).ages_us.tolist() == [recent_arrivals.LONGEST_AGE_US]


def test_messages_are_read_as_they_were_written() -> None:
    question = Question("a model", 2**40)
    assert recent_arrivals.unpack_question(recent_arrivals.pack_question(question)) == question
    answer = told(70_000, [2**32 - 1, 5, 0], [1, 1024, 3])
    assert same(recent_arrivals.unpack_answer(recent_arrivals.pack_answer(answer)), answer)
    assert len(recent_arrivals.pack_answer(answer)) == 8 + 3 * 6
    for unpack in (recent_arrivals.unpack_question, recent_arrivals.unpack_answer):
        with pytest.raises(ValueError, match="begins with a count of 8 bytes"):
            unpack(b"1234")
    with pytest.raises(ValueError, match="whole entries of 6 bytes"):
        recent_arrivals.unpack_answer(bytes(8 + 5))


def log_of(*answers: Told, max_kept: int = 100) -> tuple[ArrivalLog, list[int]]:
    """A log that is given these answers, a second apart, and what it asked for."""
    seconds, given, asked = count(100.0, 0.5), iter(answers), list[int]()

    def ask(known: int) -> Told:
        asked.append(known)
        return next(given)

    return ArrivalLog(ask, clock=lambda: next(seconds), max_kept=max_kept), asked


def test_a_log_puts_arrivals_on_its_own_clock_and_keeps_them() -> None:
    log, asked = log_of(told(2, [250_000, 0], [4, 1]), told(3, [125_000]), told(3, []))
    assert log.read().at_s.tolist() == [100.0, 100.25]  # asked at 100.0, answered at 100.5
    log.read()
    seen = log.read()
    assert asked == [0, 2, 3]
    assert seen.at_s.tolist() == [100.0, 100.25, 101.125]
    assert seen.rows.tolist() == [4, 1, 1]
    assert seen.complete_since_s == float("-inf")


def test_arrivals_stay_in_order_though_two_calls_take_unlike_times() -> None:
    log, _ = log_of(told(1, [0]), told(2, [1_500_000]))
    log.read()
    assert log.read().at_s.tolist() == [100.25, 100.25]


def test_a_log_says_since_when_nothing_is_missing() -> None:
    log, _ = log_of(told(2, [250_000, 0]), told(50, [100_000, 50_000]), told(50, []))
    log.read()
    seen = log.read()
    assert seen.at_s.tolist() == pytest.approx([101.15, 101.2])
    assert seen.complete_since_s == log.read().complete_since_s == seen.at_s[0]


def test_a_log_begins_anew_with_a_server_that_started_again() -> None:
    log, asked = log_of(told(9, [1_000] * 9), told(1, [50_000]), told(2, [1_000]))
    log.read()
    assert log.read().at_s.tolist() == pytest.approx([101.2])
    assert len(log.read().at_s) == 2
    assert asked == [0, 9, 1]


def test_a_log_keeps_the_newest() -> None:
    log, _ = log_of(told(2, [250_000, 0]), told(4, [200_000, 100_000]), max_kept=3)
    log.read()
    seen = log.read()
    assert seen.at_s.tolist() == pytest.approx([100.25, 101.05, 101.15])
    assert seen.complete_since_s == seen.at_s[0]


def test_a_server_refuses_a_question_that_it_cannot_answer(start_server) -> None:
    server = start_server("--model", "noop")
    with grpc.insecure_channel(server.address) as channel:
        ask = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as unknown:
            ask(recent_arrivals.pack_question(Question("none", 0)))
        with pytest.raises(grpc.RpcError) as malformed:
            ask(b"123")
        with pytest.raises(grpc.RpcError) as not_text:
            ask(bytes(8) + b"\xff")
        assert ask(recent_arrivals.pack_question(Question("noop", 0))) == bytes(8)
    assert unknown.value.code() == grpc.StatusCode.NOT_FOUND
    assert unknown.value.details() == "unknown model 'none'"
    assert malformed.value.code() == not_text.value.code() == grpc.StatusCode.INVALID_ARGUMENT
