"""A program that tells how many threads it could start; it imports little, since a change waits for it."""

from __future__ import annotations

import sys
import threading

STACK_BYTES = 1 << 16


def start_threads(wanted: int) -> int:
    """Has so many threads at once, this one included; returns how many there could be."""
    threading.stack_size(STACK_BYTES)
    over, started = threading.Event(), 1
    try:
        while started < wanted:
            threading.Thread(target=over.wait).start()
            started += 1
    except RuntimeError:  # the system refuses
        pass
    over.set()
    return started


if __name__ == "__main__":
    print(start_threads(int(sys.argv[1])))
