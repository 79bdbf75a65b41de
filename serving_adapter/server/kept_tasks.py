"""Tasks that nobody awaits, kept until they are done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class KeptTasks:
    """Does several things beside what else goes on. The event loop alone might let go of one that waits."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
