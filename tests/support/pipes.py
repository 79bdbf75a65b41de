"""A line from a process, and one to it."""

from __future__ import annotations

import subprocess


def line_of(process: subprocess.Popen[str]) -> str:
    """The next line of its standard output."""
    assert process.stdout is not None
    return process.stdout.readline()


def tell(process: subprocess.Popen[str], what: str = "") -> None:
    """Lets it go on that waits for a line of its standard input."""
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()
