"""Ctrl-C and SIGTERM in the first seconds of a program, in which it imports what it needs."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rrl import programs
from tests.support import CHECKOUT
from tests.support.waiting import until

ENTRIES: dict[str, str] = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["scripts"]
# Libraries that a program maps one after the other while it is imported.
MAPPED = {
    "rrl-tune": ("cygrpc", "libllvmlite"),
    "rrl-serve": ("_multiarray_umath",),
    "rrl-store": ("_psutil",),
    "rrl-parity": ("libtorch_cpu",),
    "rrl-load": ("_multiarray_umath",),
    "rrl-tap": ("_multiarray_umath",),
    "rrl-profile": ("_multiarray_umath",),
    "rrl-train": ("libllvmlite",),
    "rrl-compare": ("_multiarray_umath",),
    "rrl-bench": ("_multiarray_umath",),
    "rrl-export": ("_multiarray_umath",),
}


def started(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def interrupted_once_mapped(name: str, library: str, number: int) -> tuple[int, str]:
    """The program's status and all that it says; called as the installed command calls it."""
    module, function = ENTRIES[name].split(":")
    process = started(f"from {module} import {function}; {function}()")
    maps = Path(f"/proc/{process.pid}/maps")
    try:
        until(lambda: library in maps.read_text(), f"{name} maps {library}")
        process.send_signal(number)
        return process.wait(60), "".join(process.communicate())
    finally:
        process.kill()
        process.communicate()


def test_every_program_is_tried() -> None:
    assert MAPPED.keys() == ENTRIES.keys()


@pytest.mark.skipif(sys.platform != "linux", reason="tells by /proc how far a process has come")
@pytest.mark.parametrize(("name", "library"), [(name, each) for name in MAPPED for each in MAPPED[name]])
def test_ctrl_c_while_a_program_is_imported_ends_it_without_a_word(name: str, library: str) -> None:
    assert interrupted_once_mapped(name, library, signal.SIGINT) == (-signal.SIGINT, "")


@pytest.mark.skipif(sys.platform != "linux", reason="tells by /proc how far a process has come")
def test_sigterm_while_a_program_is_imported_ends_it_without_a_word() -> None:
    assert interrupted_once_mapped("rrl-tune", "cygrpc", signal.SIGTERM) == (-signal.SIGTERM, "")


MAIN = """
import os, signal, sys, types
def main():
    {main}
sys.modules["tried"] = types.ModuleType("tried")
sys.modules["tried"].main = main
from rrl import programs
programs._program("tried")()
os.kill(os.getpid(), signal.SIGINT)
"""


@pytest.mark.parametrize(
    ("main", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGINT)", programs.INTERRUPTED),  # parsing its options, say
        ("raise SystemExit(7)", 7),
        ("pass", -signal.SIGINT),  # the one that comes after it
    ],
)
def test_what_a_program_leaves_to_python_shows_no_traceback_either(main: str, status: int) -> None:
    process = started(MAIN.format(main=main))
    assert ("".join(process.communicate(timeout=60)), process.returncode) == ("", status)


def test_a_program_that_starts_with_ctrl_c_ignored_goes_on() -> None:
    ignores = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    process = started(ignores + MAIN.format(main="os.kill(os.getpid(), signal.SIGINT); print('went on')"))
    assert ("".join(process.communicate(timeout=60)), process.returncode) == ("went on\n", 0)
