"""Jobs as tasks of a Ray cluster: the same jobs, with the same answers, on the nodes of several machines.

| what | how |
|---|---|
| files | this machine has them: a job's are read before it is sent, and written when its result is here |
| code | each node must run the code and libraries of this machine; our own is brought where it differs |
| threads | one a job, as on this machine; a node runs as many jobs at once as it has CPUs |
| a node or worker that dies | its jobs run again elsewhere, each at most `RETRIES` times |
| the end of the block, Ctrl-C | the cluster ends what still runs for this program |
"""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from baselines.comparison import on_node
from baselines.comparison.on_node import OWN_CODE, Versions, differing
from baselines.comparison.same_code import code_in_one_folder, other_code, own_packages
from baselines.comparison.workers import (
    LOOK_UP_S,
    THREAD_LIMITS,
    FiledJob,
    Job,
    JobExecutor,
    WorkerDied,
    Workers,
)
from serving_adapter import ray_connection
from serving_adapter.ray_connection import ClusterError, ClusterNode
from serving_adapter.resources import cores

RETRIES = 10
FIRST_TASK_S = 120.0  # a node starts a process for it, on a busy machine slowly
QUEUED_PER_CPU = 2  # so that no CPU waits for this machine to send it something
LOOK_S = 1.0  # from one look at the cluster to the next
HEAD_PATIENCE_S = 30.0  # Ray would end this process after a minute
ENVIRONMENT = dict.fromkeys(THREAD_LIMITS, "1")
ASKED = "--ray"


class RayWorkers:
    """The nodes of a cluster, from the beginning to the end of the `with` block.

    Ctrl-C raises where jobs are waited for, and at the end of the block: Ray is left in order. A second one
    raises wherever it comes.
    """

    def __init__(self, address: str, at_once: int | None = None) -> None:
        self._address, self._at_once = address, at_once
        self._interrupted = self._hears_interrupts = False
        self._packages = own_packages()
        self._expected: Versions = {}
        self._worked: Any = None  # the remote function
        self._room = at_once or 1  # how many jobs may have been sent
        self._head_seen_s = self._next_look_s = 0.0

    def __enter__(self) -> RayWorkers:
        """ClusterError with one sentence where the cluster does not suit."""
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            self._hears_interrupts = True
        try:
            self._connect()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        if error is None and self._interrupted:
            raise KeyboardInterrupt

    def run(self, jobs: Sequence[Job], on_done: Callable[[Any, Any], None]) -> None:
        """Runs the jobs, begun in their order, and calls `on_done(job, answer)` as each ends."""
        from ray.exceptions import RayError

        waiting, running = deque(jobs), dict[Any, Job]()
        try:
            while waiting or running:
                self._look_at_cluster()
                for _ in range(min(self._room - len(running), len(waiting))):
                    job = waiting.popleft()
                    running[self._begun(job)] = job
                for task in self._ended_of(list(running)):
                    job = running.pop(task)
                    on_done(job, self._answer(job, task))
        except RayError as error:
            raise WorkerDied(f"the Ray cluster lost a job for good: {_first_line(error)}") from error

    def _connect(self) -> None:
        ray_connection.connect(ASKED, self._address, ENVIRONMENT)
        import ray
        from ray import cloudpickle

        cloudpickle.register_pickle_by_value(on_node)
        self._expected = on_node.versions(self._packages)
        nodes = ray_connection.nodes()
        self._check_cpus(nodes)
        found = self._versions(nodes)
        if any(each[OWN_CODE] != self._expected[OWN_CODE] for each in found.values()):
            ray_connection.disconnect()
            with code_in_one_folder(self._packages) as folder:
                ray_connection.connect(ASKED, self._address, ENVIRONMENT, str(folder))
            found = self._versions(ray_connection.nodes())
        for node, each in found.items():
            if differing(each, self._expected):
                raise ClusterError(other_code(node.host, each, self._expected))
        self._worked = ray.remote(num_cpus=1, max_retries=RETRIES)(on_node.worked)
        self._head_seen_s = time.monotonic()

    def _check_cpus(self, nodes: Sequence[ClusterNode]) -> None:
        cpus = sum(int(node.cpus) for node in nodes)
        if cpus < max(self._at_once or 1, 1):
            asked = f", and --processes asks for {self._at_once}" if self._at_once and cpus else ""
            fewer = "give fewer --processes, or " if asked else ""
            raise ClusterError(
                f"the Ray cluster at {self._address} has {cpus} CPUs for jobs{asked}: "
                f"{fewer}start more nodes with ray start --num-cpus"
            )

    def _versions(self, nodes: Sequence[ClusterNode]) -> dict[ClusterNode, Versions]:
        """What each node that has CPUs runs. One that dies meanwhile is none."""
        import ray
        from ray.exceptions import RayError, RayTaskError, RuntimeEnvSetupError
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask = ray.remote(num_cpus=0)(on_node.versions)
        asked = {}
        for node in (each for each in nodes if each.cpus >= 1):
            there = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
            asked[node] = ask.options(scheduling_strategy=there).remote(self._packages)
        until_s = time.monotonic() + FIRST_TASK_S
        found = {}
        for node, task in asked.items():
            while not self._ended_of([task]):
                if time.monotonic() > until_s:
                    raise ClusterError(
                        f"the node at {node.host} of the Ray cluster began no task in {FIRST_TASK_S:.0f} s: "
                        "see ray status, and the logs of that node"
                    )
            try:
                found[node] = ray.get(task)
            except RayTaskError as error:
                raise ClusterError(f"the node at {node.host} cannot tell its code: {error.cause}") from error
            except RuntimeEnvSetupError as error:
                raise ClusterError(
                    f"the node at {node.host} cannot be set up: {_first_line(error)}"
                ) from error
            except RayError:
                continue
        return found

    def _ended_of(self, tasks: list[Any]) -> list[Any]:
        """One that has ended, if any has or soon does."""
        import ray

        if self._interrupted:
            raise KeyboardInterrupt
        ended: list[Any] = ray.wait(tasks, num_returns=1, timeout=LOOK_UP_S)[0]
        return ended

    def _look_at_cluster(self) -> None:
        """Now and then, as nodes come and go; WorkerDied once its head has not answered for long."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        if ray_connection.head_answers(self._address):
            self._head_seen_s = now_s
            if self._at_once is None:
                cpus = sum(int(node.cpus) for node in ray_connection.nodes())
                self._room = QUEUED_PER_CPU * max(cpus, 1)
        elif now_s - self._head_seen_s > HEAD_PATIENCE_S:
            raise WorkerDied(f"the head of the Ray cluster at {self._address} does not answer any more")

    def _begun(self, job: Job) -> Any:
        from ray import cloudpickle

        work = (job.work, (job.brought(),)) if isinstance(job, FiledJob) else (job, ())
        return self._worked.remote(self._packages, self._expected, cloudpickle.dumps(work))

    def _answer(self, job: Job, task: Any) -> Any:
        import ray
        from ray.exceptions import RayTaskError

        try:
            differs, result = ray.get(task)
        except RayTaskError as error:
            if isinstance(error.cause, ImportError):
                raise WorkerDied(
                    f"a node cannot do {job}: {error.cause}; install there what this machine has"
                ) from error
            raise error.cause from error
        if differs is not None:  # A node that came later.
            raise WorkerDied(other_code("", differs, self._expected))
        return job.keep(result) if isinstance(job, FiledJob) else result

    def _interrupt(self, number: int, frame: object) -> None:
        if self._interrupted:
            raise KeyboardInterrupt
        self._interrupted = True

    def _leave(self) -> None:
        try:
            ray_connection.disconnect()
        finally:
            if self._hears_interrupts:
                signal.signal(signal.SIGINT, signal.default_int_handler)


def executor(address: str, processes: int | None) -> JobExecutor:
    """What runs jobs: the cluster whose head is at HOST:PORT, or without an address this machine.

    At most so many `processes` at once, without a number as many as there is room for. Its `with` raises a
    ClusterError for a cluster that does not suit.
    """
    return RayWorkers(address, processes) if address else Workers(processes or cores())


def _first_line(error: Exception) -> str:
    """What Ray says of workers, nodes and environments, without its paragraphs."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
