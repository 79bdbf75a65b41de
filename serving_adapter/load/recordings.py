"""Requests as `rrl-serve --record FILE.jsonl` wrote them: a JSON object a line.

| key | what |
|---|---|
| `arrival_s` | when the request came, in seconds after the first |
| `inputs` | by name, each with its `shape`, batch dimension included, and `raw`, its bytes in base64 |
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import numpy as np

from serving_adapter.json_text import parsed
from serving_adapter.load.trace_files import replayed
from serving_adapter.load.traces import TimestampTrace

RECORDED = "recorded"  # the arrivals that are told from a recording
ENDING = ".jsonl"
MOST_S = 1e9  # of a recording
EXPECTED = 'expected {"arrival_s": ..., "inputs": {...}} as rrl-serve --record writes it'


class RecordedTensor(NamedTuple):
    """An input as it came."""

    shape: list[int]  # batch dimension included
    data: bytes


class RecordedRequest(NamedTuple):
    """One line."""

    where: str  # file and line, for sentences
    arrival_s: float
    inputs: Mapping[str, RecordedTensor]


def read_recording(path: Path) -> Iterator[RecordedRequest]:
    """The requests in the order in which they came; ValueError, with the line, for what is no recording."""
    latest_s = 0.0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                where = f"{path}, line {number}"
                request = _request(where, line)
                if request.arrival_s < latest_s:
                    raise ValueError(f"{where}: arrival_s must not go back, got {request.arrival_s:g}")
                latest_s = request.arrival_s
                yield request
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None


def recorded_arrivals(
    path: Path | None, rate_per_s: float | None = None, speed_up: float | None = None
) -> TimestampTrace:
    """When the requests of a recording came, at a rate or so many times faster if asked.

    ValueError, in one sentence, where it cannot be told.
    """
    if path is None or path.suffix != ENDING:
        raise ValueError(
            f"arrivals {RECORDED!r} are those of a recording: give its FILE{ENDING} as --input-data "
            "(rrl-serve --record writes one)"
        )
    if rate_per_s is not None and speed_up is not None:
        raise ValueError("a recording is scaled by its rate or by a speed-up: leave one of them out")
    moments_s = np.array([request.arrival_s for request in read_recording(path)])
    return replayed(path, TimestampTrace(moments_s - moments_s[:1]), rate_per_s, speed_up)


def is_shape(shape: Any) -> TypeGuard[list[int]]:
    """Whether what a document says is the shape of a tensor."""
    return isinstance(shape, list) and all(type(size) is int and size >= 1 for size in shape)


def _request(where: str, line: bytes) -> RecordedRequest:
    try:
        found = parsed(line)
    except ValueError:
        found = None
    match found:
        case {"arrival_s": int() | float() as arrival_s, "inputs": dict() as inputs}:
            if not isinstance(arrival_s, bool) and 0 <= arrival_s < MOST_S:
                tensors = {name: _tensor(where, name, given) for name, given in inputs.items()}
                return RecordedRequest(where, float(arrival_s), tensors)
    raise ValueError(f"{where}: {EXPECTED}, got {line[:80].decode(errors='replace').strip()!r}")


def _tensor(where: str, name: str, given: Any) -> RecordedTensor:
    shape = given.get("shape") if isinstance(given, dict) else None
    if not is_shape(shape):
        raise ValueError(f"{where}, input {name!r}: its shape must be a list of whole numbers from 1")
    try:
        return RecordedTensor(shape, base64.b64decode(given.get("raw"), validate=True))
    except (binascii.Error, TypeError, ValueError):
        raise ValueError(f"{where}, input {name!r}: its 'raw' is no base64") from None
