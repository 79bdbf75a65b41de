"""Standard streams that fail nobody and hold nobody up, whoever reads a log, or does not."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
from typing import Any

OUTPUT, ERROR = 1, 2
PATIENCE_MS = 20
"""For a reader that is slow; what comes while it still does not read is dropped without waiting."""


def keep_standard_streams(prints_to: int = OUTPUT) -> None:
    """From now on whatever standard output and error cannot take is dropped, and no print raises or waits.

    A process may have been started without them. Its sockets must not get their numbers, since what libraries
    print would go there. `prints_to` is the descriptor that standard output becomes.
    """
    _fill_descriptors()
    with contextlib.suppress(OSError):
        os.dup2(prints_to, OUTPUT)
    sys.stdout, sys.stderr = _stream(OUTPUT), _stream(ERROR)


class _Lasting(io.FileIO):
    """A descriptor whose writes succeed soon, whatever becomes of them."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._patience_ms = PATIENCE_MS

    def write(self, data: Any, /) -> int:
        with memoryview(data) as view:
            # A pipe that is ready takes this much without blocking.
            piece = view[: select.PIPE_BUF]
            with contextlib.suppress(OSError):
                if self._is_ready() and (written := super().write(piece)):
                    return written
            return view.nbytes

    def _is_ready(self) -> bool:
        ready = bool(self._poll.poll(self._patience_ms))
        self._patience_ms = PATIENCE_MS if ready else 0
        return ready


def _stream(descriptor: int) -> io.TextIOWrapper:
    """Line by line, as its processes end without a last flush; what a locale cannot write is escaped."""
    raw = io.BufferedWriter(_Lasting(descriptor))
    return io.TextIOWrapper(raw, encoding=_encoding(), errors="backslashreplace", line_buffering=True)


def _encoding() -> str | None:
    """What the user asked Python for, as by PYTHONIOENCODING."""
    return None if sys.stdout is None else sys.stdout.encoding


def _fill_descriptors() -> None:
    """Lets every standard stream that is closed go nowhere."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
