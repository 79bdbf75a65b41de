"""How the first front has others started on nodes: by a process of its own, in which Ray lives.

    launcher -> first   the address of this node, and the CPUs of each of all nodes; or an error
    first -> launcher   an order for each of the others, and at the end that no more are to be started

The launcher starts a front anew where it ended, and ends with the first front, and with it the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from asyncio.subprocess import Process
from collections.abc import Sequence
from typing import Any

from serving_adapter import messages, own_process
from serving_adapter.server.ray_engine.launching import RAY_ENVIRONMENT
from serving_adapter.server.ray_engine.placing import Unplaceable, check_fronts
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.parallelism import Parallelism

log = logging.getLogger(__name__)

LAUNCH_AGAIN_S = 5.0
END_TIMEOUT_S = 5.0
HOST, CPUS, ERROR = "host", "cpus", "error"
NUMBER, ORDER, FOLDER, NO_MORE = "number", "order", "folder", "no_more"
"""The fields of the messages."""


class FrontsOnNodes:
    """The launcher, from `open` to `close`; one that ends by itself is started again.

    The fronts share out the instances of `parallelism`.
    """

    def __init__(self, address: str, fronts: int, parallelism: Parallelism) -> None:
        self._address, self._fronts, self._parallelism = address, fronts, parallelism
        self._orders: list[dict[str, Any]] = []
        self._process: Process | None = None
        self._channel: socket.socket | None = None
        self._watching: asyncio.Task[None] | None = None

    async def open(self) -> str:
        """The address of this node; ModelFailed, in one sentence, where there are no such fronts."""
        said = await self._launch()
        if HOST not in said:
            raise ModelFailed(said.get(ERROR, "the process that starts the other fronts ended"))
        instances, placement = self._parallelism.instances, self._parallelism.placement
        try:
            check_fronts(said[CPUS], self._fronts, instances, placement, self._address)
        except Unplaceable as error:
            raise ModelFailed(str(error)) from None
        return str(said[HOST])

    def start(self, orders: Sequence[str]) -> None:
        """Has the other fronts started, and started anew whenever one ends."""
        self._orders = [
            {NUMBER: number, ORDER: order, FOLDER: os.getcwd()}
            for number, order in enumerate(orders, start=1)
        ]
        self._say_orders()
        self._watching = asyncio.create_task(self._watch())

    def start_no_more(self) -> None:
        """A front that ends from now on is over."""
        if self._watching is not None:
            self._watching.cancel()
        self._say({NO_MORE: True})

    async def close(self) -> None:
        """Ends the launcher, and what is left of the fronts."""
        if self._channel is not None:
            self._channel.close()
        if self._process is None:
            return
        try:
            await asyncio.wait_for(self._process.wait(), END_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _launch(self) -> dict[str, Any]:
        """What a new launcher answers, or why there is none; empty if it ends before."""
        if self._channel is not None:
            self._channel.close()
        try:
            self._channel, theirs = messages.socket_pair()
            with theirs:
                arguments = (str(os.getpid()), str(theirs.fileno()), self._address)
                self._process = await asyncio.create_subprocess_exec(
                    *own_process.command("serving_adapter.server.ray_engine.front_launcher", *arguments),
                    pass_fds=[theirs.fileno()],
                    env=RAY_ENVIRONMENT | dict(os.environ),
                    stdin=asyncio.subprocess.DEVNULL,
                )
            return await asyncio.to_thread(messages.receive, self._channel) or {}
        except (OSError, RuntimeError, ValueError) as error:  # no process, no thread, no answer
            why = getattr(error, "strerror", None) or error
            return {ERROR: f"the process that starts other fronts cannot run ({why})"}

    async def _watch(self) -> None:
        """The fronts end with a launcher, and come back with the next one."""
        while True:
            assert self._process is not None
            status = await self._process.wait()
            log.warning("the process that starts the other fronts ended with status %d", status)
            said: dict[str, Any] = {}
            while HOST not in said:
                await asyncio.sleep(LAUNCH_AGAIN_S)
                said = await self._launch()
                if ERROR in said:
                    log.warning("the other fronts cannot be started: %s", said[ERROR])
            self._say_orders()

    def _say_orders(self) -> None:
        for order in self._orders:
            self._say(order)

    def _say(self, message: dict[str, Any]) -> None:
        if self._channel is not None:
            with contextlib.suppress(OSError):  # it ended, as its watcher sees
                messages.send(self._channel, message)
