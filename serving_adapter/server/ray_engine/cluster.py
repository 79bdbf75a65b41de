"""The nodes of a cluster as the driver sees them: each gets an agent, and loses it when it is gone.

Who dies is noticed by a connection of its workers that ends, or by the next report, which is asked for every
second. An agent that does not report for `REPORT_TIMEOUT_S` hangs, and counts as gone. A node that is alive
and has no agent gets one, so a node that comes back serves again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from serving_adapter.model_store.endpoint import FOLDER_VARIABLE, OFF
from serving_adapter.server.ray_engine.agent import AgentReport, NodeAgent
from serving_adapter.server.ray_engine.link import AgentAddress
from serving_adapter.server.ray_engine.placing import Unplaceable, place
from serving_adapter.server.ray_engine.versions import versions
from serving_adapter.server.workers.messages import (
    BuildError,
    BuildModels,
    ClusterReport,
    ForkWorker,
    ModelDescription,
    NodeUse,
)
from serving_adapter.server.workers.parallelism import NodePlacement
from serving_adapter.server.workers.share import ALL, Share
from serving_adapter.server.workers.zygote_handle import STORE_SHARE

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
REPORT_TIMEOUT_S = 5.0
RETRY_AFTER_S = 5.0  # a node whose agent failed; twice as long each time
RETRY_AT_LEAST_EVERY_S = 60.0
WHY_NICE = "Ray's processes are nice by default; start Ray there with RAY_worker_niceness=0"
OTHERS_TIMEOUT_S = 20.0  # that the first node to have built the models waits for the others at the start


@dataclass(eq=False)
class Node:
    """One node with an agent on it."""

    id: str
    name: str
    cpus: float
    is_home: bool = False  # this process is there, and so is its front, which is one of several
    began_s: float = 0.0  # when it joined, by its own clock
    agent: Any = None
    address: AgentAddress | None = None  # where the agent takes workers' connections
    serves: bool = False  # its agent has built the models
    was_reached: bool = False  # a worker has started there
    workers: dict[int, NodePlacement] = field(default_factory=dict)  # by number
    report: AgentReport | None = None  # the latest

    def worker_count(self, placement: NodePlacement | None = None) -> int:
        if placement is None:
            return len(self.workers)
        return sum(each == placement for each in self.workers.values())


class Cluster:
    """Ray's nodes and their agents; `on_lost` gets a node that served and is gone."""

    def __init__(
        self,
        address: str,
        order: BuildModels,
        on_lost: Callable[[Node], None],
        on_change: Callable[[], None],
        share: Share = ALL,
    ) -> None:
        self.address, self._order, self._share = address, order, share
        self._on_lost, self._on_change = on_lost, on_change
        self.nodes: dict[str, Node] = {}
        self._description: ModelDescription | None = None
        self._attending: dict[str, asyncio.Task[None]] = {}
        self._wait_s: dict[str, float] = {}  # after the next failure of a node's agent
        self._retry_s: dict[str, float] = {}
        self._refused = ""  # why the last agent could not serve
        self._settled = asyncio.Event()  # a node serves, or could not
        self._lost_cpu_s = 0.0

    async def start(self) -> ModelDescription:
        """Waits until nodes serve; Unplaceable, which says why, if none can."""
        await self._look()
        if not self.nodes:
            raise Unplaceable(f"the cluster at {self.address} has no node with a CPU")
        deadline_s = None
        while self._attending:
            waiting = [node for node in self.nodes.values() if not node.serves]
            if not waiting or (deadline_s is not None and time.monotonic() > deadline_s):
                break
            if self._description is not None and deadline_s is None:
                deadline_s = time.monotonic() + OTHERS_TIMEOUT_S
            self._settled.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), LOOK_EVERY_S)
        if self._description is None:
            raise Unplaceable(self._refused or f"no node of the cluster at {self.address} answers")
        self._watching = asyncio.create_task(self._watch())
        return self._description

    def place(self, order: ForkWorker) -> tuple[Node, ...]:
        """The node for one more worker, or those of a unit's members; Unplaceable for none."""
        serving = [node for node in self.nodes.values() if node.serves]
        return place(serving, order.instances, order.placement, self.address, self._share)

    def lose(self, node: Node) -> None:
        """Its agent is gone, or of no use: its workers are none any more, and it may get another."""
        if self.nodes.get(node.id) is not node:
            return
        del self.nodes[node.id]
        if node.was_reached:
            self._wait_s.pop(node.id, None)
        else:
            wait_s = self._wait_s.get(node.id, RETRY_AFTER_S)
            self._retry_s[node.id] = time.monotonic() + wait_s
            self._wait_s[node.id] = min(2 * wait_s, RETRY_AT_LEAST_EVERY_S)
        if node.report is not None:
            self._lost_cpu_s += node.report.cpu_s
        if (attending := self._attending.pop(node.id, None)) is not None:
            attending.cancel()
        if node.serves:
            log.warning("node %s is gone, with %d workers", node.name, node.worker_count())
            self._on_lost(node)
        if node.agent is not None:
            asyncio.get_running_loop().run_in_executor(None, _kill, node.agent)
        self._settled.set()
        self._on_change()

    def report(self) -> ClusterReport:
        """What the front tells of the cluster."""
        nodes, cpu_s = [], self._lost_cpu_s
        for node in self.nodes.values():
            if node.serves:
                told = node.report or AgentReport(0.0, 0, 0, 0)
                cpu_s += told.cpu_s
                nodes.append(
                    NodeUse(node.name, node.cpus, node.worker_count(), told.store_hits, told.store_misses)
                )
        return ClusterReport(tuple(nodes), cpu_s)

    # --- nodes that come and go --------------------------------------------------------------------

    async def _watch(self) -> None:
        answers = True
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self._look()
                answers = True
            except Exception as error:  # whatever Ray raises where its head is gone: who serves goes on
                if answers:
                    log.warning("the head of the cluster at %s does not answer: %s", self.address, error)
                answers = False

    async def _look(self) -> None:
        """Gives an agent to each node that has none."""
        import ray

        known = await asyncio.to_thread(ray.nodes)
        alive = {each["NodeID"]: each for each in known if each["Alive"] and each["Resources"].get("CPU")}
        for gone in [node for node in self.nodes.values() if node.id not in alive]:
            self.lose(gone)
        names = [_name(each) for each in alive.values()]
        for node_id, told in alive.items():
            if node_id in self.nodes or self._retry_s.get(node_id, 0.0) > time.monotonic():
                continue
            name = _name(told)
            if names.count(name) > 1:
                name = f"{name}:{told['NodeManagerPort']}"
            is_home = self._share != ALL and node_id == ray.get_runtime_context().get_node_id()
            node = self.nodes[node_id] = Node(node_id, name, told["Resources"]["CPU"], is_home)
            self._attending[node_id] = asyncio.create_task(self._attend(node))

    async def _attend(self, node: Node) -> None:
        """Has an agent build the models on a node, and asks it for reports until it is gone."""
        try:
            node.agent = await asyncio.to_thread(_new_agent, node.id)
            await self._build(node)
            while node.serves:
                report = await asyncio.wait_for(node.agent.report.remote(), REPORT_TIMEOUT_S)
                if node.report is None and report.niceness:
                    log.info("on node %s other programs go first: %s", node.name, WHY_NICE)
                node.report = report
                self._on_change()
                await asyncio.sleep(LOOK_EVERY_S)
        except Exception as error:  # Ray's, a time-out, or a node without this package: it does not serve
            self._refused = _first_line(node, error)
            log.log(logging.INFO if node.serves else logging.WARNING, "%s", self._refused)
        self._attending.pop(node.id, None)
        self.lose(node)

    async def _build(self, node: Node) -> None:
        start_timeout_s = self._order.store_patience_s / STORE_SHARE
        uses_store = os.environ.get(FOLDER_VARIABLE) != OFF
        built = node.agent.start.remote(self._order, start_timeout_s, uses_store, versions())
        reply, node.address, node.began_s = await asyncio.wait_for(built, start_timeout_s)
        if isinstance(reply, BuildError):
            self._refused = reply.error
            log.warning("node %s cannot serve: %s", node.name, reply.error)
        elif self._description is not None and not reply.may_be_of_one_with(self._description):
            log.warning("node %s cannot serve: its model has other inputs or outputs", node.name)
        else:
            self._description, node.serves = reply, True
            self._on_change()
        self._settled.set()


def _name(told: dict[str, Any]) -> str:
    return str(told.get("NodeName") or told["NodeManagerAddress"])


def _first_line(node: Node, error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    told = f"{lines[0]} ... {lines[-1]}" if len(lines) > 1 else "".join(lines)
    return f"the agent on node {node.name} ended ({type(error).__name__}: {told})"


@cache
def _agents() -> Any:
    """Agents as Ray's actors; Ray is told once what they are."""
    import ray

    return ray.remote(num_cpus=0, max_restarts=0, max_task_retries=0)(NodeAgent)


def _new_agent(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return _agents().options(scheduling_strategy=there).remote()


def _kill(agent: Any) -> None:
    import ray

    with contextlib.suppress(Exception):  # it is gone already
        ray.kill(agent)
