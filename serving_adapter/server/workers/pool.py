"""The workers of one model, seen from the front: how many, of which kind, which are free.

`reshape` changes their number and kind while they work. It forks new workers first and then retires old
ones, and a retired worker finishes the batch it holds. So there is always someone to serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Placed
from serving_adapter.server.workers.handles import Job, ModelFailed, WorkerHandle, ZygoteHandle
from serving_adapter.server.workers.launching import Launch
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    BatchReply,
    ForkWorker,
    ModelDescription,
    ModelReference,
    RunBatch,
    WorkerSignal,
)

log = logging.getLogger(__name__)

FIRST_REPAIR_DELAY_S, MAX_REPAIR_DELAY_S = 0.1, 5.0


@dataclass(frozen=True)
class Parallelism:
    """The knobs that workers are made of."""

    instances: int = 1
    intra_op_threads: int = 1
    inter_op_threads: int = 1

    def worker_kind(self, has_parallel_branches: bool) -> tuple[int, ...]:
        """What cannot change inside a running worker.

        The intra-op setting reaches the thread that runs the batch at once. The threads of the inter-op
        pool read it only when they start. So for a model that uses that pool it is part of the kind.
        """
        return (self.inter_op_threads, self.intra_op_threads if has_parallel_branches else 0)


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
        is_redundant: bool = False,
    ) -> None:
        self._zygote = ZygoteHandle(models, device, launch)
        self._on_free = on_free
        self.is_redundant = is_redundant
        self._parallelism = Parallelism()
        self._lock = asyncio.Lock()
        self._repair: asyncio.Task[None] | None = None
        self._closing = False
        self.workers: list[WorkerHandle] = []  # in the order in which they were started
        self.idle: list[WorkerHandle] = []
        """The last one is taken first, since its caches are warm. One whose last batch failed waits at the
        other end: a worker that fails is free again at once, and must not draw the traffic for that."""
        self._answered = 0  # batches, by all workers so far
        self.replacements = 0
        self._rng = np.random.default_rng(0)  # draws injected delays
        self.has_parallel_branches = False

    @property
    def busy(self) -> int:
        return sum(worker.job is not None for worker in self.workers)

    @property
    def pids(self) -> list[int]:
        """The zygote and the running workers; safe to read from the thread that serves the metrics."""
        return [self._zygote.pid, *(worker.pid for worker in list(self.workers) if worker.pid)]

    async def start(self) -> ModelDescription:
        """Starts the zygote and has it build the models; returns the description of the first one."""
        description = await self._zygote.start(self._zygote_ended)
        self.has_parallel_branches = description.has_parallel_branches
        return description

    async def reshape(self, parallelism: Parallelism) -> None:
        """Brings number and kind of workers to `parallelism`; returns when new batches go to such only."""
        async with self._lock:
            self._parallelism = parallelism
            await self._reshape()

    async def _reshape(self) -> None:
        kind = self._parallelism.worker_kind(self.has_parallel_branches)
        serving = [worker for worker in self.workers if not worker.retired]
        right = [worker for worker in serving if worker.kind == kind]
        wrong = [worker for worker in serving if worker.kind != kind]
        missing = self._parallelism.instances - len(right)
        if missing > 0:
            forked = await asyncio.gather(*(self._fork(kind) for _ in range(missing)), return_exceptions=True)
            failed = [error for error in forked if isinstance(error, BaseException)]
            if failed:
                raise ModelFailed(f"a worker could not be started: {failed[0]}")
        for worker in wrong + sorted(right, key=lambda w: w.job is None)[: max(0, -missing)]:
            self._retire(worker)
        self._on_free()

    async def _fork(self, kind: tuple[int, ...]) -> None:
        threads = ForkWorker(self._parallelism.inter_op_threads, self._parallelism.intra_op_threads)
        worker = await self._zygote.fork(threads, kind)
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
        slow_ms = 0.0 if worker.slow is None else worker.slow.draw_ms(self._rng)
        order = RunBatch(model, placed, worker.inputs.capacity_bytes, intra_op_threads, slow_ms)
        # A worker that died in this instant is noticed by its reader, which re-runs the batch.
        with contextlib.suppress(OSError):
            messages.send(worker.channel, order)

    def kill(self, worker: WorkerHandle) -> None:
        """Ends a hung worker; its reader then sees it gone, as if it had died by itself."""
        self._zygote.signal(WorkerSignal.KILL, worker)

    def stop(self, worker: WorkerHandle) -> None:
        """Stalls a worker until `resume`: an injected fault."""
        self._zygote.signal(WorkerSignal.STOP, worker)

    def resume(self, worker: WorkerHandle) -> None:
        self._zygote.signal(WorkerSignal.RESUME, worker)

    def _worker_answered(self, worker: WorkerHandle) -> None:
        reply = _reply(worker)
        if reply is None:
            self._worker_died(worker)
            return
        job, worker.job = worker.job, None
        is_broken = self._is_broken(worker, reply)
        try:
            assert job is not None, "a worker answers only the batch that it holds"
            job.worker_answered(worker, reply)
        except Exception:
            log.exception("an answer of worker %d was not taken; it goes on with others", worker.pid)
        if worker.retired:
            self._close(worker)
        elif is_broken:
            self._replace(worker)
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

    def _replace(self, worker: WorkerHandle) -> None:
        """Ends a worker that answers no batch as it must, and starts another."""
        self.replacements += 1
        log.warning("worker %d is broken: every batch fails there; starting another", worker.pid)
        self.kill(worker)
        self._close(worker)
        self._start_repair()

    def _worker_died(self, worker: WorkerHandle) -> None:
        job, worker.job = worker.job, None
        was_wanted = not worker.retired
        self._close(worker)
        if job is not None:
            job.worker_died()  # `answers.Answers` decides whether its batch runs again
        if was_wanted and not self._closing:
            self.replacements += 1
            log.warning("worker %d ended unexpectedly; starting another", worker.pid)
            self._start_repair()
        self._on_free()  # its batch may run on another worker at once

    # --- repair and end ----------------------------------------------------------------------------

    def _start_repair(self) -> None:
        if self._repair is None or self._repair.done():
            self._repair = asyncio.get_running_loop().create_task(self._repair_workers())

    async def _repair_workers(self) -> None:
        """Brings the workers back to their number, again and again until it works."""
        delay_s = FIRST_REPAIR_DELAY_S
        while not self._closing:
            try:
                async with self._lock:
                    if self._zygote.is_gone:
                        await self._zygote.close()
                        await self.start()
                    await self._reshape()
                if sum(not worker.retired for worker in self.workers) >= self._parallelism.instances:
                    return
            except (ModelFailed, OSError) as error:
                log.error("workers could not be replaced (%s); trying again in %.1f s", error, delay_s)
            await asyncio.sleep(delay_s)
            delay_s = min(MAX_REPAIR_DELAY_S, 2 * delay_s)

    def _zygote_ended(self) -> None:
        if not self._closing:
            log.warning("the zygote (pid %d) ended unexpectedly; starting another", self._zygote.pid)
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
        asyncio.get_running_loop().remove_reader(worker.channel)
        if worker in self.workers:
            self.workers.remove(worker)
        if worker in self.idle:
            self.idle.remove(worker)
        worker.close()

    async def close(self) -> None:
        self._closing = True
        if self._repair is not None:
            self._repair.cancel()
        async with self._lock:
            for worker in list(self.workers):
                self._close(worker)
            await self._zygote.close()


def _reply(worker: WorkerHandle) -> BatchReply | None:
    """What a worker answered, its outputs within reach; None if it is gone."""
    try:
        reply = messages.receive(worker.channel, messages.parse_batch_reply)
        if isinstance(reply, BatchOutputs):
            worker.outputs.ensure(reply.capacity_bytes)
        return reply
    except Exception as error:  # no memory to map its outputs, or no message of ours
        sentence = f"the server could not read what a worker answered ({error!r})"
        return BatchError(sentence, worker_is_broken=True)
