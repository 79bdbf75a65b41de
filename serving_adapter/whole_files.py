"""Files that appear whole or not at all, also in folders that others may write to.

They are written beside their place under a name that nobody can foretell, and that must be new. So a link
that somebody has laid there is never written through.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

UNFINISHED = re.compile(r"\..+\.[0-9a-f]{16}\.part", re.DOTALL)
"""The names of files that a process which was killed left behind."""

MAX_NAME_BYTES = 200  # of the place's name in that of the file beside it; Linux takes 255 in all


@contextlib.contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Has an OSError tell which file it is about: that of a full disk does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def check_place(path: Path) -> None:
    """OSError, which names the file, where it cannot be written: asked before the work that it is to hold."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextlib.contextmanager
def written_whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that is there under its name once it is complete and on the disk; `mode` as for `os.open`.

    What is there and no file, as /dev/null, is written to as it is.
    """
    if path.exists() and not path.is_file():
        with errors_name(path), path.open("wb") as device:
            yield device
        return
    name = os.fsdecode(os.fsencode(path.name)[:MAX_NAME_BYTES])
    unfinished = path.with_name(f".{name}.{secrets.token_hex(8)}.part")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        error.filename = str(path)  # which is what its user knows
        raise
    try:
        with errors_name(path), os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished)
        raise
