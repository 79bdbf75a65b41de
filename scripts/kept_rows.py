"""The rows of a measurement in a file, so that the same command goes on where it was interrupted.

A row is one JSON object on a line of its own. A row that was cut off by the end of its writer counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


class KeptRows:
    """Rows told apart by the values of `key`. A second one of the same key takes the first's place.

    Without a path they are only remembered.
    """

    def __init__(self, path: Path | None, key: Sequence[str]) -> None:
        self._path, self._key = path, tuple(key)
        self._rows: dict[tuple[Any, ...], Row] = {}
        for row in _read(path):
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

    def add(self, row: Row) -> None:
        """Keeps one more, on the disk before it returns."""
        self._rows[self._of(row)] = row
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            if file.tell() and not _ends_whole(self._path):
                file.write(b"\n")  # the row before it was cut off
            file.write(json.dumps(dict(row), ensure_ascii=False).encode() + b"\n")

    def _of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)


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
