"""Behaviour of the processes of a comparison: Ctrl-C ends them wherever it finds the one who waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from baselines.comparison.workers import Workers

INTERRUPTED_AT = """
import signal, sys, time
from functools import partial
from threading import Condition
from baselines.comparison.workers import Workers

def at(frame, event, argument):
    deaf = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if event == {event!r} and frame.f_code is {code} and not deaf:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)

def ignore(job, answer):
    pass

if __name__ == "__main__":
    with Workers(1) as workers:
        workers.run([partial(time.sleep, 0)], ignore)
        sys.setprofile(at)
        workers.run([partial(time.sleep, 600)] * {jobs}, ignore)
    print("the block was left")
"""


@pytest.mark.parametrize(
    ("event", "code", "jobs"),
    [
        pytest.param("return", "Condition.__enter__.__code__", 3, id="a lock was just taken"),
        pytest.param("call", "Condition.__exit__.__code__", 3, id="a lock is about to be given back"),
        pytest.param("call", "Workers.__exit__.__code__", 0, id="the block is about to be left"),
    ],
)
def test_ctrl_c_ends_the_workers_wherever_it_comes(tmp_path: Path, event: str, code: str, jobs: int) -> None:
    _is_ended(tmp_path, INTERRUPTED_AT.format(event=event, code=code, jobs=jobs))


INTERRUPTED_IN_ANOTHER_THREAD = """
import signal, sys, threading, time
from functools import partial
from baselines.comparison.workers import Workers

def when_main_waits():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code is not Workers._next_ended.__code__:
        time.sleep(0.001)
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

def ignore(job, answer):
    pass

if __name__ == "__main__":
    with Workers(1) as workers:
        threading.Thread(target=when_main_waits).start()
        workers.run([partial(time.sleep, 600)], ignore)
    print("the block was left")
"""


def test_ctrl_c_ends_the_workers_whichever_thread_is_given_it(tmp_path: Path) -> None:
    """As a thread of a library may be, while the main thread is deaf to start the processes."""
    _is_ended(tmp_path, INTERRUPTED_IN_ANOTHER_THREAD)


def test_a_pipe_that_the_executor_has_closed_is_no_error() -> None:
    with Workers(1) as workers:
        workers.run([int], lambda job, answer: None)
        os.close(workers._executor._call_queue._reader.fileno())  # type: ignore[attr-defined]


def _is_ended(tmp_path: Path, program: str) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(program)
    with subprocess.Popen(
        (sys.executable, str(script)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as running:
        try:
            output, error = running.communicate(timeout=120)  # ends with the last of its processes
        finally:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode == -signal.SIGINT, error
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert "the block was left" not in output
