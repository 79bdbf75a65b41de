"""However many connections leave their answers unread, these take a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from serving_adapter.server.protocol.unread_answers import COPIES, UnreadAnswers
from serving_adapter.server.requests import Overloaded

ANSWER_BYTES = 1 << 20
MOST = 4  # answers


class Call:
    """The context of a call, which is over when its callbacks have run."""

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self._callbacks: list[Callable[[object], None]] = []

    def peer(self) -> str:
        return self._peer

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Answering:
    """Answers calls for which there is room."""

    def __init__(self) -> None:
        self._unread = UnreadAnswers(MOST * COPIES * ANSWER_BYTES)

    def holds(self, peer: str, answers: int = 1) -> Call | None:
        call = Call(peer)
        try:
            self._unread.hold(call, answers * ANSWER_BYTES)
        except Overloaded:
            return None
        return call


@pytest.fixture
def answering() -> Answering:
    return Answering()


def test_many_connections_hold_no_more_than_twice_the_bytes(answering):
    held = [answering.holds(f"connection {number}") for number in range(10 * MOST)]
    assert [call is not None for call in held] == [True] * 2 * MOST + [False] * 8 * MOST
    held[0].end()
    assert answering.holds("one more")


def test_one_connection_holds_its_share_and_leaves_others_theirs(answering):
    held = [answering.holds("greedy") for _ in range(2 * MOST)]
    assert [call is not None for call in held] == [True] * MOST + [False] * MOST
    assert answering.holds("modest")
    for call in held[:MOST]:
        call.end()
    assert answering.holds("greedy")


def test_an_answer_larger_than_all_the_room_is_given_alone(answering):
    call = answering.holds("only", 3 * MOST)
    assert not answering.holds("other")
    call.end()
    assert answering.holds("other")
