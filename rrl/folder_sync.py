"""A file that was made in a folder, or took another's place there, outlasts a power cut."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Returns once the folder's list of files is on the disk."""
    if os.name == "nt":  # Windows opens no folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
