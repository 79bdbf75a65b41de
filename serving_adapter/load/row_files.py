"""The files of a run. A disk that takes no more ends none: the load goes on, and the end tells of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from serving_adapter.answered_totals import FILE_NAME, SharedTotals
from serving_adapter.whole_files import written_whole


class RowFiles:
    """The files in a folder; `trouble` says in a sentence what could not be written, if anything."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path()
        self._open: list[TextIO] = []
        self._totals: SharedTotals | None = None
        self.trouble = ""

    def create(self, name: str, header: str, flushes: bool = False) -> Callable[[str], None]:
        """A new file of rows; what is returned writes one. ValueError if there can be no such file."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            file = (self._folder / name).open("w", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"cannot write to {self._folder}: {error.strerror}") from error
        self._open.append(file)

        def write(row: str) -> None:
            if file.closed:
                return
            try:
                file.write(row + "\n")
                if flushes:
                    file.flush()
            except OSError as error:
                self._give_up(file, error)

        write(header)
        return write

    def count_answers(self) -> Callable[[float], None]:
        """A file with the totals of answers (`answered_totals`); what is returned adds one's latency in s.

        It is for who measures the server meanwhile. So where it cannot be made, the load goes on without.
        """
        try:
            self._totals = SharedTotals(self._folder / FILE_NAME)
        except OSError as error:
            self._tell(FILE_NAME, error)
            return lambda latency_s: None
        return self._totals.add

    def write_whole(self, name: str, text: str) -> None:
        try:
            with written_whole(self._folder / name) as file:
                file.write(text.encode())
        except OSError as error:
            self._tell(name, error)

    def close(self) -> None:
        if self._totals is not None:
            self._totals.close()
        for file in self._open:
            try:
                file.close()
            except OSError as error:
                self._give_up(file, error)

    def _give_up(self, file: TextIO, error: OSError) -> None:
        with contextlib.suppress(OSError):
            file.close()  # it tries once more to write what it holds
        self._tell(Path(file.name).name, error)

    def _tell(self, name: str, error: OSError) -> None:
        self.trouble = self.trouble or (
            f"{self._folder / name} is not complete: {error.strerror}; make room there, and run it again"
        )
