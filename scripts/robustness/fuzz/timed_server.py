"""`rrl-serve` with a clock on every callback of its event loop, told to a file as JSON lines.

    python -m scripts.robustness.fuzz.timed_server FILE [options of rrl-serve]

A callback's time is that of the loop's thread on a processor, plus the time in which it waited for anything
but a processor. So what other programs take of the machine does not count. They may take it from another
thread, though, which holds the interpreter's lock meanwhile: on a busy machine give the server priority, as
by `chrt -a -R -r -p 1 PID`. It runs on asyncio's own loop, because uvloop's callbacks cannot be wrapped; what
they do is the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

from serving_adapter.options import parse
from serving_adapter.server import command_line
from serving_adapter.server.options import ServeOptions

TOLD_FROM_NS = 20_000_000  # callbacks that take as long are told
MOST_TOLD = 10_000


class CallbackClock:
    """Times the callbacks of the thread it is started in."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._told = 0

    def start(self) -> None:
        run = asyncio.Handle._run

        def timed(handle: asyncio.Handle) -> None:
            before_ns, waited_ns = time.monotonic_ns(), self._waited_for_a_processor_ns()
            run(handle)
            wall_ns = time.monotonic_ns() - before_ns
            if wall_ns >= TOLD_FROM_NS:
                own_ns = wall_ns - (self._waited_for_a_processor_ns() - waited_ns)
                if own_ns >= TOLD_FROM_NS:
                    self._tell(handle, before_ns, own_ns)

        setattr(asyncio.Handle, "_run", timed)  # noqa: B010  # a plain assignment is one to a method

    def _waited_for_a_processor_ns(self) -> int:
        return int(os.pread(self._schedule, 128, 0).split()[1])

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
