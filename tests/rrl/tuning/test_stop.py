from __future__ import annotations

import io
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Condition, Event, Thread, get_ident
from types import FrameType
from typing import cast

import pytest

from rrl.tuning.stop import STOPPING, Stop, Stopped


@pytest.fixture(autouse=True)
def hangups() -> Iterator[None]:
    """Heard, also where the tests themselves were started with `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


def test_a_signal_that_another_thread_received_ends_a_sleep() -> None:
    """As the kernel may choose. Nothing wakes the main thread then, as where the signal comes just before."""
    sleeps = Event()

    def receive() -> None:
        sleeps.wait()
        signal.pthread_kill(get_ident(), signal.SIGTERM)

    other = Thread(target=receive)
    other.start()
    stop = Stop(lambda _: None)
    with stop.on_signals():
        sleeps.set()
        with pytest.raises(Stopped):
            stop.sleep(600.0)
    other.join()


@pytest.mark.parametrize(
    ("first", "second"),
    [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT)],
)
def test_a_second_signal_interrupts_at_once(first: signal.Signals, second: signal.Signals) -> None:
    stop = Stop(lambda _: None)
    with stop.on_signals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)


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


LEAVES = """
import sys
from pathlib import Path
from rrl.tuning.stop import Stop
from rrl.tuning.stop import Stopped

stop = Stop(lambda text: print(text, flush=True))
with stop.on_signals():
    print("begun", flush=True)
    try:
        stop.sleep(600.0)
    except Stopped:
        for _ in range(3):
            print("restored what was found", flush=True)
        Path(sys.argv[1]).write_text("left in order")
"""


def test_a_run_whose_terminal_is_closed_still_leaves_its_target_in_order(tmp_path: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        os.execv(sys.executable, [sys.executable, "-c", LEAVES, str(tmp_path / "left")])
    printed = b""
    while b"begun" not in printed:
        printed += os.read(terminal, 1024)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "left").read_text() == "left in order"


UNREAD = """
import sys
from pathlib import Path
from rrl.tuning.stop import Output, Stop
from rrl.tuning.stop import Stopped

console = Output()
stop = Stop(console.print)
console.reader_gone = stop.set
with stop.on_signals():
    console.print("begun")
    sys.stdin.readline()
    console.print("interval 1 of 3")
    try:
        stop.sleep(600.0)
    except Stopped:
        console.print("restored what was found")
        Path(sys.argv[1]).write_text("left in order")
"""


def test_a_run_that_nobody_reads_any_more_ends_and_leaves_its_target_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNREAD, str(tmp_path / "left")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        assert run.stdout.readline() == "begun\n"
        run.stdout.close()
        run.stdin.close()
        assert run.wait() == 0
    assert (tmp_path / "left").read_text() == "left in order"


def test_what_nohup_started_does_not_mind_its_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    stop = Stop(print)
    with stop.on_signals():
        signal.raise_signal(signal.SIGHUP)
    assert not stop.is_set()


def test_what_is_not_stopped_sleeps_and_goes_on() -> None:
    stop = Stop(print)
    stop.sleep(0.0)
    assert not stop.is_set()
