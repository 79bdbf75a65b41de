"""Trace files as they are published: what their columns say, and in which units.

| what a file has | meaning |
|---|---|
| `requests` (`count`, `invocations`) beside `second`, `minute`, `100ms`, ... | counted by that unit |
| `requests` beside moments | counted by the time between two of them |
| `requests` alone | counted per 10 ms, or as told |
| moments alone, maybe with sizes | each request |

Moments are seconds (`t_s`), another unit that the column's name ends with (`timestamp_ms`), seconds to
nanoseconds since 1970, or dates with times. Sizes are of prompts: `context_tokens`, `input_length` and the
like. Cells are separated by commas, semicolons or tabs, or each line is a JSON object. Other columns are
left out.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import numpy as np

from serving_adapter.load.sizes import MOST_SIZE
from serving_adapter.load.traces import CountTrace, TimestampTrace, Trace

UNITS_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
BINS_S = {
    "ms": 1e-3, "10ms": 0.01, "100ms": 0.1,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0, "day": 86_400.0,
}  # fmt: skip
BIN_ALONE_S = 0.01  # of a file of counts and nothing else
COUNTS = ("requests", "request_count", "num_requests", "count", "counts", "invocations")
MOMENTS = ("t", "time", "timestamp", "datetime", "arrival", "arrival_time", "arrived_at", "start_time")
SIZES = (
    *("context_tokens", "contexttokens", "input_length", "input_tokens", "prompt_tokens"),
    *("request_tokens", "num_prefill_tokens", "size"),
)
IN_MS = ("hash_ids",)
"""A file with such a column has `timestamp` in ms: the traces of Mooncake."""

EPOCHS = ((1e17, "ns"), (1e14, "us"), (1e11, "ms"), (1e8, "s"))
"""A number of at least so much is the time since 1970 in that unit."""

MOST_REQUESTS_PER_BIN = 1_000_000_000

AnyTrace = TypeVar("AnyTrace", CountTrace, TimestampTrace, Trace)


def read_trace(
    path: Path,
    rate_per_s: float | None = None,
    *,
    speed_up: float | None = None,
    offset_s: float = 0.0,
    bin_s: float | None = None,
    time_unit: str | None = None,
) -> Trace:
    """A trace from a file, replayed from `offset_s` (of the trace's own clock) to its end.

    `rate_per_s` is the mean over the part replayed (default: as recorded). `speed_up` quickens the clock
    of a trace of counts, the rate kept; the clock of timestamps is what their rate sets. `bin_s` and
    `time_unit` are what the file does not tell. ValueError, in one sentence, where nothing can be replayed.
    """
    if bin_s is not None and not 0 < bin_s < np.inf:
        raise ValueError(f"the length of a trace's bins must be above 0 s, got {bin_s:g}")
    if time_unit not in (None, *UNITS_S):
        raise ValueError(f"the unit of a trace's moments is one of {', '.join(UNITS_S)}, got {time_unit!r}")
    trace = _as_recorded(path, bin_s, time_unit)
    if not 0 <= offset_s < (trace.duration_s or np.inf):
        raise ValueError(f"{path}: the offset must be within its {trace.duration_s:g} s, got {offset_s:g} s")
    return replayed(path, trace.from_offset(offset_s), rate_per_s, speed_up)


def replayed(path: Path, trace: AnyTrace, rate_per_s: float | None, speed_up: float | None) -> AnyTrace:
    """A trace from a file at a rate, or so many times faster; ValueError where it cannot be replayed."""
    if not _requests(trace) > 1:
        raise ValueError(f"{path} holds fewer than two requests to be sent; nothing can be replayed")
    if isinstance(trace, TimestampTrace) and trace.duration_s == 0:
        raise ValueError(f"{path}: all requests come at the same moment, so that they have no rate to scale")
    if speed_up is not None:
        if isinstance(trace, TimestampTrace) and rate_per_s is not None:
            raise ValueError(f"{path} holds timestamps, whose clock the rate sets: leave the speed-up out")
        if not 0 < speed_up < np.inf:
            raise ValueError(f"the speed-up of a trace must be above 0, got {speed_up:g}")
        trace = trace.sped_up(speed_up)
    if rate_per_s is not None and not 0 < rate_per_s < np.inf:
        raise ValueError(f"the rate of a trace must be above 0, got {rate_per_s:g}")
    return trace if rate_per_s is None else trace.at_rate(rate_per_s)


def _requests(trace: Trace) -> int:
    return int(trace.counts.sum()) if isinstance(trace, CountTrace) else len(trace.moments_s)


def _as_recorded(path: Path, bin_s: float | None, time_unit: str | None) -> Trace:
    """What a file says; ValueError, with the file and the line, where nothing can be replayed."""
    table = _Table.of(path)
    counts, moments = table.find(COUNTS), table.moments()
    if counts is not None:
        return _counts(table, counts, moments, bin_s, time_unit)
    if moments is None:
        raise ValueError(
            f"{path}, line 1: unknown columns {','.join(table.columns)!r}; a trace has one of: "
            f"minute,requests (or second, hour, ...); requests; t_s with or without context_tokens; "
            "timestamp with or without input_length"
        )
    return _moments(table, moments, time_unit)


def _counts(
    table: _Table, column: int, moments: int | None, bin_s: float | None, time_unit: str | None
) -> CountTrace:
    unit = next((i for i, name in enumerate(table.names) if name in BINS_S and i != column), None)
    values = table.numbers([each for each in (unit, column) if each is not None])
    counts = values[:, -1]
    table.refuse(counts != np.floor(counts), "requests must be a whole number", counts)
    most = f"requests must be at most {MOST_REQUESTS_PER_BIN:,}"
    table.refuse(counts > MOST_REQUESTS_PER_BIN, most, counts)
    if unit is not None:
        steps = np.diff(values[:, 0], prepend=values[0, 0] - 1)
        table.refuse(steps != 1, f"each {table.names[unit]} must follow the one before", values[:, 0])
        length_s = BINS_S[table.names[unit]]
    elif moments is not None:
        length_s = _even_step_s(table, _seconds(table, moments, time_unit))
    else:
        length_s = BIN_ALONE_S if bin_s is None else bin_s
    return CountTrace(counts.astype(np.int64), length_s)


def _even_step_s(table: _Table, at_s: np.ndarray) -> float:
    steps_s = np.diff(at_s)
    if not len(steps_s):
        raise ValueError(f"{table.path} has one row of counts, so that it does not tell how long a bin is")
    step_s = float(steps_s[0])
    uneven = np.abs(np.diff(at_s, prepend=at_s[0] - step_s) - step_s) > 0.01 * abs(step_s)
    table.refuse(uneven | (step_s <= 0), f"counts must be {step_s:g} s apart like the others", at_s)
    return step_s


def _moments(table: _Table, column: int, time_unit: str | None) -> TimestampTrace:
    at_s = _seconds(table, column, time_unit)
    table.refuse(np.diff(at_s, prepend=at_s[0]) < 0, f"{table.columns[column]} must not go back", at_s)
    sizes, note = None, ""
    of_sizes = table.find(SIZES)
    if of_sizes is not None:
        told = table.numbers([of_sizes])[:, 0]
        table.refuse(told > MOST_SIZE, f"{table.columns[of_sizes]} must be at most {MOST_SIZE:,}", told)
        fractions = int(np.count_nonzero(told != np.floor(told)))
        if fractions:
            note = f"{fractions} sizes of {table.path} are fractions; they are rounded"
        sizes = np.rint(told).astype(np.int64)
    return TimestampTrace(at_s - at_s[0], sizes, note)


def _seconds(table: _Table, column: int, time_unit: str | None) -> np.ndarray:
    """(rows,) the moments of a column in seconds, from any beginning."""
    name = table.columns[column]
    if not table.is_number(column):
        return table.dates_s(column)
    numbers = table.numbers([column])[:, 0]
    ending = table.names[column].rpartition("_")[2]
    if time_unit is None and ending in UNITS_S:
        time_unit = ending
    if time_unit is None:
        time_unit = next((unit for least, unit in EPOCHS if numbers[0] >= least), None)
    if time_unit is None and table.find(IN_MS) is not None:
        time_unit = "ms"
    if time_unit is None:
        raise ValueError(
            f"{table.path}, line 1: {name!r} does not tell its unit; say it with --time-unit s, ms, us or ns,"
            f" or call the column {name}_s"
        )
    since = numbers[0] if numbers[0] >= EPOCHS[-1][0] else 0.0  # or the nanoseconds would be lost
    seconds: np.ndarray = (numbers - since) * UNITS_S[time_unit]
    return seconds


@dataclass(frozen=True)
class _Table:
    """The cells of a file as texts."""

    path: Path
    columns: tuple[str, ...]  # as the file calls them
    rows: list[list[str]]
    first_line: int  # where the first row stands
    decimal_comma: bool

    @property
    def names(self) -> list[str]:
        """The columns in one way of writing."""
        return [re.sub(r"[^a-z0-9]+", "_", column.lower()).strip("_") for column in self.columns]

    @classmethod
    def of(cls, path: Path) -> _Table:
        lines = _lines(path)
        if lines[0].lstrip().startswith("{"):
            columns, rows = _objects(path, lines)
            return cls(path, columns, rows, first_line=1, decimal_comma=False)
        separator = max(",;\t", key=lines[0].count)
        columns = tuple(name.strip() for name in _cells(lines[0], separator))
        if len(lines) < 2:
            raise ValueError(f"the trace {path} holds no requests: expected a header line and then numbers")
        rows = []
        for number, line in enumerate(lines[1:], start=2):
            cells = _cells(line, separator)
            if len(cells) != len(columns):
                raise ValueError(
                    f"{path}, line {number}: expected {len(columns)} values, got {line.strip()!r}"
                )
            rows.append(cells)
        return cls(path, columns, rows, first_line=2, decimal_comma=separator == ";")

    def find(self, names: Sequence[str]) -> int | None:
        """The column with one of these names."""
        return next((i for i, name in enumerate(self.names) if name in names), None)

    def moments(self) -> int | None:
        """The column of moments, whose name may end with its unit."""
        endings = "|".join(UNITS_S)
        for i, name in enumerate(self.names):
            if re.sub(rf"_({endings})$", "", name) in MOMENTS:
                return i
        return None

    def is_number(self, column: int) -> bool:
        try:
            float(self._plain(self.rows[0][column]))
        except ValueError:
            return False
        return True

    def numbers(self, columns: Sequence[int]) -> np.ndarray:
        """(rows, columns) numbers, all finite and at least 0."""
        names = ",".join(self.columns[column] for column in columns)
        table = np.empty((len(self.rows), len(columns)))
        for number, row in enumerate(self.rows):
            try:
                table[number] = [float(self._plain(row[column])) for column in columns]
            except ValueError:
                got = ",".join(row).strip()
                raise ValueError(
                    f"{self.path}, line {number + self.first_line}: expected numbers for {names}, got {got!r}"
                ) from None
        wrong = ~np.isfinite(table) | (table < 0)
        which = int(np.argmax(wrong.any(axis=0)))
        rule = f"{self.columns[columns[which]]} must be a number of at least 0"
        self.refuse(wrong[:, which], rule, table[:, which])
        return table

    def dates_s(self, column: int) -> np.ndarray:
        """(rows,) dates with times, in seconds after the first."""
        dates: list[datetime] = []
        for number, row in enumerate(self.rows):
            try:
                dates.append(datetime.fromisoformat(row[column].strip()))
                (dates[-1] - dates[0]).total_seconds()
            except (ValueError, TypeError):
                raise ValueError(
                    f"{self.path}, line {number + self.first_line}: {self.columns[column]} must be a number, "
                    f"or a date and time like 2023-11-16 18:15:46.68, got {row[column]!r}"
                ) from None
        return np.array([(date - dates[0]).total_seconds() for date in dates])

    def refuse(self, wrong: np.ndarray, rule: str, values: np.ndarray) -> None:
        """ValueError for the first row that breaks a rule."""
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"{self.path}, line {row + self.first_line}: {rule}, got {values[row]:.12g}")

    def _plain(self, cell: str) -> str:
        return cell.replace(",", ".") if self.decimal_comma else cell


def _lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ValueError(f"cannot read the trace {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the trace {path} is not a text file of comma-separated numbers") from error
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    return lines


def _cells(line: str, separator: str) -> list[str]:
    if '"' not in line:
        return line.rstrip("\r").split(separator)
    csv.field_size_limit(max(csv.field_size_limit(), len(line)))  # of a prompt, which nothing here needs
    return next(csv.reader([line], delimiter=separator), [""])


def _objects(path: Path, lines: list[str]) -> tuple[tuple[str, ...], list[list[str]]]:
    """The columns of lines that are JSON objects, and their values as texts."""
    columns: tuple[str, ...] = ()
    rows: list[list[str]] = []
    for number, line in enumerate(lines, start=1):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{path}, line {number}: expected a JSON object, got {line.strip()[:80]!r}")
        columns = columns or tuple(found)
        rows.append([_text(found.get(column, "")) for column in columns])
    return columns, rows


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
