"""`rrl-serve` with a clock on every callback of its event loop, told to a file as JSON lines.

    python -m scripts.robustness.fuzz.server.timed_server FILE [options of rrl-serve]

A callback's time is that of the loop's thread on a processor, or more: all of its time but that in which any
thread of the server waited for a processor. So what other programs take of the machine does not count, not
even where they take it from another thread that holds the interpreter's lock. It runs on asyncio's own loop,
because uvloop's callbacks cannot be wrapped; what they do is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path

from serving_adapter.flags.parsing import parse
from serving_adapter.server import command_line
from serving_adapter.server.options import ServeOptions

TOLD_FROM_NS = 20_000_000  # callbacks that take as long are told
MOST_TOLD = 10_000
LOOK_AGAIN_NS = 10_000_000  # between two looks at what threads waited for, before callbacks


def _waits_ns() -> dict[str, int]:
    """How long each thread of this process has waited for a processor, by its id."""
    found = {}
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended
            found[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
    return found


class CallbackClock:
    """Times the callbacks of the thread it is started in."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._waits_ns: dict[str, int] = {}  # of every thread, some time before a callback
        self._looked_ns = 0
        self._told = 0

    def start(self) -> None:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            before_ns = time.monotonic_ns()
            if before_ns - self._looked_ns > LOOK_AGAIN_NS:
                self._waits_ns, self._looked_ns = _waits_ns(), before_ns
            ran_ns = self._ran_ns()
            run(handle)
            wall_ns = time.monotonic_ns() - before_ns
            if wall_ns >= TOLD_FROM_NS:
                own_ns = max(self._ran_ns() - ran_ns, wall_ns - self._waited_ns())
                if own_ns >= TOLD_FROM_NS:
                    self._tell(handle, before_ns, own_ns)

        setattr(asyncio.Handle, "_run", timed)  # noqa: B010  # a plain assignment is one to a method

    def _ran_ns(self) -> int:
        """The processor time of the thread of the loop."""
        return int(os.pread(self._schedule, 128, 0).split()[0])

    def _waited_ns(self) -> int:
        """How long threads have waited for a processor since the last look: one of them may hold the lock."""
        return sum(max(0, now_ns - self._waits_ns.get(thread, 0)) for thread, now_ns in _waits_ns().items())

    def _tell(self, handle: asyncio.Handle, began_ns: int, own_ns: int) -> None:
        self._told += 1
        if self._told <= MOST_TOLD:
            what = repr(getattr(handle, "_callback", handle))
            line = {"began_ns": began_ns, "own_ms": own_ns / 1e6, "callback": what[:400]}
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()


def main() -> None:
    path = Path(sys.argv[1])
    command_line.logging.basicConfig(level="INFO", format="%(levelname)s %(message)s", stream=sys.stderr)
    options = parse(ServeOptions, sys.argv[2:])
    CallbackClock(path).start()
    asyncio.run(command_line.serve(options))


if __name__ == "__main__":
    main()
