"""How the front gets workers of a cluster: in place of a zygote it starts a driver of Ray.

The driver speaks a zygote's protocol at its end of the control channel, and that of each worker at the other
end of the worker's. So all that the front does with workers of its own it does with those of a cluster. Ray
lives in the driver's process alone: it holds up no event loop of the front, and ends with it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence

from serving_adapter import own_process
from serving_adapter.ray_connection import check_installed
from serving_adapter.server.workers.launching import ENVIRONMENT, Launch, ZygoteProcess
from serving_adapter.server.workers.share import ALL, Share

RAY_ENVIRONMENT = {
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of calls to agents that are gone, which the driver knows by others
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables of a driver, unless the front's environment sets them."""


def check_ray(device: str) -> None:
    """ValueError, in one sentence, where there is no Ray, or for a device that its workers do not use."""
    check_installed("--engine ray")
    if device != "cpu":
        raise ValueError(f"--engine ray runs models on CPUs, got --device {device}; use --engine local")


def driver_of(address: str, share: Share = ALL) -> Launch:
    """Starts drivers of the cluster whose head is there; they and their workers end when the front does."""

    async def launch(channel: socket.socket) -> ZygoteProcess:
        channel_fd = str(channel.fileno())
        arguments = (str(os.getpid()), channel_fd, address, str(share.front), str(share.fronts))
        return await asyncio.create_subprocess_exec(
            *own_process.command("serving_adapter.server.ray_engine.driver", *arguments),
            pass_fds=[channel.fileno()],
            env=ENVIRONMENT | RAY_ENVIRONMENT | dict(os.environ),
            stdin=asyncio.subprocess.DEVNULL,
        )

    return launch


async def ask_no_system(pids: Sequence[int], workers: int, threads: int) -> None:
    """In place of `thread_room.try_threads`: the limits of this machine say nothing about other nodes'."""
