"""Arrivals replayed from a trace file, scaled to a rate.

| columns of the file | meaning |
|---|---|
| `minute,requests` | requests counted per minute |
| `requests` | requests counted per 10 ms |
| `t_s`, maybe `context_tokens`, `generated_tokens` | moment of each request in seconds, with its sizes |

Counts are scaled by thinning and duplicating single requests. At 2.3 copies each request comes twice, and
with probability 0.3 a third time. Below 1 this is binomial thinning, which keeps a Poisson process one.
Within their bin requests are spread evenly at random. Timestamps are scaled by their clock: every request and
every gap stays, only faster or slower.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BIN_S = {("minute", "requests"): 60.0, ("requests",): 0.01}  # the files of counts, and how long a bin is
TIMESTAMP_COLUMNS = ("t_s", "context_tokens", "generated_tokens")
ARRIVALS_PER_CHUNK = 4096
MOST_REQUESTS_PER_BIN = 1_000_000_000
MOST_TOKENS = 1_000_000_000  # of a request


@dataclass(frozen=True, eq=False)
class CountTrace:
    """Requests counted per bin."""

    counts: np.ndarray  # (bins,) int
    bin_s: float
    copies: float = 1.0  # replayed requests for each one of the trace

    @property
    def mean_rate_per_s(self) -> float:
        return float(self.counts.mean()) * self.copies / self.bin_s

    @property
    def duration_s(self) -> float:
        return len(self.counts) * self.bin_s

    def at_rate(self, rate_per_s: float) -> CountTrace:
        return dataclasses.replace(self, copies=self.copies * rate_per_s / self.mean_rate_per_s)

    def sped_up(self, factor: float) -> CountTrace:
        return dataclasses.replace(self, bin_s=self.bin_s / factor)

    def from_offset(self, offset_s: float) -> CountTrace:
        return dataclasses.replace(self, counts=self.counts[int(offset_s / self.bin_s) :])

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        per_bin = self.mean_rate_per_s * self.bin_s
        bins = max(1, int(ARRIVALS_PER_CHUNK / per_bin))
        whole, part = divmod(self.copies, 1.0)
        for first in range(0, len(self.counts), bins):
            counts = self.counts[first : first + bins]
            arrivals = int(whole) * counts + rng.binomial(counts, part)
            bin_of_arrival = np.repeat(np.arange(first, first + len(counts)), arrivals)
            if bin_of_arrival.size:
                yield np.sort(bin_of_arrival + rng.random(bin_of_arrival.size)) * self.bin_s


@dataclass(frozen=True, eq=False)
class TimestampTrace:
    """The moment of each request, and its size where the trace tells."""

    moments_s: np.ndarray  # (requests,) ascending from 0
    sizes: np.ndarray | None = None  # (requests,) int

    @property
    def mean_rate_per_s(self) -> float:
        return (len(self.moments_s) - 1) / self.duration_s

    @property
    def duration_s(self) -> float:
        return float(self.moments_s[-1])

    def at_rate(self, rate_per_s: float) -> TimestampTrace:
        return self.sped_up(rate_per_s / self.mean_rate_per_s)

    def sped_up(self, factor: float) -> TimestampTrace:
        return dataclasses.replace(self, moments_s=self.moments_s / factor)

    def from_offset(self, offset_s: float) -> TimestampTrace:
        first = int(np.searchsorted(self.moments_s, offset_s))
        sizes = None if self.sizes is None else self.sizes[first:]
        moments_s = self.moments_s[first:]
        return dataclasses.replace(self, moments_s=moments_s - moments_s[:1], sizes=sizes)

    def times_s(self, rng: np.random.Generator) -> Iterator[np.ndarray]:
        for first in range(0, len(self.moments_s), ARRIVALS_PER_CHUNK):
            yield self.moments_s[first : first + ARRIVALS_PER_CHUNK]


Trace = CountTrace | TimestampTrace


def read_trace(
    path: Path, rate_per_s: float | None = None, *, speed_up: float | None = None, offset_s: float = 0.0
) -> Trace:
    """A trace from a file, replayed from `offset_s` (of the trace's own clock) to its end.

    `rate_per_s` is the mean over the part replayed (default: as recorded). `speed_up` quickens the clock
    of a trace of counts, the rate kept; the clock of timestamps is what their rate sets.
    """
    columns, table = _read_table(path)
    trace: Trace
    if columns in BIN_S:
        trace = _counts(path, columns, table)
    elif columns == TIMESTAMP_COLUMNS[: len(columns)]:
        trace = _timestamps(path, columns, table)
    else:
        known = "; ".join(",".join(known) for known in (*BIN_S, TIMESTAMP_COLUMNS, TIMESTAMP_COLUMNS[:1]))
        raise ValueError(
            f"{path}, line 1: unknown columns {','.join(columns)!r}; a trace has one of: {known}"
        )
    if not 0 <= offset_s < (trace.duration_s or np.inf):
        raise ValueError(f"{path}: the offset must be within its {trace.duration_s:g} s, got {offset_s:g} s")
    trace = trace.from_offset(offset_s)
    if not _requests(trace) > 1:
        raise ValueError(
            f"{path} holds fewer than two requests after {offset_s:g} s; nothing can be replayed"
        )
    if isinstance(trace, TimestampTrace) and trace.duration_s == 0:
        raise ValueError(f"{path}: all requests come at the same moment, so that they have no rate to scale")
    if speed_up is not None:
        if isinstance(trace, TimestampTrace) and rate_per_s is not None:
            raise ValueError(f"{path} holds timestamps, whose clock the rate sets: leave the speed-up out")
        if not 0 < speed_up < np.inf:
            raise ValueError(f"the speed-up of a trace must be above 0, got {speed_up:g}")
        trace = trace.sped_up(speed_up)
    return trace if rate_per_s is None else trace.at_rate(rate_per_s)


def _requests(trace: Trace) -> int:
    return int(trace.counts.sum()) if isinstance(trace, CountTrace) else len(trace.moments_s)


def _counts(path: Path, columns: tuple[str, ...], table: np.ndarray) -> CountTrace:
    counts = table[:, -1]
    _refuse(path, counts != np.floor(counts), "requests must be a whole number", counts)
    _refuse(
        path, counts > MOST_REQUESTS_PER_BIN, f"requests must be at most {MOST_REQUESTS_PER_BIN:,}", counts
    )
    if columns[0] == "minute":
        gaps = np.diff(table[:, 0], prepend=table[0, 0] - 1)
        _refuse(path, gaps != 1, "each minute must follow the one before", table[:, 0])
    return CountTrace(counts.astype(np.int64), BIN_S[columns])


def _timestamps(path: Path, columns: tuple[str, ...], table: np.ndarray) -> TimestampTrace:
    moments_s = table[:, 0]
    _refuse(path, np.diff(moments_s, prepend=0.0) < 0, "t_s must not go back", moments_s)
    if len(columns) > 1:
        _refuse(path, table[:, 1] > MOST_TOKENS, f"{columns[1]} must be at most {MOST_TOKENS:,}", table[:, 1])
    sizes = table[:, 1].astype(np.int64) if len(columns) > 1 else None
    return TimestampTrace(moments_s - moments_s[0], sizes)


def _refuse(path: Path, wrong: np.ndarray, rule: str, values: np.ndarray) -> None:
    """ValueError for the first row that breaks a rule."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"{path}, line {row + 2}: {rule}, got {values[row]:.12g}")


def _read_table(path: Path) -> tuple[tuple[str, ...], np.ndarray]:
    """The header and the rows of numbers, all of them finite and at least 0."""
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().split("\n")
    except OSError as error:
        raise ValueError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the trace {path} is not a text file of comma-separated numbers") from error
    columns = tuple(name.strip() for name in lines[0].split(","))
    if len(lines) < 2:
        raise ValueError(f"the trace {path} holds no requests: expected a header line and then numbers")
    rows = [_row(path, number, line, columns) for number, line in enumerate(lines[1:], start=2)]
    table = np.array(rows)
    wrong = ~np.isfinite(table) | (table < 0)
    column = int(np.argmax(wrong.any(axis=0)))
    _refuse(path, wrong[:, column], f"{columns[column]} must be a number of at least 0", table[:, column])
    return columns, table


def _row(path: Path, number: int, line: str, columns: tuple[str, ...]) -> list[float]:
    cells = line.split(",")
    if len(cells) != len(columns):
        raise ValueError(f"{path}, line {number}: expected {len(columns)} values, got {line.strip()!r}")
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        raise ValueError(
            f"{path}, line {number}: expected numbers for {','.join(columns)}, got {line.strip()!r}"
        ) from None
