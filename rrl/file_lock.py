"""A file can be locked for one process at a time, on Linux, macOS and Windows."""

from __future__ import annotations

import os
import sys

FAR_BEHIND_THE_CONTENTS_BYTES = 1 << 40  # Windows locks bytes, and nobody else may read those


def lock(descriptor: int, *, wait: bool) -> None:
    """Holds the file until its descriptor is closed; OSError if another holds it and `wait` is false."""
    if sys.platform == "win32":
        import msvcrt

        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, FAR_BEHIND_THE_CONTENTS_BYTES, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
    else:
        import fcntl  # Windows has no such module

        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
