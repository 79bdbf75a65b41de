"""Crash safety: a state file says how a target was found, from before its first change to the clean end.

A run that is killed does not remove the file. The next start on that target finds it, sees that its process
is dead, and puts the found configuration back before anything else. A file whose process lives means that
another run is tuning the target. So may the file of another machine, where the folder is shared.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from rrl.file_lock import lock
from serving_adapter.address import canonical


class TargetTaken(ValueError):
    """Another run is tuning this target."""


@dataclass(frozen=True)
class ToRestore:
    """What is to be restored after a killed run."""

    found: dict[str, int]
    best: dict[str, int]  # the best the killed run knew
    config_pbtxt: str = ""  # the target's whole configuration as found


@dataclass(frozen=True)
class _State:
    target: str
    model: str
    pid: int
    process_started_s: float  # Unix time; it differs where the pid is reused
    found: dict[str, int]
    best: dict[str, int]
    config_pbtxt: str = ""
    host: str = ""  # the name of the machine that its process runs on, which may change
    machine: str = ""  # the identity of that machine; empty: not known, taken for this one


def state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "rrl-tune"


class RestorePoint:
    """The claim of one run on one target's model."""

    def __init__(self, target: str, model: str) -> None:
        self.target = target
        self.model = model
        key = f"{canonical(target)}/{model}"
        name = re.sub(r"[^\w.-]+", "_", key)[:80]
        if key.startswith("localhost:"):
            key += f" on {_machine()}"
        self.path = state_folder() / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"
        self._state: _State | None = None

    def to_restore(self) -> ToRestore | None:
        """What is to be restored after a dead run, if anything; TargetTaken if its process lives."""
        state = self._read()
        if state is None:
            return None
        if state.machine not in ("", _machine()):
            raise TargetTaken(
                f"an rrl-tune on {state.host} (pid {state.pid}) tunes {self.model} on {self.target}, "
                "or was killed there: wait for it to end, or start one there, which puts back what was "
                f"found. If {state.host} is gone, put the target right by hand and remove {self.path}"
            )
        if _lives(state.pid, state.process_started_s):
            raise TargetTaken(
                f"another rrl-tune (pid {state.pid}) tunes {self.model} on {self.target}; "
                "wait for it to end, or stop it with Ctrl-C or kill"
            )
        return ToRestore(state.found, state.best, state.config_pbtxt)

    def put_back(self) -> None:
        """What a dead run had found is in force: from now on the target is its operator's again."""
        with _locked(self.path.parent):
            self.to_restore()  # not what another run has claimed meanwhile
            self.path.unlink(missing_ok=True)

    def claim(self, found: Mapping[str, int], config_pbtxt: str = "") -> None:
        """Claims the target before the first change. What a dead run had found must be in force by now."""
        started_s = psutil.Process().create_time()
        state = _State(
            target=self.target,
            model=self.model,
            pid=os.getpid(),
            process_started_s=started_s,
            found=dict(found),
            best=dict(found),
            config_pbtxt=config_pbtxt,
            host=socket.gethostname(),
            machine=_machine(),
        )
        try:
            with _locked(self.path.parent):  # of two that start at once, the second sees the first's claim
                self.to_restore()
                self._write_temporary(state).replace(self.path)
        except OSError as error:
            raise ValueError(
                f"cannot write {self.path} ({error.strerror}), which keeps how the target was found; "
                "set XDG_STATE_HOME to a folder that can be written"
            ) from None
        self._state = state

    def safe(self, best: Mapping[str, int]) -> None:
        """A better configuration than the found one is known."""
        if self._state is None or self._state.best == dict(best):
            return
        self._state = _State(**asdict(self._state) | {"best": dict(best)})
        self._write_temporary(self._state).replace(self.path)

    def release(self) -> None:
        """At a clean end: the target is as it should be."""
        if self._state is not None:
            self.path.unlink(missing_ok=True)
            self._state = None

    def _write_temporary(self, state: _State) -> Path:
        temporary = self.path.with_suffix(f".{os.getpid()}.{time.monotonic_ns()}")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(asdict(state), file)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def _read(self) -> _State | None:
        try:
            return _State(**json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError):
            raise ValueError(
                f"{self.path} does not say how {self.target} was found: put the target's configuration "
                "right by hand, then remove this file"
            ) from None


def _machine() -> str:
    """The machine's identity, which stays when it is renamed or a container starts anew; empty if unknown."""
    with suppress(OSError):
        identity = Path("/etc/machine-id").read_text(encoding="ascii", errors="replace").strip()
        if identity not in ("", "uninitialized"):
            return hashlib.sha256(identity.encode()).hexdigest()[:16]  # which is nobody else's business
    return ""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Only one process at a time is in here."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name == "nt":  # Windows opens no folders
        descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    else:
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _lives(pid: int, started_s: float) -> bool:
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - started_s) < 2.0
        return same and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False
