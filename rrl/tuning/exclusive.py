"""One run at a time on a target: what is held here ends with its process, however that ends.

| held | keeps apart runs that | where |
|---|---|---|
| a lock on a file beside the state file | share a state folder, also from several containers | any system |
| a socket of the kernel's, by the target's name | share a network, whatever their user and home | Linux |

Neither asks for a process id or a clock, which mean nothing in another container or after a step of the time.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EADDRINUSE
from pathlib import Path

from rrl.file_lock import lock


class HeldByAnother(Exception):
    """Another process holds it."""


class Exclusive:
    """The sole right to tune, from `take` until `release` or the end of the process."""

    def __init__(self, path: Path, names: Iterable[str]) -> None:
        """`path` is of the lock's file; `names` are all that the target goes by."""
        self._path, self._names = path, sorted(names)
        # Bare descriptors: what is not released is closed by the end of the process, and never before.
        self._descriptor: int | None = None
        self._sockets: list[int] = []

    def take(self) -> None:
        """HeldByAnother if another has it. Call it in `alone`, as everything here."""
        try:
            self._descriptor = _locked(self._path)
            if sys.platform == "linux":
                for name in self._names:
                    self._sockets.append(_listening(name))
        except HeldByAnother:
            self.release(leave_file=True)
            raise

    def is_held(self) -> bool:
        """True if another has it."""
        try:
            os.close(_locked(self._path))
        except HeldByAnother:
            return True
        finally:
            if not self._path.with_suffix(".json").exists() and self._descriptor is None:
                self._path.unlink(missing_ok=True)
        return sys.platform == "linux" and any(map(_answers, self._names))

    def release(self, leave_file: bool = False) -> None:
        """Gives the right back. The file may stay, for a state file that stays beside it."""
        if self._descriptor is not None:
            if not leave_file:
                with suppress(OSError):
                    self._path.unlink()
            os.close(self._descriptor)
            self._descriptor = None
        for each in self._sockets:
            os.close(each)
        self._sockets = []


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Only one process at a time is in here. Makes the folder, which is for its owner's eyes."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if os.name == "nt":  # Windows opens no folders
        descriptor = os.open(folder / "lock", os.O_CREAT | os.O_RDWR)
    else:
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        lock(descriptor, wait=True)
        yield
    finally:
        os.close(descriptor)


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        lock(descriptor, wait=False)
    except (BlockingIOError, PermissionError):  # the latter on Windows
        os.close(descriptor)
        raise HeldByAnother from None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _listening(name: str) -> int:
    """A socket whose name is in no folder: it is every user's, and gone with its last process."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(_abstract(name))
        listening.listen(0)  # nobody is answered: that it is there tells all
    except OSError as error:
        if error.errno == EADDRINUSE:
            listening.close()
            raise HeldByAnother from None  # where the system forbids such sockets, the file is all there is
    return listening.detach()


def _answers(name: str) -> bool:
    """True if somebody listens there. A full queue of such questions is an answer, too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(_abstract(name))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


def _abstract(name: str) -> str:
    return "\0rrl-tune/" + hashlib.sha256(name.encode()).hexdigest()
