"""A real cluster of Ray on this machine: a head and more nodes, each with processes of its own.

The nodes are ended by their process ids. `ray stop` would end those of other people, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

CHECKOUT = Path(__file__).resolve().parent.parent
HOSTS = "127.0.0."  # and 3 for the next node; Ray takes 127.0.0.1 for the address of the network
HEAD, HEAD_HOST, HEAD_SERVICE = "head", f"{HOSTS}2", "gcs_server"
DASHBOARD_HOST = "127.0.0.1"
STARTED = "Ray runtime started"
TOO_SLOW, STARTS = "timed out during startup", 3
OBJECT_STORE_BYTES = 100 << 20
LOOK_EVERY_S = 0.01  # for what a process does by itself; Ray itself ends a node that does not start
SHORT_FOLDER = "/tmp"  # A socket's path may have 107 bytes, and Ray's own part of it takes 70.

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_metrics_report_interval_ms": "1000",  # counters a test need not wait for
    "RAY_SERVE_EVENT_LOOP_MONITORING_INTERVAL_S": "0.5",  # nor for those of a process that has nothing to do
    "RAY_SERVE_REQUEST_LATENCY_BUCKETS_MS": ",".join(str(round(1.3**step)) for step in range(4, 40)),
    "RAY_worker_niceness": "0",  # else whatever runs beside a test goes before the nodes
    "RAY_memory_monitor_refresh_ms": "0",  # no worker is killed because this machine's memory is short
    "RAY_health_check_period_ms": "500",  # a node that died is missed soon
    "RAY_health_check_failure_threshold": "4",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Code of the checkout, the tests' included, and no package of another name.
    "PYTHONPATH": str(CHECKOUT),
}


class SlowNode(RuntimeError):
    """Ray did not wait for it any longer."""


@dataclass(frozen=True)
class RayNode:
    """One node; its processes are those of a session of its own."""

    name: str
    process: subprocess.Popen[bytes]  # of `ray start --block`, the parent of the others
    host: str
    cpus: int
    log: Path

    @property
    def runs(self) -> bool:
        """Whether Ray still has it: what ends its node ends the process that started that, too."""
        return self.process.poll() is None

    def process_ids(self) -> list[int]:
        """Of all that is left of it."""
        found = []
        for process_id in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(process_id) == self.process.pid:
                    found.append(process_id)
        return found

    def raylet(self) -> psutil.Process:
        """The process that is the node for Ray."""
        return self.process_named("raylet")

    def process_named(self, name: str) -> psutil.Process:
        for process_id in self.process_ids():
            with contextlib.suppress(psutil.Error):
                if psutil.Process(process_id).name() == name:
                    return psutil.Process(process_id)
        raise RuntimeError(f"{self.name} has no {name}: {self.log.read_text(errors='replace')}")


@dataclass
class RayCluster:
    """`start()` first, `end()` last. More nodes join and die in between."""

    cpus: int = 2  # of the head
    settings: Mapping[str, str] = field(default_factory=dict)  # more of the environment of every process
    nodes: list[RayNode] = field(default_factory=list)  # the head first

    def __post_init__(self) -> None:
        port, self.dashboard_port, self.client_port = free_ports(3)
        self.address = f"{HEAD_HOST}:{port}"
        self.dashboard = f"{DASHBOARD_HOST}:{self.dashboard_port}"
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir=SHORT_FOLDER))
        self._started = 1

    def start(self, dashboard: bool = True) -> RayCluster:
        self._start_node(
            HEAD,
            self.cpus,
            {},
            "--head",
            f"--port={self.address.rpartition(':')[2]}",
            f"--include-dashboard={dashboard}",
            f"--dashboard-host={DASHBOARD_HOST}",
            f"--dashboard-port={self.dashboard_port}",
            f"--ray-client-server-port={self.client_port}",
        )
        return self

    def add_node(
        self,
        cpus: int = 2,
        resources: Mapping[str, float] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> RayNode:
        """A node that has joined, with `settings` in its environment.

        `resources` has names of a test's own, by which it places what it runs.
        """
        flags = (f"--address={self.address}", f"--resources={json.dumps(dict(resources or {}))}")
        return self._start_node("node", cpus, settings or {}, *flags)

    def mend(self, count: int = 2) -> None:
        """So many nodes again, all as the head; the head itself cannot be replaced."""
        for node in reversed(self.nodes[1:]):
            if len(self.nodes) > count or not node.runs or node.cpus != self.cpus:
                self._end(node)
        while len(self.nodes) < count:
            self.add_node(self.cpus)

    def kill(self, node: RayNode) -> None:
        """As when a machine loses its power: nothing of it says good-bye."""
        with contextlib.suppress(RuntimeError, psutil.Error):
            node.raylet().kill()
        self._end(node)

    def stop(self, node: RayNode) -> None:
        """As when its network is cut: nothing of it says anything, and its connections stay."""
        for process_id in node.process_ids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process_id, signal.SIGSTOP)

    def kill_head_service(self) -> None:
        """As when a head dies that is another machine than this one, whose node is left without it."""
        head = self.nodes[0]
        os.kill(head.process.pid, signal.SIGSTOP)  # It would end the node with the service.
        head.process_named(HEAD_SERVICE).kill()

    def end(self) -> None:
        for node in reversed(self.nodes.copy()):
            self._end(node)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start_node(self, kind: str, cpus: int, settings: Mapping[str, str], *flags: str) -> RayNode:
        """Ray gives up on a node that has not joined within 30 s; on a busy machine the next one may."""
        for _ in range(STARTS - 1):
            with contextlib.suppress(SlowNode):
                return self._try_node(kind, cpus, settings, *flags)
        return self._try_node(kind, cpus, settings, *flags)

    def _try_node(self, kind: str, cpus: int, settings: Mapping[str, str], *flags: str) -> RayNode:
        self._started += 1
        name = f"{kind}-{self._started}"
        host = HEAD_HOST if kind == HEAD else f"{HOSTS}{self._started}"
        folder = self._folder / str(self._started)
        folder.mkdir()
        log = self._folder / f"{name}.log"
        (agent_port,) = free_ports(1)
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *flags]
        command += [f"--node-ip-address={host}", f"--node-name={name}", f"--num-cpus={cpus}", "--num-gpus=0"]
        command += [f"--object-store-memory={OBJECT_STORE_BYTES}", f"--temp-dir={folder}"]
        command += ["--min-worker-port=0", "--max-worker-port=0"]  # any that is free
        command += [f"--dashboard-agent-listen-port={agent_port}", "--disable-usage-stats"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **SETTINGS, **self.settings, **settings},
                start_new_session=True,
            )
        node = RayNode(name, process, host, cpus, log)
        self.nodes.append(node)
        while process.poll() is None and STARTED not in log.read_text(errors="replace"):
            time.sleep(LOOK_EVERY_S)
        if process.poll() is not None:
            self._end(node)
            said = log.read_text(errors="replace")
            raise (SlowNode if TOO_SLOW in said else RuntimeError)(f"{name} did not start: {said}")
        return node

    def _end(self, node: RayNode) -> None:
        while left := node.process_ids():
            for process_id in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            node.process.poll()  # takes it off the list of processes
            time.sleep(LOOK_EVERY_S)  # the system's own time to end them
        node.process.wait()
        if node in self.nodes:
            self.nodes.remove(node)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, on any address."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
