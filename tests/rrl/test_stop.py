from __future__ import annotations

import signal
import sys
from threading import Condition
from types import FrameType

import pytest

from rrl.stop import Stop
from rrl.tuning import Stopped


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_sleep_even_as_it_begins_to_wait(number: signal.Signals) -> None:
    """Where a lock was just taken for it, if any is: a handler that waited for that lock would hang."""

    def interrupt(frame: FrameType, event: str, called: object) -> None:
        takes_a_lock = event == "return" and frame.f_code is Condition.__enter__.__code__
        if takes_a_lock or (event == "c_call" and getattr(called, "__name__", "") == "get"):
            sys.setprofile(None)
            signal.raise_signal(number)

    said: list[str] = []
    stop = Stop(said.append)
    with stop.on_signals():
        sys.setprofile(interrupt)
        with pytest.raises(Stopped):
            stop.sleep(600.0)
        sys.setprofile(None)
        with pytest.raises(Stopped):
            stop.sleep(600.0)
    assert stop.is_set()
    assert said == ["stopping: putting the best configuration known to be safe in force"]


def test_what_is_not_stopped_sleeps_and_goes_on() -> None:
    stop = Stop(print)
    stop.sleep(0.0)
    assert not stop.is_set()
