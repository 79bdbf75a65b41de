"""What runs for all tests of one folder ends after the last of them.

A fixture of the session alone would keep it until the last test of all, and cores with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_running: dict[Path, ExitStack] = {}


@contextmanager
def until_folder_ends(folder: Path) -> Iterator[ExitStack]:
    """For a fixture of the session: what it puts on the stack ends after the folder's last test."""
    with ExitStack() as stack:
        _running[folder] = stack
        yield stack


def end_other_folders(next_test: Path) -> None:
    """Ends what runs for the tests of folders that the next test, a file, is not in."""
    for folder, stack in _running.items():
        if folder not in next_test.parents:
            stack.close()
