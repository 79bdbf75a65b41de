"""Jobs that tell where they are done. The nodes import this module."""

from __future__ import annotations

import os
from pathlib import Path

import baselines
from tests.support.waiting import until

GO_ON = "go on"


def lingering(folder: Path, name: str) -> str:
    """Tells by a file which process does it, then waits for a file called `GO_ON`."""
    (folder / f"{name}.{os.getpid()}").touch()
    until((folder / GO_ON).exists)
    return name


def code_of_node() -> str:
    """Where the process that does it has our code from."""
    return str(baselines.__file__)


def processes_of(folder: Path) -> list[int]:
    """Those that began a lingering job."""
    return [int(path.suffix[1:]) for path in folder.iterdir() if path.name != GO_ON]
