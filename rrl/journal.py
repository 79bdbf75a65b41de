"""The journal: an append-only JSON-lines file, one line an interval, behind one header line.

Once a run has put in force what it leaves, a last line tells what that is; to resume removes it.

Everything a tuning run knows is in it. To resume is to replay it into agent and guard; TensorBoard
events, tables and figures are views of it. Each line is flushed to the disk before the next interval
starts, so a killed run loses at most the interval in flight. A last line that was torn by the kill is
dropped when the journal is read.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from io import FileIO
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import numpy as np

from rrl.agent import Transition
from rrl.agent_names import present_name
from rrl.declared_types import fits, mistyped
from rrl.file_lock import lock
from rrl.folder_sync import sync_folder
from rrl.measurement import Measurement, has_traffic
from rrl.space import ConfigurationSpace, Knob
from serving_adapter.address import canonical
from serving_adapter.whole_files import errors_name

FORMAT_VERSION = 1
FILE_NAME = "journal.jsonl"
EMBEDDED = "embedded"  # the target's name in a journal of a run that was given none
SIMULATION = "simulation"  # the target's name in a journal that rrl-train wrote
Kind = Literal["baseline", "tune", "validation", "wait"]  # wait: no change was allowed, so none was tried
Decision = Literal["agent", "rollback", "hold", "refused", "schedule", "wait"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Header:
    """What a run is about: the journal's first line."""

    space: ConfigurationSpace
    objective: str  # latency, strict-slo, least-resources
    slo_p95_ms: float | None
    agent: str
    seed: int
    target: str  # HOST:PORT, "embedded" or "simulation"
    model: str
    found: dict[str, int]  # the target's configuration before the run; may hold knobs that are not tuned
    start: dict[str, int]  # the same on the grid
    interval_s: float
    started_at: str  # ISO 8601
    settle_s: float = 1.0  # the part of an interval that is not measured
    intervals: int = 50  # tuning intervals planned
    duration_s: float | None = None  # if given, about as many intervals are run as so long allows
    load: dict[str, Any] | None = None  # the embedded load's options
    machine: str | None = None  # the machine file that the agent was given
    agent_from: dict[str, Any] | None = None  # the journal replayed before this one: see `pretraining`
    validation: int = 2  # turns of the best and of the start, each, at the end
    limits: dict[str, Any] | None = None  # the options that keep changes rare, at their hours, off some knobs
    found_config_pbtxt: str | None = None  # the target's whole ModelConfig before the run, as text
    metrics_url: str | None = None  # as it was given
    server: str | None = None  # the name and version that the target tells
    cores: int | None = None  # of the target's machine, as far as that was known
    version: int = FORMAT_VERSION

    def check_continues(self, other: Header) -> None:
        """ValueError unless a run described by `other` may continue this journal."""
        for name, theirs, ours in (
            ("space", str(self.space), str(other.space)),
            ("objective", self.objective, other.objective),
            ("p95 limit", self.slo_p95_ms, other.slo_p95_ms),
            ("agent", self.agent, other.agent),
            ("model", self.model, other.model),
            ("target", canonical(self.target), canonical(other.target)),
            ("number of validation turns", self.validation, other.validation),
        ):
            if theirs != ours:
                raise ValueError(
                    f"the journal is of another {name}: {theirs}, not {ours}; "
                    "resume with the journal's own, or start a new run with --out"
                )

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"journal": "rrl-tune"} | values | {"space": self.space.to_json()}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Header:
        """ValueError, KeyError or TypeError, with what is wrong, for values that are no header's."""
        knobs = tuple(Knob(name, tuple(v)) for name, v in dict(values["space"]).items())
        header = cls(
            **{k: v for k, v in values.items() if k != "journal"} | {"space": ConfigurationSpace(knobs)}
        )
        for name, hint in get_type_hints(cls).items():
            if not fits(getattr(header, name), hint):
                raise TypeError(f"{name} is {getattr(header, name)!r}")
        header.space.number(header.start)
        return replace(header, agent=present_name(header.agent))


# Values of fields that an older journal lacks in its records.
_DEFAULTS: dict[str, Any] = {
    "changed_at_s": (),
    "not_taken": False,
    "settling": None,
    "share": 1.0,
}
_LAST_MOMENT_S = 250e9  # of the calendar that Python knows, in Unix time
# Fields of a record that the journal writes in a form of their own.
_FIELDS_IN_OWN_FORM = ("transition", "settling")


@np.errstate(over="raise")
def _observation(values: list[float]) -> np.ndarray:
    """FloatingPointError for what float32 cannot hold."""
    return np.asarray(values, dtype=np.float32)


@dataclass(frozen=True)
class Record:
    """One interval: the transition, who chose its configuration, and what the guard said of it."""

    kind: Kind
    number: int  # the configuration in force, by its number in the space
    configuration: dict[str, int]
    transition: Transition
    decision: Decision  # whose choice the configuration was: the agent's, the guard's, or the schedule's
    reason: str  # why the guard chose in the agent's place or the run waits; what an agent says of its change
    verdict: str  # what the guard said of the interval afterwards; empty if nothing
    rollback: bool  # whether the guard called for a rollback then
    learned: bool  # whether agent and averages take it in
    wall_time_s: float  # Unix time at the end of the interval
    decision_ms: float = math.nan  # agent and guard together
    apply_ms: float = math.nan  # until the configuration was in force
    changed_at_s: tuple[float, ...] = ()  # Unix times of the changes of configuration since the last record
    not_taken: bool = False  # the server refused this configuration and kept what it had
    settling: Measurement | None = None  # of a live change: from before it until the interval was measured
    share: float = 1.0  # of the usual time that it was measured for

    @property
    def measurement(self) -> Measurement:
        return self.transition.measurement

    @property
    def counted(self) -> bool:
        """True if there was a target and it had requests; unless the run waited, it used up an interval."""
        return not self.measurement.gap and has_traffic(self.measurement)

    @property
    def cost(self) -> float:
        return self.transition.cost

    @property
    def with_settling(self) -> list[Measurement]:
        """All that was seen in it: while a change settled, and then."""
        return [self.measurement] if self.settling is None else [self.settling, self.measurement]

    @property
    def failures(self) -> int:
        """Failed requests, while a change settled too."""
        return sum(seen.failures for seen in self.with_settling)

    @property
    def failures_in_words(self) -> str:
        """`17 of 142 failed, 3 failed while the change settled`; empty where none failed."""
        settling = 0 if self.settling is None else self.settling.failures
        while_settling = f"{settling} failed while the change settled" if settling else ""
        return ", ".join(filter(None, (self.measurement.failures_in_words, while_settling)))

    @property
    def lesson(self) -> Transition:
        """What the agent is told of a counted interval: its cost only where that is learned."""
        return self.transition if self.learned else replace(self.transition, cost=math.nan)

    def to_json(self) -> dict[str, Any]:
        t = self.transition
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _FIELDS_IN_OWN_FORM}
        return {name: _null_if_nan(value) for name, value in values.items()} | {
            "settling": None if self.settling is None else self.settling.to_json(),
            "observation": [float(x) for x in t.observation],
            "action": [int(x) for x in t.action],
            "cost": _null_if_nan(t.cost),
            "next_observation": [float(x) for x in t.next_observation],
            "measurement": t.measurement.to_json(),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Record:
        """ValueError, KeyError, TypeError or ArithmeticError for values that are no record's."""
        transition = Transition(
            _observation(values["observation"]),
            np.asarray(values["action"], dtype=np.int64),
            _nan_if_null(values["cost"]),
            _observation(values["next_observation"]),
            Measurement.from_json(values["measurement"]),
        )
        values = _DEFAULTS | values
        own = {f.name: values[f.name] for f in fields(cls) if f.name not in _FIELDS_IN_OWN_FORM}
        own |= {name: _nan_if_null(own[name]) for name in ("decision_ms", "apply_ms")}
        own["changed_at_s"] = tuple(own["changed_at_s"])
        settling = None if values["settling"] is None else Measurement.from_json(values["settling"])
        record = cls(transition=transition, settling=settling, **own)
        if wrong := mistyped(record) or next(filter(None, map(mistyped, record.with_settling)), ""):
            raise TypeError(wrong)
        if not all(0 <= at_s <= _LAST_MOMENT_S for at_s in (record.wall_time_s, *record.changed_at_s)):
            raise ValueError("a moment is beyond the calendar")
        return record

    def check_in(self, space: ConfigurationSpace) -> None:
        """ValueError or KeyError where this is no interval of a run on that grid."""
        number = space.number(self.configuration)
        action = self.transition.action.tolist()
        if self.number != number or action != space.action(number).tolist():
            raise ValueError(f"number {self.number} is not that of {self.configuration}")
        if self.transition.observation.shape != self.transition.next_observation.shape:
            raise ValueError("the two observations are not of one length")


@dataclass(frozen=True)
class Ending:
    """What a run left in force, and why: the journal's last line. Without it, that is not known."""

    kept: dict[str, int]
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"left": self.kept, "reason": self.reason}

    @classmethod
    def from_json(cls, values: dict[str, Any], header: Header) -> Ending:
        """ValueError, KeyError or TypeError for values that are no ending of the header's run."""
        header.space.number(values["left"])
        return cls(dict(values["left"]), str(values["reason"]))


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
        on from the lines before it, and the whole file as it was stays beside the journal.
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
        except BaseException:
            file.close()
            raise
        return cls(path, contents.header, file, contents.records)

    def append(self, record: Record) -> None:
        self._write(record.to_json())
        self.records.append(record)

    def end(self, ending: Ending) -> None:
        """What the run leaves is in force."""
        self._write(ending.to_json())

    def close(self) -> None:
        self._file.close()

    def _write(self, values: dict[str, Any]) -> None:
        """The whole line, or none of it, as on a full disk."""
        line = json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        length_bytes = self._file.tell()
        with errors_name(self.path):
            try:
                while line:
                    line = line[self._file.write(line) :]
                if self._synced:
                    os.fsync(self._file.fileno())
            except OSError:
                self._file.seek(length_bytes)
                with suppress(OSError):  # The first error tells more.
                    self._file.truncate()
                raise


def has_begun(folder: Path) -> bool:
    """True if a run has a journal there. One that was killed before it wrote a line has none."""
    path = folder / FILE_NAME
    return path.exists() and b"\n" in path.read_bytes()


def read(folder: Path) -> tuple[Header, list[Record]]:
    """Header and intervals of the journal in `folder`."""
    contents = _read(folder / FILE_NAME)
    return contents.header, contents.records


def read_ending(folder: Path) -> Ending | None:
    """What the run in `folder` left in force; None if its journal does not tell."""
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
                records.append(record)
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


def _null_if_nan(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _nan_if_null(value: float | None) -> float:
    return math.nan if value is None else value
