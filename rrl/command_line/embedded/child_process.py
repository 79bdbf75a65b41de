"""A process that a run needs beside itself: it writes a log, ends with the run, and can be started again.

It has a session of its own, so that Ctrl-C reaches the tuner alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from serving_adapter import own_process

END_TIMEOUT_S = 40.0
FIRST_WAIT_S, MAX_WAIT_S = 1.0, 30.0  # from one start to the next
STEADY_S = 60.0  # One that lived for so long is worth a start at once.


class ChildProcess:
    """A module of this project as a process; `name` is what a person calls it."""

    def __init__(
        self, name: str, module: str, log: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name, self.log = name, log
        self.starts = 0
        self._module, self._clock = module, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s, self._wait_s = 0.0, FIRST_WAIT_S

    def start(self, arguments: Sequence[str]) -> None:
        """Starts it; each start soon after the one before has the next one wait longer."""
        now_s = self._clock()
        if self.starts:
            is_steady = now_s - self._started_s > STEADY_S
            self._wait_s = FIRST_WAIT_S if is_steady else min(MAX_WAIT_S, 2 * self._wait_s)
        self.starts, self._started_s = self.starts + 1, now_s
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(
                own_process.command_for_child(self._module, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"OMP_WAIT_POLICY": "PASSIVE"} | dict(os.environ),
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def status(self) -> int | None:
        """With which it has ended, less than 0 for a signal; None while it runs, and before and after."""
        return None if self._process is None else self._process.poll()

    @property
    def wait_left_s(self) -> float:
        """How long it is until it may be started again."""
        return max(0.0, self._started_s + self._wait_s - self._clock())

    def how_it_ended(self) -> str:
        """Says so of one that has a status."""
        status = self.status or 0
        cause = f"status {status}" if status >= 0 else f"signal {-status}"
        return f"the embedded {self.name} has ended ({cause}; see {self.log})"

    def last_line(self) -> str:
        """The last that it said."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def kill(self) -> None:
        """Ends it at once, as one that has died."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Ends it in order, or at once where it does not, or where Ctrl-C says that this takes too long."""
        if self.status is None and self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                self.kill()
        self._process = None
