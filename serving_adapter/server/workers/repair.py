"""What has to be brought back is tried again and again, ever more seldom, until it works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

FIRST_REPAIR_DELAY_S, MAX_REPAIR_DELAY_S = 0.1, 5.0


class Repair:
    """Brings the workers of a pool back, in one task at a time; `attempt` says whether all are there."""

    def __init__(self, attempt: Callable[[], Awaitable[bool]]) -> None:
        self._attempt = attempt
        self._task: asyncio.Task[None] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._until_it_works())

    def cancel(self) -> None:
        """For good. An attempt that swallows its cancellation, as `wait_for` may, is the last one."""
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    async def _until_it_works(self) -> None:
        delay_s = FIRST_REPAIR_DELAY_S
        while not await self._is_over(delay_s):
            await asyncio.sleep(delay_s)
            delay_s = min(MAX_REPAIR_DELAY_S, 2 * delay_s)

    async def _is_over(self, delay_s: float) -> bool:
        """Makes one attempt; whether it is the last one."""
        try:
            works = await self._attempt()
        except Exception as error:  # whatever it is, nobody else would try again
            works = False
            if not self._is_cancelled:
                log.error("workers could not be replaced (%s); trying again in %.1f s", error, delay_s)
        return works or self._is_cancelled
