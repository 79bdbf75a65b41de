"""Work on large tensors, in threads beside the event loop: numpy does it without the interpreter's lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

MOST_BYTES_ON_LOOP = 4 << 20
"""The event loop goes through so many in 2 ms. A thread takes more."""


def in_a_thread(work: Callable[[], R]) -> asyncio.Future[R] | None:
    """What a thread makes of it; None, and the work is not done, if no thread is to be had."""
    is_given_up = threading.Event()

    def unless_given_up() -> R:
        if is_given_up.is_set():  # an executor keeps what it had no thread for, for one that gets free
            raise asyncio.CancelledError
        return work()

    try:
        return asyncio.get_running_loop().run_in_executor(None, unless_given_up)
    except RuntimeError:
        is_given_up.set()
        return None
