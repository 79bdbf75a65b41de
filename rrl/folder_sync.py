"""A file that was made in a folder, or took another's place there, outlasts a power cut."""

from __future__ import annotations

import errno
import os
from pathlib import Path

HAVE_NONE = (errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.ENOTSUP)
"""What file systems say that cannot, as those of Windows' shares."""


def sync_folder(folder: Path) -> None:
    """Returns once the folder's list of files is on the disk, where the file system can tell."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in HAVE_NONE:
            raise
    finally:
        os.close(descriptor)
