"""Calls that may wait for a client's file system: one at a time, in order, whatever becomes of them."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from serving_adapter.model_store.opening.client_file import ClientFile, OneAtATime
from tests.support.waiting import PATIENCE_S, eventually


def test_calls_are_made_in_order_and_one_that_fails_stops_none():
    calls, made = OneAtATime(), []

    def call(number: int) -> int:
        made.append(number)
        if number % 3 == 0:
            raise OSError(number, "failed")
        return number

    futures = [calls.submit(call, number) for number in range(50)]
    for number, future in enumerate(futures):
        if number % 3 == 0:
            with pytest.raises(OSError, match="failed"):
                future.result(PATIENCE_S)
        else:
            assert future.result(PATIENCE_S) == number
    assert made == list(range(50))


def test_who_gives_up_waiting_for_a_call_does_not_let_the_next_begin():
    calls, begun, gate = OneAtATime(), threading.Event(), threading.Event()

    def waiting() -> None:
        begun.set()
        assert gate.wait(PATIENCE_S)

    async def session():
        first = asyncio.wrap_future(calls.submit(waiting))
        queued = asyncio.wrap_future(calls.submit(str, 1))
        last = calls.submit(gate.is_set)
        await eventually(begun.is_set)
        for given_up in (first, queued):
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
        assert not last.done()
        gate.set()
        assert last.result(PATIENCE_S)

    asyncio.run(session())


def test_one_clients_calls_wait_for_no_others():
    gate = threading.Event()
    stuck = OneAtATime().submit(gate.wait, PATIENCE_S)
    assert OneAtATime().submit(str, 1).result(PATIENCE_S) == "1"
    assert not stuck.done()
    gate.set()
    assert stuck.result(PATIENCE_S)


def test_a_file_that_is_let_go_reads_from_no_other(tmp_path):
    """Its number may name another client's file by then."""
    (tmp_path / "file").write_bytes(b"weights")
    file = ClientFile(os.open(tmp_path / "file", os.O_RDONLY), "label")
    file.look()
    assert (file.reader().read(), file.has_changed()) == (b"weights", False)
    os.close(file.let_go())
    with open(tmp_path / "file", "rb"), pytest.raises(OSError, match="Bad file descriptor"):
        file.reader().read()
    assert file.has_changed()
