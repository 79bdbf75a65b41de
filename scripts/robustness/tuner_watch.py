"""What a tuner holds while it runs, and what it writes; rows of what is held at the start and at the end."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import NamedTuple

from scripts.robustness.process_usage import HeldByProcesses, family, held

MOST_GROWTH_BYTES = 50 << 20
MOST_TUNER_BYTES_AN_INTERVAL = 32 << 10  # it holds its journal in memory
MOST_JOURNAL_GROWTH = 1.25  # of the bytes an interval
TYPICAL_INTERVALS = 100  # fewer do not tell what one takes in the journal
SETTLED_INTERVALS = 5  # before them a tuner has not opened all that it needs
MOST_MORE = 2  # descriptors, threads: a connection or two more may be open
ENDING_S = 120.0


class HeldRow(NamedTuple):
    """One thing that is held, at the start and at the end, and by how much it may grow."""

    what: str
    start: float
    end: float
    most: float
    unit: str

    @property
    def holds(self) -> bool:
        return self.end <= self.most


class TunerWatch:
    """What the tuner holds as it goes, and what it writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.samples: list[tuple[int, int, HeldByProcesses]] = []  # intervals, journal bytes, held
        self.intervals = self.journal_bytes = self.changes = 0
        self._exit_status: int | None = None

    @property
    def is_over(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def look(self) -> None:
        if self.process is None or self.is_over:
            return
        lines, size = self._journal()
        if lines > SETTLED_INTERVALS:
            self.samples.append((lines - 1, size, held(family(self.process.pid))))

    def end(self) -> None:
        """Waits for the run's end; what it takes longer is cut off."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._exit_status = self.process.wait(ENDING_S)
        self.intervals, self.journal_bytes = self._journal()
        log = self.folder / "changes.log"
        self.changes = log.read_bytes().count(b"\n") if log.exists() else 0

    def rows(self) -> list[HeldRow]:
        """The run's end against an early look at it, the second where there are more than two.

        A run so short that nobody looked at it once it had settled shows no growth, but must have been.
        """
        status = 99 if self._exit_status is None else self._exit_status
        ended = HeldRow("exit status of the tuner", 0, status, 0, "")
        if not self.samples:
            return [HeldRow("runs of the tuner that lack", 0, float(not self.intervals), 0, ""), ended]
        (n0, size0, start), (n1, size1, end) = self.samples[len(self.samples) > 2], self.samples[-1]
        grown = MOST_GROWTH_BYTES + MOST_TUNER_BYTES_AN_INTERVAL * (n1 - n0)
        fds0, threads0 = start.descriptors, start.threads
        before, after = start.memory_bytes / 2**20, end.memory_bytes / 2**20
        each0, each1 = size0 / n0, (size1 - size0) / max(1, n1 - n0)
        rows = [
            HeldRow("memory of the tuner", before, after, before + grown / 2**20, "MiB"),
            HeldRow("descriptors of the tuner", fds0, end.descriptors, fds0 + 2 * MOST_MORE, ""),
            HeldRow("threads of the tuner", threads0, end.threads, threads0 + MOST_MORE, ""),
            ended,
        ]
        if n0 >= TYPICAL_INTERVALS:
            rows.append(HeldRow("journal", each0, each1, MOST_JOURNAL_GROWTH * each0, "bytes an interval"))
        return rows

    def _journal(self) -> tuple[int, int]:
        path = self.folder / "journal.jsonl"
        data = path.read_bytes() if path.exists() else b""
        return data.count(b"\n"), len(data)
