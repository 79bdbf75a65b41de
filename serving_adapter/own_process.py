"""A module of this project as a process of its own, which ends with its parent where it is to.

`python -m` alone puts the current directory before the standard library. There a `json.py` of anybody's would
run with the rights of whoever starts a server.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def command(module: str, *arguments: str) -> list[str]:
    """What runs a module, which the current directory has no part in."""
    return [sys.executable, "-P", "-m", module, *arguments]


def command_for_child(module: str, *arguments: str) -> list[str]:
    """The same for a process that SIGTERM reaches when the one that calls this ends."""
    return command(__name__, str(os.getpid()), module, *arguments)


def end_with_parent(parent_pid: int, signal_number: int) -> None:
    """Has the kernel signal this process when that parent ends, or at once if it has ended (Linux only)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)


def main() -> None:
    parent_pid, module = int(sys.argv[1]), sys.argv[2]
    end_with_parent(parent_pid, signal.SIGTERM)
    sys.argv[:3] = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
