"""The workers of one model, seen from the front: how many, of which kind, which are free.

`reshape` changes their number and kind while they work. It forks new workers first and then retires old
ones, and a retired worker finishes the batch it holds. So there is always someone to serve.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from serving_adapter.server.workers.arena import CopiedOutputs, Memory, Placed
from serving_adapter.server.workers.aside import MOST_BYTES_ON_LOOP, copied_aside
from serving_adapter.server.workers.handles import Job, ModelFailed, WorkerHandle, WorkerParent
from serving_adapter.server.workers.launching import Launch
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    BatchReply,
    ClusterReport,
    ForkWorker,
    ModelDescription,
    ModelReference,
    WorkerSignal,
)
from serving_adapter.server.workers.nodes import surplus_of
from serving_adapter.server.workers.parallelism import Parallelism
from serving_adapter.server.workers.repair import Repair
from serving_adapter.server.workers.zygote_handle import CLOSED, ZygoteHandle
from serving_adapter.server.workers.zygote_succession import ZygoteSuccession

log = logging.getLogger(__name__)


class WorkerPool:
    """Owns a zygote and its workers, which hold the given models; the first is the one it describes.

    `on_free` is called on the event loop when a worker may have become free.
    """

    def __init__(
        self,
        models: Sequence[ModelReference],
        device: str,
        on_free: Callable[[], None],
        launch: Launch,
        start_timeout_s: float,
        is_redundant: bool = False,
    ) -> None:
        new_zygote = partial(
            ZygoteHandle,
            device=device,
            launch=launch,
            start_timeout_s=start_timeout_s,
            on_end=self._zygote_ended,
        )
        self._zygotes = ZygoteSuccession(models, new_zygote)
        self._on_free = on_free
        self.is_redundant = is_redundant
        self._parallelism = Parallelism()
        self._more_models: Sequence[ModelReference] = ()  # that the workers are to hold beside the first ones
        self._lock = asyncio.Lock()
        self._repair = Repair(self._try_to_repair)
        self._closing = False
        self.workers: list[WorkerHandle] = []  # in the order in which they were started
        self.idle: list[WorkerHandle] = []
        """The last one is taken first, since its caches are warm. One whose last batch failed waits at the
        other end: a worker that fails is free again at once, and must not draw the traffic for that."""
        self._answered = 0  # batches, by all workers so far
        self.replacements = 0
        self.cluster_changes = 0  # how often nodes took workers with them, or workers came back after that
        self.cluster_changed_share = 0.0  # of the workers that there should be, each time, summed
        self._lacks_node = False
        self._rng = np.random.default_rng(0)  # draws injected delays

    @property
    def busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    @property
    def can_serve(self) -> bool:
        """Whether there is a worker to run batches."""
        return any(not worker.retired for worker in self.workers)

    @property
    def cluster(self) -> ClusterReport | None:
        """What the cluster said last whose nodes have these workers; None at home."""
        return self._zygotes.present.cluster

    @property
    def has_parallel_branches(self) -> bool:
        description = self._zygotes.description
        return description is not None and description.has_parallel_branches

    @property
    def pids(self) -> list[int]:
        """The zygote and the running workers; safe to read from the thread that serves the metrics."""
        return [self._zygotes.present.pid, *(worker.pid for worker in list(self.workers) if worker.pid)]

    async def start(self) -> ModelDescription:
        """Starts the zygote and has it build the models; returns the description of the first one."""
        return await self._zygotes.start()

    def index_of(self, model: ModelReference) -> int:
        """Which of the models of its workers this one is."""
        return self._zygotes.models.index(model)

    def next_holds(self, model: ModelReference) -> bool:
        """Whether the idle worker that is taken first holds this model."""
        is_present = bool(self.idle) and self.idle[-1].zygote is self._zygotes.present
        return is_present and model in self._zygotes.models

    async def reshape(
        self, parallelism: Parallelism, insists: bool = False, models: Sequence[ModelReference] = ()
    ) -> None:
        """Brings number and kind of workers to `parallelism`; returns when new batches go to such only.

        They hold these models, too, and go on to.

        If it fails, the workers are, or will be, as they were before. One that insists does not fail: what
        does not work at once is tried again until it does.
        """
        async with self._lock:
            before = self._parallelism, self._more_models
            self._parallelism, self._more_models = parallelism, models
            try:
                if self._closing:
                    raise ModelFailed(CLOSED)
                await self._zygotes.hold_too(models, self.workers)
                await self._reshape()
            except BaseException as error:
                if not insists:
                    self._parallelism, self._more_models = before
                if insists or self.workers:
                    self._start_repair()
                if not insists or not isinstance(error, Exception):
                    raise

    async def _reshape(self) -> None:
        await self._fork_missing()
        # Who serves is asked only now: meanwhile workers may have died.
        right, wrong = self._serving()
        surplus = len(right) - self._parallelism.instances
        for worker in wrong + surplus_of(right, surplus, self._parallelism.placement):
            self._retire(worker)
        self._on_free()

    async def _fork_missing(self) -> None:
        """Forks what is missing, from another zygote if this one turns out to be gone or to hang."""
        failed: list[Exception] = []
        for is_last in (False, True):
            if not self._zygotes.present.is_serving:
                if self._closing:
                    raise ModelFailed(CLOSED)
                await self._zygotes.succeed(self.workers)
            missing = self._parallelism.instances - len(self._serving()[0])
            forked = await asyncio.gather(*(self._fork() for _ in range(missing)), return_exceptions=True)
            failed = [error for error in forked if isinstance(error, Exception)]
            if not failed:
                return
            if is_last or self._zygotes.present.is_serving or self._closing:
                break
        raise ModelFailed(f"a worker could not be started: {failed[0]}")

    def _serving(self) -> tuple[list[WorkerHandle], list[WorkerHandle]]:
        """The workers that get batches: those as they should be, and the others."""
        kind = self._parallelism.worker_kind(self.has_parallel_branches)
        right: list[WorkerHandle] = []
        wrong: list[WorkerHandle] = []
        for worker in self.workers:
            if not worker.retired:
                is_right = worker.kind == kind and worker.zygote is self._zygotes.present
                (right if is_right else wrong).append(worker)
        return right, wrong

    async def _fork(self) -> None:
        parallelism = self._parallelism
        order = ForkWorker(
            parallelism.inter_op_threads,
            parallelism.intra_op_threads,
            parallelism.instances,
            parallelism.placement,
        )
        worker = await self._zygotes.present.fork(order, parallelism.worker_kind(self.has_parallel_branches))
        if self._closing:
            worker.close()
            raise ModelFailed(CLOSED)
        self.workers.append(worker)
        self.idle.append(worker)
        asyncio.get_running_loop().add_reader(worker.channel, self._worker_answered, worker)
        self._on_free()

    # --- batches -----------------------------------------------------------------------------------

    def run(
        self, worker: WorkerHandle, job: Job, placed: list[Placed], intra_op_threads: int, model: int = 0
    ) -> None:
        """Hands a batch, already in the worker's input arena, to an idle worker; `model` is an index."""
        worker.job = job
        self._send(worker, job, placed, intra_op_threads, model)

    def run_once_filled(
        self,
        worker: WorkerHandle,
        job: Job,
        placed: list[Placed],
        intra_op_threads: int,
        fill: Callable[[], None],
        model: int = 0,
    ) -> None:
        """The same, when a thread has put the batch there; handed back if it cannot."""
        worker.job = job
        send = partial(self._send, worker, job, placed, intra_op_threads, model)
        if not copied_aside(worker, fill, partial(self._was_filled, worker, job, send)):
            self._not_filled(worker, job)

    def _was_filled(
        self, worker: WorkerHandle, job: Job, send: Callable[[], None], filling: asyncio.Future[None]
    ) -> None:
        if filling.exception() is None:
            send()
            return
        log.warning("a batch could not be put together: %r", filling.exception())
        self._not_filled(worker, job)

    def _not_filled(self, worker: WorkerHandle, job: Job) -> None:
        worker.job = None
        if worker.retired:
            self._close(worker)
        else:
            self.idle.append(worker)
        job.handed_back()
        self._on_free()

    def _send(
        self, worker: WorkerHandle, job: Job, placed: list[Placed], intra_op_threads: int, model: int
    ) -> None:
        slow_ms = 0.0 if worker.slow is None else worker.slow.draw_ms(self._rng)
        try:
            worker.hand(placed, intra_op_threads, model, slow_ms)
        except OSError:  # it died in this instant: its reader will tell, and the batch is not to blame
            worker.job = None
            self.kill(worker)
            job.handed_back()

    def kill(self, worker: WorkerHandle) -> None:
        """Ends a hung worker; its reader then sees it gone, as if it had died by itself."""
        worker.signal(WorkerSignal.KILL)

    def stop(self, worker: WorkerHandle) -> None:
        """Stalls a worker until `resume`: an injected fault."""
        worker.signal(WorkerSignal.STOP)

    def resume(self, worker: WorkerHandle) -> None:
        worker.signal(WorkerSignal.RESUME)

    def _worker_answered(self, worker: WorkerHandle) -> None:
        reply = worker.reply()
        if reply is None:
            self._worker_died(worker)
            return
        if worker.job is None or worker.is_copied or reply.number != worker.number:
            self._replace(worker, "it answers what it was not asked")
        elif isinstance(reply, BatchOutputs) and reply.size_bytes > MOST_BYTES_ON_LOOP:
            self._read_aside(worker, worker.job, reply)
        else:
            self._take_answer(worker, worker.job, worker.outputs, reply)

    def _read_aside(self, worker: WorkerHandle, job: Job, reply: BatchOutputs) -> None:
        """Has a thread copy large outputs, so that the event loop goes on; the worker waits for it."""
        copy = partial(CopiedOutputs, reply.outputs, worker.outputs)
        if not copied_aside(worker, copy, partial(self._was_read, worker, job, reply)):
            self._take_answer(worker, job, worker.outputs, reply)

    def _was_read(
        self, worker: WorkerHandle, job: Job, reply: BatchOutputs, copying: asyncio.Future[CopiedOutputs]
    ) -> None:
        # Whatever kept the outputs from being copied keeps the job from reading them, and it says so.
        failed = copying.exception() is not None
        self._take_answer(worker, job, worker.outputs if failed else copying.result(), reply)

    def _take_answer(self, worker: WorkerHandle, job: Job, outputs: Memory, reply: BatchReply) -> None:
        """The job gets what it waits for, and the worker is free, unless it is of no use any more."""
        worker.job = None
        is_broken = self._is_broken(worker, reply)
        try:
            job.worker_answered(outputs, reply)
        except Exception:
            log.exception("an answer of worker %d was not taken; it goes on with others", worker.pid)
        if worker.retired:
            self._close(worker)
        elif is_broken:
            self._replace(worker, "every batch fails there")
        elif isinstance(reply, BatchError):
            self.idle.insert(0, worker)
        else:
            self.idle.append(worker)
        self._on_free()

    def _is_broken(self, worker: WorkerHandle, reply: BatchReply) -> bool:
        if isinstance(reply, BatchOutputs):
            self._answered += 1
            worker.health.answered()
            return False
        return worker.health.failed(self._answered) or reply.worker_is_broken

    def _replace(self, worker: WorkerHandle, why: str) -> None:
        """Ends a worker that answers no batch as it must, and starts another."""
        self.replacements += 1
        log.warning("worker %d is broken: %s; starting another", worker.pid, why)
        self.kill(worker)
        job = self.end(worker)
        if job is not None:
            job.worker_died()
        self._start_repair()

    def _worker_died(self, worker: WorkerHandle) -> None:
        if worker.zygote.has_ended:
            self._workers_died_with(worker.zygote)
        elif worker.ended_node:
            there = [other for other in self.workers if worker.ended_node in other.nodes]
            self._lacks_node = True
            self._cluster_changed(len(there))
            self._workers_died(there, with_node=True)
        else:
            self._workers_died([worker])

    def _workers_died_with(self, zygote: WorkerParent) -> None:
        """The workers of a zygote end when it does, as the kernel sees to; on a cluster wherever they are."""
        workers = [worker for worker in self.workers if worker.zygote is zygote]
        with_node = any(worker.node for worker in workers)
        if with_node:
            self._lacks_node = True
            self._cluster_changed(len(workers))
        self._workers_died(workers, with_node)

    def _cluster_changed(self, workers: int) -> None:
        """Nodes took so many workers with them, or so many came back."""
        self.cluster_changes += 1
        self.cluster_changed_share += workers / self._parallelism.instances

    def _workers_died(self, workers: Sequence[WorkerHandle], with_node: bool = False) -> None:
        """None of them is idle before their batches run again, or one death would cost many attempts."""
        jobs = [self.end(worker) for worker in workers]
        for job in jobs:
            if job is not None:
                job.worker_died(with_node)  # `answers.Answers` decides whether its batch runs again
        wanted = [worker for worker in workers if not worker.retired]
        if wanted and not self._closing:
            self.replacements += len(wanted)
            pids = ", ".join(str(worker.pid) for worker in wanted)
            log.warning("worker %s ended unexpectedly; starting another", pids)
            self._start_repair()
        self._on_free()  # their batches may run on other workers at once

    # --- repair and end ----------------------------------------------------------------------------

    def _start_repair(self) -> None:
        if not self._closing:
            self._repair.start()

    async def _try_to_repair(self) -> bool:
        """Brings the workers back to their number; False where some still lack."""
        before = len(self._serving()[0])
        try:
            async with self._lock:
                try:
                    await self._zygotes.hold_too(self._more_models, self.workers)
                finally:  # The workers need not wait for models that cannot be built.
                    await self._reshape()
        finally:
            came = len(self._serving()[0]) - before
            if self._lacks_node and came > 0:
                self._cluster_changed(came)
        is_whole = len(self._serving()[0]) >= self._parallelism.instances
        self._lacks_node = self._lacks_node and not is_whole
        return is_whole

    def _zygote_ended(self, zygote: ZygoteHandle) -> None:
        if not self._closing:
            log.warning("the zygote (pid %d) ended unexpectedly; starting another", zygote.pid)
            self._workers_died_with(zygote)
            self._start_repair()

    def _retire(self, worker: WorkerHandle) -> None:
        worker.retired = True
        if worker in self.idle:
            self.idle.remove(worker)
        if worker.job is None:
            self._close(worker)

    def end(self, worker: WorkerHandle) -> Job | None:
        """Ends a worker at once; returns the batch that it held, which nobody answers now."""
        job, worker.job = worker.job, None
        self._close(worker)
        return job

    def _close(self, worker: WorkerHandle) -> None:
        if worker not in self.workers:
            return
        asyncio.get_running_loop().remove_reader(worker.channel)
        self.workers.remove(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        worker.close()
        self._zygotes.end_unused(self.workers)

    async def close(self) -> None:
        """Ends all processes at once. A change or a repair that is under way fails."""
        self._closing = True
        self._repair.cancel()
        for worker in list(self.workers):
            self.end(worker)  # also of its batch: large outputs may still be read
        await self._zygotes.close()
