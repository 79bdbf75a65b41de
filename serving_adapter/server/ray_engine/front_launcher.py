"""The process that keeps the other fronts running: one on each of as many nodes, as children of actors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from functools import cache
from typing import Any

from serving_adapter import messages, ray_connection
from serving_adapter.own_process import end_with_parent
from serving_adapter.ray_connection import ClusterError, ClusterNode
from serving_adapter.server.ray_engine.front_host import FrontHost
from serving_adapter.server.ray_engine.front_launching import (
    CPUS,
    ERROR,
    FOLDER,
    HOST,
    NO_MORE,
    NUMBER,
    ORDER,
)
from serving_adapter.server.ray_engine.versions import versions
from serving_adapter.server.server_log import log_to_standard_error
from serving_adapter.standard_streams import ERROR as STANDARD_ERROR
from serving_adapter.standard_streams import keep_standard_streams

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
START_AGAIN_S, START_AGAIN_AT_LEAST_EVERY_S = 1.0, 60.0  # twice as long after each front that ended at once
STEADY_S = 60.0  # a front that ran for so long did not end at once


class FrontLauncher:
    """Serves the first front, at the other end of `control`."""

    def __init__(self, control: socket.socket, address: str) -> None:
        self._control, self._address = control, address
        self._taken: dict[int, str] = {}  # the node of each front, by number
        self._starts_more = True
        self._is_over = asyncio.Event()
        self._keeping: list[asyncio.Task[None]] = []

    async def serve(self) -> None:
        """Until the first front is gone."""
        try:
            ray_connection.connect("--address", self._address)
            for signum in (signal.SIGINT, signal.SIGTERM):  # Ray has its own handler; the first front ends us
                signal.signal(signum, signal.SIG_IGN)
        except ClusterError as error:
            messages.send(self._control, {ERROR: str(error)})
            return
        import ray

        try:
            self._taken[0] = ray.get_runtime_context().get_node_id()
            host, cpus = ray.util.get_node_ip_address(), [node.cpus for node in self._nodes()]
        except Exception as error:  # whatever Ray raises where its head went away just now
            why = f"the head of the cluster at {self._address} went away just now ({type(error).__name__})"
            messages.send(self._control, {ERROR: why})
            return
        messages.send(self._control, {HOST: host, CPUS: cpus})
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._told)
        await self._is_over.wait()

    def _told(self) -> None:
        try:
            told = messages.receive(self._control)
        except BlockingIOError:
            return
        if told is None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._is_over.set()
        elif NO_MORE in told:
            self._starts_more = False
        else:
            self._keeping.append(asyncio.create_task(self._keep(told[NUMBER], told[ORDER], told[FOLDER])))

    async def _keep(self, number: int, order: str, folder: str) -> None:
        """Runs a front on some node again and again, on the same one while that lives."""
        wait_s, node_id = START_AGAIN_S, ""
        while self._starts_more:
            node = await self._free_node(node_id)
            if node is None:
                await asyncio.sleep(LOOK_EVERY_S)
                continue
            node_id = self._taken[number] = node.node_id
            began_s = time.monotonic()
            why = await _run(node_id, order, folder)
            del self._taken[number]
            if self._starts_more:
                log.warning("front %d on the node at %s %s; it is started anew", number + 1, node.host, why)
            wait_s = START_AGAIN_S if time.monotonic() - began_s > STEADY_S else wait_s
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, START_AGAIN_AT_LEAST_EVERY_S)

    async def _free_node(self, preferred: str) -> ClusterNode | None:
        """One that has no front, `preferred` if it may be; None while there is none, or the head is away."""
        try:
            nodes = await asyncio.to_thread(self._nodes)
        except Exception as error:  # whatever Ray raises where its head is gone
            log.info("the nodes are not known: %s", error)
            return None
        free = [node for node in nodes if node.node_id not in self._taken.values()]
        return min(free, key=lambda node: node.node_id != preferred, default=None)

    @staticmethod
    def _nodes() -> list[ClusterNode]:
        return [node for node in ray_connection.nodes() if node.cpus]


async def _run(node_id: str, order: str, folder: str) -> str:
    """Runs a front on a node to its end; says how it ended."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    host = None
    try:
        host = await asyncio.to_thread(lambda: _hosts().options(scheduling_strategy=there).remote())
        end = await host.run.remote(order, folder, versions())
    except Exception as error:  # Ray's: the actor is gone, or its node
        return f"is gone ({type(error).__name__})"
    finally:
        if host is not None:
            asyncio.get_running_loop().run_in_executor(None, _kill, host)
    return f"ended with status {end.exit_status}: {end.last_line}"


@cache
def _hosts() -> Any:
    import ray

    return ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(FrontHost)


def _kill(host: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # it is gone already
        ray.kill(host)


def main() -> None:
    for signum in (signal.SIGINT, signal.SIGTERM):  # sent to the whole group, they are the front's to handle
        signal.signal(signum, signal.SIG_IGN)
    end_with_parent(int(sys.argv[1]), signal.SIGKILL)
    keep_standard_streams(prints_to=STANDARD_ERROR)
    log_to_standard_error()
    launcher = FrontLauncher(socket.socket(fileno=int(sys.argv[2])), sys.argv[3])
    asyncio.run(launcher.serve())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
