"""The table of decisions: one row for each decision of every run, as an array and as `decisions.csv`."""

from __future__ import annotations

import codecs
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from serving_adapter.whole_files import written_whole

FILE_NAME = "decisions.csv"
BEFORE_KNOBS = ("agent", "machine", "seed", "decision", "arrival_rate_per_s")
AFTER_KNOBS = (
    "cost_ms",  # measured; like the next two in threads where the objective is least-resources
    "expected_ms",  # cost of the configuration in force, by long simulation
    "oracle_ms",  # the lowest expected cost of any configuration at this load
    "slo_violated",
    "decide_ms",  # CPU time of act and update together
    "mean_latency_ms",  # measured
    "p95_ms",  # measured
    "expected_p95_ms",  # by long simulation
    "best_p95_ms",  # the lowest of any configuration at this load
    "cpu_utilisation",  # measured: thread-seconds in service by core-seconds, at most 1
)
_TEXTS = ("agent", "machine")
_WHOLE = ("seed", "decision")


def run_dtype(knobs: Sequence[str]) -> np.dtype:
    """The fields of one run's rows, without agent, machine and seed."""
    fields = [("decision", np.int64), ("arrival_rate_per_s", np.float64)]
    fields += [(name, np.int64) for name in knobs]
    return np.dtype(fields + [(name, bool if name == "slo_violated" else np.float64) for name in AFTER_KNOBS])


def labelled(rows: np.ndarray, agent: str, machine: str, seed: int, width: int) -> np.ndarray:
    """A run's rows with agent, machine and seed; `width` is that of the longest name."""
    labels = [("agent", f"U{width}"), ("machine", f"U{width}"), ("seed", np.int64)]
    table = np.empty(len(rows), dtype=labels + rows.dtype.descr)
    for name in rows.dtype.names or ():
        table[name] = rows[name]
    table["agent"], table["machine"], table["seed"] = agent, machine, seed
    return table


def knob_names(decisions: np.ndarray) -> tuple[str, ...]:
    """The columns between the load and the cost."""
    return tuple(n for n in decisions.dtype.names or () if n not in (*BEFORE_KNOBS, *AFTER_KNOBS))


def write_decisions(path: Path, decisions: np.ndarray) -> None:
    names = decisions.dtype.names or ()
    write_rows(path, names, (map(_cell, row) for row in decisions.tolist()))


def read_decisions(path: Path) -> np.ndarray:
    """The structured array that was written; ValueError where the file is not one."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            names = next(reader, [])
            columns = list(zip(*reader, strict=True)) or [()] * len(names)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from error
    missing = [name for name in (*BEFORE_KNOBS, *AFTER_KNOBS) if name not in names]
    if missing:
        raise ValueError(f"{path} is no table of decisions: it lacks {', '.join(missing)}")
    arrays = [_column(name, column) for name, column in zip(names, columns, strict=True)]
    table = np.empty(len(arrays[0]), dtype=[(name, a.dtype) for name, a in zip(names, arrays, strict=True)])
    for name, array in zip(names, arrays, strict=True):
        table[name] = array
    return table


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a CSV file in one move, so that it exists whole or not at all."""
    with written_whole(path) as file:
        writer = csv.writer(codecs.getwriter("utf-8")(file), lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)


def _cell(value: object) -> object:
    """NaN becomes an empty cell, true becomes 1."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return "" if value != value else f"{value:.9g}"
    return value


def _column(name: str, texts: Sequence[str]) -> np.ndarray:
    if name in _TEXTS:
        return np.asarray(texts, dtype=str)
    if name == "slo_violated":
        return np.asarray([text == "1" for text in texts], dtype=bool)
    if name in _WHOLE or name not in (*BEFORE_KNOBS, *AFTER_KNOBS):
        return np.asarray(texts, dtype=np.int64)
    return np.asarray([float(text or "nan") for text in texts], dtype=np.float64)
