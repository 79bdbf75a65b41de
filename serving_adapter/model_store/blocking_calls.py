"""The threads in which the store waits for disks, networks and the GPU, so that its event loop never does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

# Threads are started as they are needed. A client has two readings at a time (`MAX_READS_PER_CLIENT`), so
# those that hang take threads from nobody else. The number of clients bounds them, and this is beyond it.
MAX_THREADS = 1 << 14

Result = TypeVar("Result")


class BlockingCalls:
    """Runs functions that block in threads of the store's own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="rrl-store")

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def shut_down(self) -> None:
        """Waits for nothing: a thread may hang on a client's file."""
        self._threads.shutdown(wait=False, cancel_futures=True)
