"""What the clients of a load have seen so far, in a file that whoever measures the server meanwhile can read.

| bytes | value |
|---|---|
| 0 to 8 | requests answered |
| 8 to 16 | their latencies summed, in nanoseconds |

Both are whole numbers, little-endian. The file is mapped, so that an answer costs its client a microsecond.
A reader may see the first of the two before the second has changed. Then it is off by one request.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "answered.bin"
_FORM = struct.Struct("<qq")


class AnsweredTotals(NamedTuple):
    """Of all requests of a load that were answered."""

    answered: int
    latency_s: float  # summed


class SharedTotals:
    """The file, as the load writes it. OSError where there can be no such file."""

    def __init__(self, path: Path) -> None:
        self._answered, self._latency_ns = 0, 0
        self._path = path
        path.write_bytes(bytes(_FORM.size))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _FORM.size)

    def add(self, latency_s: float) -> None:
        """Counts one more answer."""
        self._answered += 1
        self._latency_ns += round(1e9 * latency_s)
        _FORM.pack_into(self._mapped, 0, self._answered, self._latency_ns)

    def close(self) -> None:
        """Takes the file away: totals of a load that has ended say nothing of what is measured."""
        self._mapped.close()
        self._path.unlink(missing_ok=True)


def read_totals(path: Path) -> AnsweredTotals | None:
    """The totals so far; None where there is no such file, or not a whole one."""
    try:
        answered, latency_ns = _FORM.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return AnsweredTotals(answered, 1e-9 * latency_ns)
