"""How a zygote comes into being: as a process, or as whatever a simulator puts at the channel's other end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Protocol

from serving_adapter import own_process

ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait steal the cores of other workers
    "OPENBLAS_NUM_THREADS": "1",  # or importing NumPy starts a thread, and a zygote must have one only
    "MALLOC_MMAP_MAX_": "0",  # freed memory stays with the worker: no page faults batch after batch
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
}
"""Variables that a zygote and its workers run with, unless the front's environment sets them."""


class ZygoteProcess(Protocol):
    """What the front needs of the process that it started; `asyncio.subprocess.Process` is one."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Returns once the process has ended."""

    def kill(self) -> None: ...


Launch = Callable[[socket.socket], Awaitable[ZygoteProcess]]
"""Starts a zygote that serves the given end of its control channel. The caller closes its own copy."""


async def launch_zygote(channel: socket.socket) -> ZygoteProcess:
    """Starts the process; it and its workers end when the front does."""
    return await asyncio.create_subprocess_exec(
        *own_process.command(
            "serving_adapter.server.workers.zygote", str(os.getpid()), str(channel.fileno())
        ),
        pass_fds=[channel.fileno()],
        env=ENVIRONMENT | dict(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
    )
