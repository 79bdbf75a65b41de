"""When requests came, as a server of ours tells it: one call beside the protocol's, of two packed messages.

| message | little-endian |
|---|---|
| question | uint64: how many arrivals the reader knows of; then the model's name in UTF-8 |
| answer | uint64: how many there were so far; uint32 for each: µs since it came; uint16 for each: its rows |

An answer tells the arrivals that the reader does not know of, the oldest first. Where the server remembers
fewer, it tells the newest of them. As it tells ages, both sides need no clock in common.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

EXTENSION = "arrivals"  # in the server's metadata
SERVICE, CALL = "rrl.RecentArrivals", "Since"
METHOD = f"/{SERVICE}/{CALL}"
MAX_REMEMBERED = 65_536  # arrivals, by either side: five minutes at 200 a second, in 640 kB
LONGEST_AGE_US = 2**32 - 1  # 71 minutes; older arrivals are told as so old

_COUNT = struct.Struct("<Q")
_BYTES_EACH = 4 + 2


class Question(NamedTuple):
    model: str
    known: int  # arrivals


class Told(NamedTuple):
    """What an answer holds."""

    total: int  # arrivals since the server's start
    ages_us: np.ndarray  # (arrivals,) uint32, the oldest first
    rows: np.ndarray  # (arrivals,) uint16


def pack_question(question: Question) -> bytes:
    return _COUNT.pack(question.known) + question.model.encode()


def unpack_question(data: bytes) -> Question:
    """ValueError if it is none."""
    return Question(data[_COUNT.size :].decode(), _count(data))


def pack_answer(told: Told) -> bytes:
    ages_us, rows = told.ages_us.astype("<u4"), told.rows.astype("<u2")
    return b"".join((_COUNT.pack(told.total), ages_us.tobytes(), rows.tobytes()))


def unpack_answer(data: bytes) -> Told:
    """ValueError if it is none."""
    total = _count(data)
    number, rest = divmod(len(data) - _COUNT.size, _BYTES_EACH)
    if rest:
        raise ValueError(f"an answer about arrivals has whole entries of {_BYTES_EACH} bytes")
    ages_us = np.frombuffer(data, "<u4", number, _COUNT.size)
    return Told(total, ages_us, np.frombuffer(data, "<u2", number, _COUNT.size + 4 * number))


def _count(data: bytes) -> int:
    if len(data) < _COUNT.size:
        raise ValueError(f"a message about arrivals begins with a count of {_COUNT.size} bytes")
    return int(_COUNT.unpack_from(data)[0])
