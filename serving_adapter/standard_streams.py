"""Standard streams that fail nobody: a log that is full, or has no reader, is no reason to stop serving."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any

OUTPUT, ERROR = 1, 2


def keep_standard_streams(prints_to: int = OUTPUT) -> None:
    """From now on whatever standard output and error cannot take is dropped, and no print raises.

    A process may have been started without them. Its sockets must not get their numbers, since what libraries
    print would go there. `prints_to` is the descriptor that standard output becomes.
    """
    _fill_descriptors()
    with contextlib.suppress(OSError):
        os.dup2(prints_to, OUTPUT)
    sys.stdout, sys.stderr = _stream(OUTPUT), _stream(ERROR)


class _Lasting(io.FileIO):
    """A descriptor whose writes succeed, whatever becomes of them."""

    def write(self, data: Any, /) -> int:
        with contextlib.suppress(OSError):
            written = super().write(data)
            if written:
                return written
        return memoryview(data).nbytes


def _stream(descriptor: int) -> io.TextIOWrapper:
    """Line by line, as its processes end without a last flush; what a locale cannot write is escaped."""
    raw = io.BufferedWriter(_Lasting(descriptor, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding=_encoding(), errors="backslashreplace", line_buffering=True)


def _encoding() -> str | None:
    """What the user asked Python for, as by PYTHONIOENCODING."""
    return None if sys.stdout is None else sys.stdout.encoding


def _fill_descriptors() -> None:
    """Lets every standard stream that is closed go nowhere."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= ERROR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
