"""Which file it is, in which state: what tells a file from others, and from itself after a change."""

from __future__ import annotations

import os


def file_identity(status: os.stat_result) -> tuple[int, ...]:
    """An owner can set a file's mtime but not its ctime."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
