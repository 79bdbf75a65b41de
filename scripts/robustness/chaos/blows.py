"""Blows to processes: SIGKILL, or SIGSTOP and SIGCONT some time later, to one of a drawn role."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import psutil

from scripts.robustness.chaos.server import ChaosServer


class Blow(NamedTuple):
    """One kind of blow, how often it is drawn, and how long a stop lasts on average."""

    role: str
    deed: str
    weight: float
    mean_stop_s: float = 0.0


BLOWS = (
    Blow("worker", "kill", 42),
    Blow("worker", "stop", 26, 1.0),  # some for longer than a worker may hold a batch
    Blow("zygote", "kill", 7),
    Blow("zygote", "stop", 7, 0.7),
    Blow("store", "kill", 6),
    Blow("store", "stop", 5, 0.7),
    Blow("server", "kill", 2),
    Blow("server", "stop", 5, 0.4),
)


class Blows:
    """Draws blows and deals them; `dealt` counts those that met somebody."""

    def __init__(self, server: ChaosServer, draw: random.Random) -> None:
        self._server, self._draw = server, draw
        self.dealt: Counter[str] = Counter()
        self._resuming: set[asyncio.Task[None]] = set()

    async def deal(self) -> bool:
        """One blow; False if nobody of the drawn role is there, as a store that nobody has needed since."""
        (blow,) = self._draw.choices(BLOWS, [blow.weight for blow in BLOWS])
        if blow.role == "server" and blow.deed == "kill":
            await self._server.kill_and_start()
        else:
            process = self._victim(blow.role)
            if process is None:
                return False
            if blow.deed == "kill":
                _signalled(process.kill)
            else:
                await self._stop(process, self._draw.expovariate(1 / blow.mean_stop_s))
        self.dealt[f"{blow.role} {blow.deed}"] += 1
        return True

    def _victim(self, role: str) -> psutil.Process | None:
        if role == "server":
            return self._server.process()
        there = getattr(self._server, f"{role}s")()
        return self._draw.choice(sorted(there, key=lambda process: process.pid)) if there else None

    async def _stop(self, process: psutil.Process, lasts_s: float) -> None:
        _signalled(process.suspend)
        task = asyncio.create_task(self._resume(process, lasts_s))
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)

    async def _resume(self, process: psutil.Process, after_s: float) -> None:
        await asyncio.sleep(after_s)
        _signalled(process.resume)

    async def over(self) -> None:
        """Returns when nobody is stopped any more."""
        await asyncio.gather(*self._resuming)


def _signalled(send: Callable[[], None]) -> None:
    """psutil looks at the time of birth too, so a number given to another process is not signalled."""
    with contextlib.suppress(psutil.Error):
        send()
