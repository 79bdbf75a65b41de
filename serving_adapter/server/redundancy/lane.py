"""A lane of redundant workers: a parity model's or a backup model's own workers and their own queue.

Batches of a lane help others to an answer and are nobody's only hope: they may be lost, and those that
are not wanted any more when a worker gets free are dropped unrun. A lane's workers hold the deployed model
too, and run its batches first when all of its own workers are busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import Any, Protocol

import numpy as np

from serving_adapter.server.workers.arena import Arena, Placed, read_outputs
from serving_adapter.server.workers.pool import ModelFailed, ModelReference, Parallelism, Worker, WorkerPool
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

MAX_RUNS = 2  # of a batch whose worker died
TIDY_QUEUE = 64  # batches from which on those that nobody wants are looked for
DRAIN_S = 5.0


class RedundantBatch(Protocol):
    """What a lane runs."""

    def is_wanted(self) -> bool: ...

    def write(self, arena: Arena) -> list[Placed]: ...

    def answered(self, outputs: dict[str, np.ndarray]) -> None:
        """`outputs` are views of the worker's arena: copy what shall last."""


class Run:
    """A batch on a worker of a lane."""

    __slots__ = ("batch", "dispatched_ns", "number")

    def __init__(self, batch: RedundantBatch, number: int) -> None:
        self.batch, self.number = batch, number
        self.dispatched_ns = time.monotonic_ns()


class LaneHost(Protocol):
    """What a lane needs of the deployed model whose batches it also runs."""

    model: ModelReference
    device: str
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]

    def dispatch(self) -> None:
        """Gives free workers what waits for the deployed model."""

    def answered(self, job: Any, worker: Worker, message: dict[str, Any] | None) -> None: ...

    def handed_back(self, job: Any) -> None:
        """A batch of the deployed model whose worker ends before it has answered runs elsewhere."""


DEPLOYED = 1  # index of the deployed model in a lane's workers


class Lane:
    """The workers of one redundant model, and the batches that wait for them."""

    def __init__(self, model: ModelReference, host: LaneHost) -> None:
        self.reference, self._host = model.reference, host
        models = [model, host.model]
        self.pool = WorkerPool(models, host.device, self._answered, self._freed, is_redundant=True)
        self.executed = 0  # batches
        self._queue: deque[tuple[RedundantBatch, int]] = deque()
        self._intra_op_threads = 1
        self._drained = asyncio.Event()
        self._drained.set()

    async def start(self) -> None:
        """Builds the model; ModelFailed if it takes or gives other tensors than the deployed one's."""
        description = await self.pool.start()
        for kind, specs in (("inputs", self._host.inputs), ("outputs", self._host.outputs)):
            own = {(t["name"], t["datatype"], tuple(t["shape"])) for t in description[kind]}
            deployed = {(spec.name, spec.datatype, spec.shape) for spec in specs.values()}
            if own != deployed:
                await self.pool.close()
                raise ModelFailed(
                    f"the {kind} of {self.reference} do not fit the deployed model's: {_listed(own)} instead "
                    f"of {_listed(deployed)}; give a model that was made for this one"
                )

    async def reshape(self, parallelism: Parallelism) -> None:
        self._intra_op_threads = parallelism.intra_op_threads
        await self.pool.reshape(parallelism)

    def put(self, batch: RedundantBatch) -> None:
        if len(self._queue) >= TIDY_QUEUE:
            self._queue = deque(waiting for waiting in self._queue if waiting[0].is_wanted())
        self._queue.append((batch, 1))
        self._drained.clear()
        self.dispatch()

    def _freed(self) -> None:
        self._host.dispatch()
        self.dispatch()

    def dispatch(self) -> None:
        while self._queue and self.pool.idle:
            batch, number = self._queue.popleft()
            if batch.is_wanted():
                self._run(batch, number)
        if not self._queue and not self.pool.busy:
            self._drained.set()

    def _run(self, batch: RedundantBatch, number: int) -> None:
        worker = self.pool.idle.pop()
        try:
            placed = batch.write(worker.inputs)
        except (OSError, ValueError, MemoryError) as error:
            log.warning("a redundant batch is dropped: it does not fit in shared memory (%s)", error)
            self.pool.idle.append(worker)
            return
        self.executed += 1
        self.pool.run(worker, Run(batch, number), placed, self._intra_op_threads)

    def _answered(self, run: Any, worker: Worker, message: dict[str, Any] | None) -> None:
        if not isinstance(run, Run):
            self._host.answered(run, worker, message)
        elif message is None:
            if run.number < MAX_RUNS:
                self._queue.appendleft((run.batch, run.number + 1))
        elif "error" in message:
            log.warning("the redundant model %s failed: %s", self.reference, message["error"])
        else:
            run.batch.answered(read_outputs(message, worker.outputs))

    async def close(self) -> None:
        """Ends the workers once what they hold and what waits for them is done, or after `DRAIN_S`."""
        if self.pool.busy:
            self._drained.clear()
        self.dispatch()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_S)
        for worker in list(self.pool.workers):
            job = self.pool.end(worker)
            if job is not None and not isinstance(job, Run):
                self._host.handed_back(job)
        await self.pool.close()


def _listed(tensors: set[tuple[str, str, tuple[int, ...]]]) -> str:
    return ", ".join(f"{name} {datatype}{list(shape)}" for name, datatype, shape in sorted(tensors))
