"""The rows of a measurement in a file, so that the same command goes on where it was interrupted.

A row is one JSON object on a line of its own. A row that was cut off by the end of its writer counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from scripts.benchmarks.tuner.commit import commit_in_force

Row = Mapping[str, Any]
NO_SETTING: Row = MappingProxyType({})
UNKNOWN_COMMIT = "unknown"


class OtherSetting(ValueError):
    """A file holds rows that were measured under another setting."""


class KeptRows:
    """Rows told apart by the values of `key`. A second one of the same key takes the first's place.

    `setting` is all else that they depend on, and is alike in all rows of a file: `OtherSetting` where it is
    not. It is written with every row, and a row that tells none has an empty one. Their code may differ: each
    row has its commit, for the tables to name. Without a path rows are only remembered.
    """

    def __init__(self, path: Path | None, key: Sequence[str], setting: Row = NO_SETTING) -> None:
        self._path, self._key = path, tuple(key)
        self._setting: Row = json.loads(json.dumps(dict(setting), default=str))
        self._rows: dict[tuple[Any, ...], Row] = {}
        for row in _read(path):
            check_setting(path, row.pop("setting", {}), self._setting)
            if all(name in row for name in self._key):
                self._rows[self._of(row)] = row

    def __contains__(self, row: Row) -> bool:
        """Whether a row with this key, given as a mapping, is kept."""
        return self._of(row) in self._rows

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Row) -> Row:
        return self._rows[self._of(key)]

    @property
    def commits(self) -> list[str]:
        """Those that measured the rows."""
        return list(dict.fromkeys(map(commit_of, self)))

    def add(self, row: Row) -> None:
        """Keeps one more, on the disk before it returns. It is of the commit in force unless it tells one."""
        row = {"commit": self._commit, **row}
        self._rows[self._of(row)] = row
        if self._path is None:
            return
        line = row | {"setting": self._setting} if self._setting else row
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            if file.tell() and not _ends_whole(self._path):
                file.write(b"\n")  # the row before it was cut off
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    def _of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)

    @cached_property
    def _commit(self) -> str:
        return commit_in_force()


def commit_of(row: Row) -> str:
    """The commit that measured a row."""
    return str(row.get("commit", UNKNOWN_COMMIT))


def setting_of(options: Any, *free: str) -> dict[str, Any]:
    """All of a benchmark's options but these, which only choose among its rows or name their file."""
    return {name: value for name, value in asdict(options).items() if name not in free}


def check_setting(path: Path | None, found: Row, wanted: Row) -> None:
    """`OtherSetting`, with what differs, where a row of this file has another setting than the one wanted."""
    if found == wanted:
        return
    names = [name for name in {**wanted, **found} if found.get(name, ...) != wanted.get(name, ...)]
    raise OtherSetting(
        f"{path} holds rows with {_in_words(found, names) if found else 'no setting'}, and those wanted have "
        f"{_in_words(wanted, names)}: give the options of those rows, or name another file"
    )


def _in_words(setting: Row, names: Sequence[str]) -> str:
    return ", ".join(
        f"{name}={json.dumps(setting[name])}" if name in setting else f"no {name}" for name in names
    )


def _read(path: Path | None) -> Iterator[dict[str, Any]]:
    if path is None or not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict):
                yield row


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
