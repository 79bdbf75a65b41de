"""A lane of redundant workers: a parity model's or a backup model's own workers and their own queue.

The batches of a lane help others to an answer and are nobody's only hope. So they may be lost, and those that
nobody wants any more when a worker gets free are dropped.

The workers of a lane hold the deployed model too, and run its batches when all of its own workers are busy.
The deployed model's workers may hold the lane's model in turn, and lend themselves while no batch waits for
them. As the models lie in the model store, that costs no memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from serving_adapter.server.failure_log import FailureLog
from serving_adapter.server.surroundings import Surroundings
from serving_adapter.server.workers.arena import Arena, Memory, Placed, read_outputs
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.messages import BatchError, BatchReply, ModelReference
from serving_adapter.server.workers.parallelism import Parallelism
from serving_adapter.server.workers.pool import WorkerPool
from serving_adapter.tensors import TensorSpec

OWN_MODEL_INDEX, DEPLOYED_MODEL_INDEX = 0, 1  # among the models that a lane's workers hold
MAX_ATTEMPTS = 2  # a batch that has ended this many workers is dropped
QUEUE_SIZE_TO_PRUNE = 64  # from this size on, batches that nobody wants are taken out of the queue
DRAIN_S = 5.0


class BatchInputs(NamedTuple):
    """Where the inputs of a batch lie in a worker's arena, and what is left to be done in a thread."""

    placed: list[Placed]
    fill: Callable[[], None] | None = None


class RedundantBatch(Protocol):
    """What a lane runs."""

    def is_wanted(self) -> bool: ...

    def write(self, arena: Arena) -> BatchInputs: ...

    def lane_answered(self, outputs: dict[str, np.ndarray]) -> None:
        """`outputs` are views of the worker's arena: copy what shall last."""


class Slot(NamedTuple):
    """Where a batch can run: the pool of an idle worker, and which of its models runs it."""

    pool: WorkerPool
    model: int


class Dispatching(Protocol):
    def dispatch(self) -> None:
        """Gives free workers what waits for the deployed model."""

    def slot_to_lend(self, model: ModelReference) -> Slot | None:
        """A worker of the deployed model's own for a batch of this one, where no batch waits for it."""


class LaneHost(Protocol):
    """What a lane needs of the deployed model whose batches it also runs."""

    model: ModelReference
    device: str
    surroundings: Surroundings
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]

    @property
    def dispatcher(self) -> Dispatching: ...


class Lane:
    """The workers of one redundant model, and the batches that wait for them."""

    def __init__(self, model: ModelReference, host: LaneHost) -> None:
        self.model, self.reference, self._host = model, model.reference, host
        models = [model, host.model]
        self.pool = WorkerPool(
            models,
            host.device,
            self._freed,
            host.surroundings.launch,
            host.surroundings.start_timeout_s,
            is_redundant=True,
        )
        self.max_rows: int | None = None  # of a batch, once started; None: any
        self.executed = 0  # batches run so far
        self.lent = 0  # workers of the deployed model that run batches of this lane
        self._is_trusted = True
        """False from the end of a worker with a batch of this lane until one is answered again. A model that
        ends its workers must not take those of the deployed model along."""
        self._instances = 0
        self._queue: deque[tuple[RedundantBatch, int]] = deque()
        self._intra_op_threads = 1
        self._drained = asyncio.Event()
        self._drained.set()
        self._failures = FailureLog(self.reference, host.surroundings.now_ns)

    async def start(self) -> None:
        """Builds the model; ModelFailed if its tensors are others than the deployed one's, or smaller."""
        description = await self.pool.start()
        self.max_rows = description.max_rows
        for kind, given, specs in (
            ("inputs", description.inputs, self._host.inputs),
            ("outputs", description.outputs, self._host.outputs),
        ):
            deployed = list(specs.values())
            if not _fit(given, deployed):
                await self.pool.close()
                raise ModelFailed(
                    f"the {kind} of {self.reference} do not fit the deployed model's: {_listed(given)} "
                    f"instead of {_listed(deployed)}; give a model that was made for this one"
                )
        for spec in description.inputs:
            if not _is_as_long(spec, self._host.inputs[spec.name]):
                await self.pool.close()
                raise ModelFailed(
                    f"input {spec.name!r} of {self.reference} may be at most {spec.max_size} long, which is "
                    "less than the deployed model takes; give a model that takes inputs as long"
                )

    async def reshape(self, parallelism: Parallelism, insists: bool = False) -> None:
        self._intra_op_threads, self._instances = parallelism.intra_op_threads, parallelism.instances
        await self.pool.reshape(parallelism, insists)

    def put(self, batch: RedundantBatch) -> None:
        if len(self._queue) >= QUEUE_SIZE_TO_PRUNE:
            self._queue = deque(waiting for waiting in self._queue if waiting[0].is_wanted())
        self._queue.append((batch, 1))
        self._drained.clear()
        self.dispatch()

    def _freed(self) -> None:
        self._host.dispatcher.dispatch()
        self.dispatch()

    def dispatch(self) -> None:
        while self._queue and (slot := self._free_slot()) is not None:
            batch, number = self._queue.popleft()
            if batch.is_wanted():
                self._run(batch, number, slot)
        self._tell_if_drained()

    def _free_slot(self) -> Slot | None:
        """An idle worker of the lane, or of the deployed model; of these at most as many as the lane has.

        So a model that hangs does not hold them all.
        """
        if self.pool.idle:
            return Slot(self.pool, OWN_MODEL_INDEX)
        if self._is_trusted and self.lent < self._instances:
            return self._host.dispatcher.slot_to_lend(self.model)
        return None

    @property
    def is_drained(self) -> bool:
        """Whether none of its batches waits or runs, and its workers hold none of the deployed model."""
        return not self._queue and not self.pool.busy and not self.lent

    def _tell_if_drained(self) -> None:
        if self.is_drained:
            self._drained.set()

    def _run(self, batch: RedundantBatch, number: int, slot: Slot) -> None:
        pool = slot.pool
        worker = pool.idle.pop()
        try:
            inputs = batch.write(worker.inputs)
        except Exception as error:  # no memory, most likely; whatever it is, the worker is still there
            self._failures.note(f"a redundant batch is dropped: it does not fit in shared memory ({error!r})")
            pool.idle.append(worker)
            return
        is_lent = pool is not self.pool
        self.executed += 1
        self.lent += is_lent
        run = LaneRun(self, batch, number, self._host.surroundings.now_ns(), is_lent)
        if inputs.fill is None:
            pool.run(worker, run, inputs.placed, self._intra_op_threads, slot.model)
        else:
            pool.run_once_filled(worker, run, inputs.placed, self._intra_op_threads, inputs.fill, slot.model)

    def worker_answered(self, run: LaneRun, outputs: Memory, reply: BatchReply) -> None:
        self._left_worker(run)
        if isinstance(reply, BatchError):
            self._failures.note(f"a redundant batch failed: {reply.error}")
        else:
            self._is_trusted = True
            run.batch.lane_answered(read_outputs(reply.outputs, outputs))

    def worker_died(self, run: LaneRun) -> None:
        self._is_trusted = False
        if run.number < MAX_ATTEMPTS:
            self._queue.appendleft((run.batch, run.number + 1))
        self._left_worker(run)

    def handed_back(self, run: LaneRun) -> None:
        """It is not run again: a redundant batch may be lost."""
        self._left_worker(run)

    def _left_worker(self, run: LaneRun) -> None:
        self.lent -= run.is_lent
        self._tell_if_drained()

    async def close(self) -> None:
        """Ends the workers once all their batches are done, or after `DRAIN_S`."""
        if not self.is_drained:
            self._drained.clear()
        self.dispatch()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._drained.wait(), DRAIN_S)
        for worker in list(self.pool.workers):
            job = self.pool.end(worker)
            if job is not None:
                job.handed_back()
        self._host.dispatcher.dispatch()  # what was handed back runs elsewhere
        await self.pool.close()


class LaneRun:
    """A redundant batch on a worker, of its lane or lent to it: the `Job` of that worker."""

    __slots__ = ("_lane", "batch", "dispatched_ns", "is_lent", "number")

    def __init__(
        self, lane: Lane, batch: RedundantBatch, number: int, dispatched_ns: int, is_lent: bool
    ) -> None:
        self._lane, self.batch, self.number = lane, batch, number
        self.dispatched_ns, self.is_lent = dispatched_ns, is_lent

    def worker_answered(self, outputs: Memory, reply: BatchReply) -> None:
        self._lane.worker_answered(self, outputs, reply)

    def worker_died(self, with_node: bool = False) -> None:
        self._lane.worker_died(self)

    def handed_back(self) -> None:
        self._lane.handed_back(self)


def _fit(own: Sequence[TensorSpec], deployed: Sequence[TensorSpec]) -> bool:
    """Whether they are the same tensors. Where one has a size that varies, examples may tell another."""
    pairs = zip(sorted(own, key=_name), sorted(deployed, key=_name), strict=False)
    return len(own) == len(deployed) and all(
        (one.name, one.datatype) == (other.name, other.datatype)
        and (one.covers(other.shape) or other.covers(one.shape))
        for one, other in pairs
    )


def _is_as_long(own: TensorSpec, deployed: TensorSpec) -> bool:
    """Whether the dimensions that vary can be as large as the deployed model's are there."""
    most = math.inf if deployed.max_size is None else deployed.max_size
    longest = [
        most if size == -1 else size
        for varies, size in zip(own.shape, deployed.shape, strict=True)
        if varies == -1
    ]
    return own.max_size is None or max(longest, default=0) <= own.max_size


def _name(spec: TensorSpec) -> str:
    return spec.name


def _listed(tensors: Iterable[TensorSpec]) -> str:
    return ", ".join(f"{s.name} {s.datatype}{list(s.shape)}" for s in sorted(tensors, key=_name))
