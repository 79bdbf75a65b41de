"""A file of rows, one JSON object a line, with which a benchmark goes on where it was stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class RowFile:
    """The rows of a file and those that are added; without a path, only the latter.

    `key` names the fields that make a row the same run. A line that was cut off is measured again.
    """

    def __init__(self, path: Path | None, key: Sequence[str]) -> None:
        self._path, self._key = path, tuple(key)
        self._rows: dict[tuple[Any, ...], Row] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    self._keep(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    continue

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def has(self, **run: Any) -> bool:
        return self._key_of(run) in self._rows

    def add(self, row: Row) -> None:
        self._keep(row)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _keep(self, row: Row) -> None:
        self._rows[self._key_of(row)] = row

    def _key_of(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self._key)
