"""Files that clients have opened, and the threads in which they are waited for.

A client may hand over a file on a file system that does not answer (FUSE, a stalled NFS), or a socket that
lingers. `fstat`, reading and `close` may then wait for ever, so none of them is called in the event loop.

A client's files are read two at a time (`MAX_READS_PER_CLIENT`). All else is done with them one at a time. So
a client that is stuck holds up itself alone, however many are.
"""

from __future__ import annotations

import fcntl
import io
import os
import stat
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.file_identity import file_identity

FILE_MODEL_NAME = ":file"  # what models opened by a descriptor are called; no client could ask for this name
MAX_FILE_THREADS = 1 << 14  # one a client at most, started as they are needed
CLOSED = -1  # no descriptor has this number

Result = TypeVar("Result")

_threads = ThreadPoolExecutor(MAX_FILE_THREADS, thread_name_prefix="rrl-store-files")


class OneAtATime:
    """Calls of one client in the threads of all, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._last: Future[Any] = Future()
        self._last.set_result(None)

    def submit(self, function: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """The call will be made, even if whoever waits for it is cancelled meanwhile."""
        previous, call = self._last, Future[Result]()
        call.set_running_or_notify_cancel()
        self._last = call
        previous.add_done_callback(lambda _: _threads.submit(_make, call, function, *arguments))
        return call


def _make(call: Future[Result], function: Callable[..., Result], *arguments: Any) -> None:
    try:
        result = function(*arguments)
    except BaseException as error:
        call.set_exception(error)
    else:
        call.set_result(result)


class ClientFile:
    """A descriptor that a client has handed over; `label` is what the client calls it.

    `look` and `has_changed` may wait for the file system.
    """

    def __init__(self, descriptor: int, label: str) -> None:
        self._descriptor, self.label = descriptor, label
        self._status: os.stat_result | None = None

    def look(self) -> None:
        """Finds out what it is; StoreError if no weights can be read from it."""
        status = os.fstat(self._descriptor)
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        if not stat.S_ISREG(status.st_mode) or flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
            raise StoreError("the weights must be in a regular file that is open for reading")
        self._status = status

    @property
    def version(self) -> str:
        """Which file it is, in which state, as `look` found it."""
        return "" if self._status is None else ".".join(map(str, file_identity(self._status)))

    @property
    def size_bytes(self) -> int | None:
        """How long it is, as `look` found it."""
        return None if self._status is None else self._status.st_size

    @property
    def is_unnamed(self) -> bool:
        """Whether nobody could open the file again, as `look` found it."""
        return self._status is not None and self._status.st_nlink == 0

    def has_changed(self) -> bool:
        """True if the file changed since `look`, or if that cannot be found out any more."""
        try:
            return self._status is None or file_identity(os.fstat(self._descriptor)) != file_identity(
                self._status
            )
        except OSError:
            return True

    def reader(self) -> io.RawIOBase:
        """Reads the file from its start, wherever the client moves the descriptor's position."""
        return _FromStart(self._descriptor)

    def let_go(self) -> int:
        """The descriptor, which is the caller's to close; nothing else can be done with the file any more."""
        descriptor, self._descriptor = self._descriptor, CLOSED
        return descriptor


class _FromStart(io.RawIOBase):
    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._position = descriptor, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count
