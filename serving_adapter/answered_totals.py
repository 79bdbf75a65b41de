"""What the clients of a load have seen so far, in a file that whoever measures the server meanwhile can read.

| number | value |
|---|---|
| the first | latencies of the requests answered, summed, in nanoseconds |
| each further one | requests answered, by bucket of latency (`latency_histogram`) |

All are whole numbers of 8 bytes. The file is mapped, so that an answer costs its client a microsecond.
A reader may see the sum before the bucket has changed. Then it is off by one request.
"""

from __future__ import annotations

import mmap
from array import array
from itertools import accumulate
from math import inf
from pathlib import Path
from typing import Final

from serving_adapter.latency_histogram import BUCKET_BOUNDS_S, BUCKETS, CumulativeHistogram, bucket_of

FILE_NAME = "answered.bin"
_TYPE: Final = "q"  # 8 bytes in the order of this machine: no other one reads them
_BYTES = 8 * (1 + BUCKETS)


class SharedTotals:
    """The file, as the load writes it. OSError where there can be no such file."""

    def __init__(self, path: Path) -> None:
        self._latency_ns = 0
        self._path = path
        path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._mapped = mmap.mmap(file.fileno(), _BYTES)
        self._numbers = memoryview(self._mapped).cast(_TYPE)

    def add(self, latency_s: float) -> None:
        """Counts one more answer."""
        self._latency_ns += round(1e9 * latency_s)
        self._numbers[0] = self._latency_ns
        self._numbers[1 + bucket_of(latency_s)] += 1

    def close(self) -> None:
        """Takes the file away: totals of a load that has ended say nothing of what is measured."""
        self._numbers.release()
        self._mapped.close()
        self._path.unlink(missing_ok=True)


def read_totals(path: Path) -> CumulativeHistogram | None:
    """The latencies so far; None where there is no such file, or not a whole one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return _histogram(array(_TYPE, content)) if len(content) == _BYTES else None


def _histogram(numbers: array[int]) -> CumulativeHistogram:
    return CumulativeHistogram((*BUCKET_BOUNDS_S, inf), tuple(accumulate(numbers[1:])), 1e-9 * numbers[0])


NO_ANSWERS = _histogram(array(_TYPE, bytes(_BYTES)))
