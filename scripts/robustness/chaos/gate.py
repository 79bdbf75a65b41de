"""Many may act at once, or one alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Those who act pass it together; who wants to be alone waits for them, and they wait for that one."""

    def __init__(self) -> None:
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()
        self._acting = 0

    @asynccontextmanager
    async def together(self) -> AsyncIterator[None]:
        await self._open.wait()
        self._acting += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._acting -= 1
            if not self._acting:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()
