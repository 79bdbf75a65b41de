"""Work on large tensors, in threads beside the event loop: numpy does it without the interpreter's lock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from serving_adapter.server.workers.handles import WorkerHandle

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


def copied_aside(
    worker: WorkerHandle, copy: Callable[[], R], then: Callable[[asyncio.Future[R]], None]
) -> bool:
    """Has a thread copy the batch that a worker holds, in or out, and then goes on with it; False for none.

    The worker waits meanwhile. If it ends, its batch runs elsewhere, and nothing goes on here.
    """
    copying, job = in_a_thread(copy), worker.job
    if copying is None:
        return False

    def copied(copying: asyncio.Future[R]) -> None:
        worker.is_copied = False
        if worker.job is job and not copying.cancelled():
            then(copying)

    worker.is_copied = True
    copying.add_done_callback(copied)
    return True
