"""The log of changes: one line for every change of the target's configuration, with its reason.

2026-11-22 14:03:05  instances 1 -> 2, batch 1 -> 4  the agent: expects 23 ms instead of 41 ms
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from rrl.tuning.listener import TIME, TIME_LENGTH, Change, Listener
from serving_adapter.whole_files import errors_name

FILE_NAME = "changes.log"
EARLIER_FILE_NAME = "changes.1.log"
MAX_BYTES = 4 << 20  # then it goes on as the earlier one, in whose place another begins


class ChangeLog(Listener):
    """Appends every change to the file in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME

    def changed(self, change: Change) -> None:
        with errors_name(self.path):
            if self.path.exists() and self.path.stat().st_size > MAX_BYTES:
                self.path.replace(self.path.with_name(EARLIER_FILE_NAME))
        with errors_name(self.path), self.path.open("a+b") as file:
            file.write(_end_of_torn_line(file) + f"{change}\n".encode(errors="replace"))


def times_since(folder: Path, at_s: float) -> list[float]:
    """Unix times of the changes in a folder's log after a moment, in whole seconds.

    After the last record of a run, these are the changes that no record tells of. In the hour that local
    clocks have twice a year, a time is read as the later one: a limit on changes must not forget any.
    """
    paths = [folder / name for name in (EARLIER_FILE_NAME, FILE_NAME)]
    times_s = []
    for line in [line for path in paths if path.exists() for line in _lines(path)]:
        with suppress(ValueError):  # a line torn by a kill
            times_s.append(datetime.strptime(line[:TIME_LENGTH], TIME).replace(fold=1).timestamp())
    return [time_s for time_s in times_s if time_s + 1 > at_s]


def _end_of_torn_line(file: BinaryIO) -> bytes:
    """What a kill or a full disk has kept from the last line, so that the next one is a line of its own."""
    if not file.seek(0, os.SEEK_END):
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


def _lines(path: Path) -> list[str]:
    """Those of a torn line, too, which may end within a character."""
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
