"""Standard streams that fail nobody and hold nobody up, whoever reads a log, or does not."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import select
import sys
from collections.abc import Iterable
from typing import Any

OUTPUT, ERROR = 1, 2
PATIENCE_MS = 20
"""For a reader that is slow; what comes while it still does not read is dropped without waiting."""


def keep_standard_streams(prints_to: int = OUTPUT) -> None:
    """From now on whatever standard output and error cannot take is dropped, and no print raises or waits.

    A process may have been started without them. Its sockets must not get their numbers, since what libraries
    print would go there. `prints_to` is the descriptor that standard output becomes.
    """
    open_closed_streams()
    with contextlib.suppress(OSError):
        os.dup2(prints_to, OUTPUT)
    sys.stdout, sys.stderr = _stream(OUTPUT), _stream(ERROR)


def open_closed_streams() -> None:
    """Has standard streams that were closed (`>&-`) lead nowhere: no file or socket takes their number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= ERROR:
        os.set_inheritable(descriptor, True)  # Our children would have the same trouble.
    os.close(descriptor)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115


def log_to_standard_error(anew: bool = False) -> None:
    """From now on what is logged goes to standard error as it is now; `anew`: and nowhere else."""
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stderr, force=anew)


def say(text: str) -> None:
    """Prints a line. Once nobody reads it any more, it and all that follows go nowhere."""
    try:
        print(text, flush=True)
    except OSError:
        go_nowhere([sys.stdout.fileno()])


def go_nowhere(descriptors: Iterable[int]) -> None:
    """What is written to these from now on is dropped."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


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
    encoding = sys.stdout.encoding  # what the user asked Python for, as by PYTHONIOENCODING
    return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", line_buffering=True)
