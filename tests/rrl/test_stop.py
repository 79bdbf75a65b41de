from __future__ import annotations

import io
import signal
import sys
from threading import Condition
from types import FrameType
from typing import cast

import pytest

from rrl.stop import STOPPING, Stop
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
    assert said == [STOPPING]


def test_a_signal_while_the_run_prints_is_told_of_after_what_is_printed() -> None:
    class Interrupted(io.RawIOBase):
        """A terminal that a person stops the run at within its first write."""

        printed = b""

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            first, self.printed = not self.printed, self.printed + bytes(cast(bytes, data))
            if first:
                signal.raise_signal(signal.SIGINT)
            return len(cast(bytes, data))

    raw = Interrupted()
    terminal = io.TextIOWrapper(io.BufferedWriter(raw))
    stop = Stop(lambda text: print(text, file=terminal, flush=True))
    with stop.on_signals():
        print("interval 1 of 3", file=terminal, flush=True)
    assert stop.is_set()
    assert raw.printed.decode().splitlines() == ["interval 1 of 3", STOPPING]


def test_what_is_not_stopped_sleeps_and_goes_on() -> None:
    stop = Stop(print)
    stop.sleep(0.0)
    assert not stop.is_set()
