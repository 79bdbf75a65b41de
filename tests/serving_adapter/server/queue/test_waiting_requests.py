"""The queue of requests: by priority, and within a level in the order in which they came."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.server.queue.waiting_requests import WaitingRequests
from serving_adapter.server.requests import InputTensor, Request

LEVELS = 3
steps = st.lists(st.one_of(st.integers(0, LEVELS - 1), st.sampled_from(["take", "remove"])), max_size=30)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with closing(asyncio.new_event_loop()) as loop:
        yield loop


def request_of(level: int, number: int, loop: asyncio.AbstractEventLoop) -> Request:
    tensor = InputTensor(b"", (1, 1))
    return Request([tensor], None, loop.create_future(), number, level=level)


@given(steps=steps)
def test_whatever_happens_the_first_levels_go_first_and_each_in_turn(
    steps: list[int | str], loop: asyncio.AbstractEventLoop
) -> None:
    queue, expected = WaitingRequests(LEVELS), list[Request]()
    for number, step in enumerate(steps):
        if isinstance(step, int):
            expected.append(request_of(step, number, loop))
            queue.add(expected[-1])
            expected.sort(key=lambda request: request.level)
        elif step == "take":
            count = len(expected) // 2
            assert queue.take(count) == expected[:count]
            del expected[:count]
        elif expected:
            gone = expected.pop(number % len(expected))
            queue.remove(gone)
            queue.remove(gone)
        assert list(queue) == expected
        assert len(queue) == len(expected)
    assert queue.clear() == expected
    assert not list(queue)
