"""The journal: an append-only JSON-lines file, one line an interval, behind one header line.

Once a run has put in force what it leaves, a last line tells what that is; to resume removes it.

Everything a tuning run knows is in it. Of one that watches for months, `rrl.tuning.unattended.rotation` says
what stays. To resume is to replay it into agent and guard; TensorBoard events, tables and figures are views
of it.
Each line is flushed to the disk before the next interval starts, so a killed run loses at most the
interval in flight. A last line that was torn by the kill is dropped when the journal is read.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from rrl.file_lock import lock
from rrl.folder_sync import sync_folder
from rrl.measurement import has_traffic
from rrl.records import EMBEDDED, FORMAT_VERSION, SIMULATION, Decision, Ending, Header, Kind, Record
from serving_adapter.whole_files import errors_name

# With the words of `rrl.records` that other people's code imports from here.
__all__ = [
    "EMBEDDED",
    "FILE_NAME",
    "FORMAT_VERSION",
    "SIMULATION",
    "Decision",
    "Ending",
    "Header",
    "Journal",
    "Kind",
    "NoJournal",
    "Record",
    "folder_of",
    "has_begun",
    "has_traffic",
    "read",
    "read_ending",
]

FILE_NAME = "journal.jsonl"

logger = logging.getLogger(__name__)


class NoJournal(ValueError):
    """The file is not one that this rrl-tune wrote."""


class Journal:
    """A journal open for appending. Two processes cannot hold the same one."""

    def __init__(
        self, path: Path, header: Header, file: FileIO, records: list[Record], synced: bool = True
    ) -> None:
        self.path = path
        self.header = header
        self.records = records
        self._file = file
        self._synced = synced

    @classmethod
    def create(cls, folder: Path, header: Header, synced: bool = True) -> Journal:
        """Starts a journal in `folder`; ValueError if one is there.

        Not `synced`, its lines reach the disk when the system sees fit: for what can be simulated again.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / FILE_NAME
        there = f"{path} exists: continue it with --resume {folder}, or name another folder with --out"
        if has_begun(folder):
            raise ValueError(there)
        file = _held(path, os.O_CREAT)
        if has_begun(folder):  # by now
            file.close()
            raise ValueError(there)
        file.truncate(0)  # a run that was killed before it began has left nothing
        journal = cls(path, header, file, [], synced)
        journal._write(header.to_json())
        if synced:
            sync_folder(folder)
            sync_folder(folder.parent)
        return journal

    @classmethod
    def open_to_resume(cls, folder: Path, expected: Header | None = None) -> Journal:
        """Opens the journal of an earlier run; ValueError if it is not one that `expected` continues.

        It is held before it is read: another run may just be ending it. Where a line is damaged, the run goes
        on from the lines before it, and the whole file as it was stays beside the journal. Its intervals are
        planned as `expected` has them.
        """
        path = folder / FILE_NAME
        if not path.is_file():
            raise _no_journal(path)
        file = _held(path)
        try:
            contents = _read(path)
            if expected is not None:
                contents.header.check_continues(expected)
            if contents.damage:
                _keep_copy(path)
            file.truncate(contents.length_bytes)  # what a kill left of a torn line, and the ending
            file.seek(0, os.SEEK_END)
            journal = cls(path, contents.header, file, contents.records)
            if expected is not None and contents.header != (planned := contents.header.planned_as(expected)):
                journal._write_anew(planned, range(len(contents.records)))
        except BaseException:
            file.close()
            raise
        return journal

    def append(self, record: Record) -> None:
        self._write(record.to_json())
        self.records.append(record)

    def keep(self, indices: Sequence[int], earlier: dict[str, Any]) -> None:
        """Forgets all other intervals. `earlier` is what the header tells of those from now on."""
        self._write_anew(replace(self.header, earlier=earlier), indices)
        self.records[:] = [self.records[i] for i in indices]

    def end(self, ending: Ending) -> None:
        """What the run leaves is in force."""
        self._write(ending.to_json())

    def close(self) -> None:
        self._file.close()

    def _write_anew(self, header: Header, indices: Sequence[int]) -> None:
        """Replaces the file by one of this header and these intervals, whole or not at all."""
        lines = self.path.read_bytes().splitlines(keepends=True)
        new = self.path.with_name(f"{self.path.name}.new")
        with errors_name(new):
            file = _held(new, os.O_CREAT | os.O_TRUNC)
            try:
                kept = b"".join(lines[1 + i] for i in indices)
                _write_all(file, _line(header.to_json()) + kept)
                os.fsync(file.fileno())
                os.replace(new, self.path)
            except BaseException:
                file.close()
                new.unlink(missing_ok=True)
                raise
        self._file.close()
        self._file, self.header = file, header
        with suppress(OSError):  # It is in its place, though a power cut may bring back the one before.
            sync_folder(self.path.parent)

    def _write(self, values: dict[str, Any]) -> None:
        """The whole line, or none of it, as on a full disk."""
        length_bytes = self._file.tell()
        with errors_name(self.path):
            try:
                _write_all(self._file, _line(values))
                if self._synced:
                    os.fsync(self._file.fileno())
            except OSError:
                self._file.seek(length_bytes)
                with suppress(OSError):  # The first error tells more.
                    self._file.truncate()
                raise


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def _write_all(file: FileIO, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def folder_of(run: Path) -> Path:
    """The folder of a run, of which the journal may be named instead."""
    return run.parent if run.name == FILE_NAME and run.is_file() else run


def has_begun(folder: Path) -> bool:
    """True if a run has a journal there. One that was killed before it wrote a line has none."""
    path = folder / FILE_NAME
    return path.exists() and b"\n" in path.read_bytes()


def read(folder: Path) -> tuple[Header, list[Record]]:
    """Header and intervals of the journal in `folder`."""
    contents = _read(folder / FILE_NAME)
    return contents.header, contents.records


def read_ending(folder: Path) -> Ending | None:
    """What the run in `folder` kept in force; None if its journal does not tell."""
    return _read(folder / FILE_NAME).ending


class _Contents(NamedTuple):
    header: Header
    records: list[Record]
    ending: Ending | None
    length_bytes: int  # of the header's and the intervals' whole lines
    damage: str  # of the line behind them; empty if there is none


def _read(path: Path) -> _Contents:
    if not path.is_file():
        raise _no_journal(path)
    lines = list(_whole_lines(path))
    if not lines:
        raise ValueError(f"{path} is empty: it was killed before it began; start a new run with --out")
    try:
        header = _header(path, lines[0])
    except NoJournal:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged and cannot be read ({type(error).__name__}: {error}); "
            "start a new run with --out"
        ) from None
    records, ending, damage = _intervals(header, lines[1:])
    if damage:
        logger.warning(
            "%s is damaged %s: only the %d lines before it are used", path, damage, 1 + len(records)
        )
    length_bytes = sum(len(line) for line in lines[: 1 + len(records)])
    return _Contents(header, records, ending, length_bytes, damage)


def _intervals(header: Header, lines: list[bytes]) -> tuple[list[Record], Ending | None, str]:
    """The intervals and the ending, as far as the lines are whole, and what is wrong with the first other."""
    records: list[Record] = []
    for number, line in enumerate(lines, 2):
        try:
            values = json.loads(line)
            if "left" not in values:
                record = Record.from_json(values)
                record.check_in(header.space)
                records.append(record.on(header.space))
            elif len(records) + 1 == len(lines):
                return records, Ending.from_json(values, header), ""
            else:
                raise ValueError("the run ended there")
        except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            return records, None, f"at line {number} ({type(error).__name__}: {error})"
    return records, None, ""


def _held(path: Path, flags: int = 0) -> FileIO:
    """The file to write to, which nobody else writes to. No link in its place is followed.

    It has no buffer: what could not be written is not written later either, when it is closed.
    """
    flags |= os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    file = FileIO(os.open(path, flags, 0o666), "r+")
    try:
        lock(file.fileno(), wait=False)
    except OSError:
        file.close()
        raise ValueError(
            f"{path} is held by another rrl-tune that is writing it; wait for it to end"
        ) from None
    return file


def _keep_copy(path: Path) -> None:
    """The journal as it is, under the first free name of its own."""
    data = path.read_bytes()
    for number in count(1):
        copy = path.with_name(f"{path.stem}.damaged-{number}{path.suffix}")
        with suppress(FileExistsError):
            with copy.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return


def _no_journal(path: Path) -> ValueError:
    return ValueError(f"no journal at {path}; give the folder that an earlier run wrote with --out")


def _header(path: Path, line: bytes) -> Header:
    values = json.loads(line) if _is_json(line) else None
    if not isinstance(values, dict) or values.get("journal") != "rrl-tune":
        raise NoJournal(f"{path} is not a journal of rrl-tune: its first line is no header")
    if values.get("version") != FORMAT_VERSION:
        raise NoJournal(
            f"{path} is a journal of format {values.get('version')}, this rrl-tune reads format "
            f"{FORMAT_VERSION}; start a new run with --out"
        )
    if unknown := sorted(values.keys() - {"journal", *(field.name for field in fields(Header))}):
        raise NoJournal(
            f"{path} is of another version of rrl-tune: this one does not know its {', '.join(unknown)}; "
            "resume with that one, or start a new run with --out"
        )
    return Header.from_json(values)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """The journal's lines but for a torn last one."""
    lines = path.read_bytes().splitlines(keepends=True)
    for i, line in enumerate(lines):
        whole = line.endswith(b"\n") and (i == 0 or _is_json(line))  # a whole first line may be no header
        if i == len(lines) - 1 and not whole:
            logger.warning("%s: dropped its last line, torn when the run was killed", path)
            return
        yield line


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True
