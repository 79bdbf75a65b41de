"""One model being served: its queue, its batches, its workers and its live configuration.

    infer() -> queue -> next_batch() -> a free worker's arena -> answer -> infer() returns

All of it runs on the front's event loop; only the pure rule in `batching` decides. What is done about slow
and failed workers beside running a batch again is in `redundancy`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from serving_adapter.server.batches import EXACT, Answer, Batch, InputTensor, Request, as_array, cut
from serving_adapter.server.batching import Batching, next_batch
from serving_adapter.server.recording import Recording
from serving_adapter.server.redundancy.lane import DEPLOYED
from serving_adapter.server.redundancy.making import Modes
from serving_adapter.server.redundancy.models import RedundantModels
from serving_adapter.server.redundancy.modes import Redundancy
from serving_adapter.server.redundancy.settings import Resilience
from serving_adapter.server.statistics import ComputeTimes, ModelStatistics
from serving_adapter.server.workers.arena import read_outputs
from serving_adapter.server.workers.pool import ModelFailed, ModelReference, Parallelism, Worker, WorkerPool
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

NOT_COMPUTED = ComputeTimes(0, 0, 0)  # by the deployed model


class InferenceFailed(Exception):
    """The server could not answer a request; the text is one sentence for the client."""


class QueueFull(Exception):
    """The bounded queue has no room; the text says what to do."""


@dataclass(frozen=True)
class Knobs:
    """The configuration in force: the five knobs of DESIGN.md."""

    instances: int = 1
    intra_op_threads: int = 1
    inter_op_threads: int = 1
    max_batch_size: int = 1
    max_queue_delay_us: int = 0

    @property
    def parallelism(self) -> Parallelism:
        return Parallelism(self.instances, self.intra_op_threads, self.inter_op_threads)

    @property
    def batching(self) -> Batching:
        return Batching(self.max_batch_size, 1000 * self.max_queue_delay_us)


@dataclass(frozen=True)
class Protection:
    """What protects the server from its clients and from its workers."""

    max_queue_size: int = 2048  # requests waiting
    worker_timeout_s: float = 60.0  # a batch that takes longer has a hung worker
    max_attempts: int = 3  # a batch that has ended this many workers is given up


class Execution:
    """A batch on a worker of the deployed model."""

    __slots__ = ("batch", "busy_instances", "dispatched_ns")

    def __init__(self, batch: Batch, busy_instances: int) -> None:
        self.batch, self.busy_instances = batch, busy_instances
        self.dispatched_ns = time.monotonic_ns()


class Slot(NamedTuple):
    """Where a batch can run: the pool of an idle worker, and which of its models is the deployed one."""

    pool: WorkerPool
    model: int


class ServedModel:
    """Serves one model. `infer`, `check`, `apply` and `close` are its interface, the rest is to be read."""

    def __init__(
        self,
        name: str,
        model: ModelReference,
        device: str,
        knobs: Knobs,
        protection: Protection,
        resilience: Resilience,
        redundant_models: RedundantModels,
    ) -> None:
        self.name, self.device = name, device
        self.knobs, self.protection = knobs, protection
        self.resilience = resilience
        self.statistics = ModelStatistics()
        self.inputs: dict[str, TensorSpec] = {}
        self.outputs: dict[str, TensorSpec] = {}
        self.ready = False
        self.executing = 0  # requests
        self.running = 0  # batches on workers
        self.model = model
        self.pool = WorkerPool([model], device, self.answered, self.dispatch)
        self._redundancy = Redundancy(Resilience())
        self._modes = Modes(self, redundant_models)
        self._queue: deque[Request] = deque()
        self._again: deque[Batch] = deque()  # batches whose worker died, and redundant copies
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._empty = asyncio.Event()
        self._empty.set()
        self.recording: Recording | None = None
        self._apply_lock = asyncio.Lock()
        self._watchdog: asyncio.Task[None] | None = None

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        return self.queued + self.executing

    @property
    def has_parallel_branches(self) -> bool:
        return self.pool.has_parallel_branches

    @property
    def pools(self) -> list[WorkerPool]:
        """The deployed model's workers, then those of the redundant lanes."""
        return [self.pool, *self._modes.pools]

    @property
    def pids(self) -> list[int]:
        """Of all zygotes and workers."""
        return [pid for pool in self.pools for pid in (pool.zygote_pid, *pool.pids)]

    @property
    def replacements(self) -> int:
        """Workers replaced because they died or hung."""
        return self.pool.replacements + self._modes.replacements

    @property
    def redundant_batches(self) -> int:
        """Parity and backup batches run so far."""
        return self._modes.executed

    async def start(self) -> None:
        description = await self.pool.start()
        self.inputs = {spec["name"]: _spec(spec) for spec in description["inputs"]}
        self.outputs = {spec["name"]: _spec(spec) for spec in description["outputs"]}
        try:
            self.check(self.knobs, self.resilience)
        except ValueError as error:
            raise ModelFailed(str(error)) from None
        self._redundancy = await self._modes.make(self.resilience)
        await self._reshape(self._redundancy, self.knobs)
        self._watchdog = asyncio.get_running_loop().create_task(self._kill_hung_workers())
        self.ready = True

    # --- configuration -----------------------------------------------------------------------------

    def check(self, knobs: Knobs, resilience: Resilience) -> None:
        """Raises ValueError, in one sentence, for what this model cannot be served with."""
        self._modes.check(resilience, knobs.instances)

    async def apply(self, knobs: Knobs, resilience: Resilience) -> None:
        """Puts a configuration in force without losing a request; on ModelFailed the old one stays."""
        async with self._apply_lock:
            before, old = self.knobs, self._redundancy
            new = old if resilience == self.resilience else await self._modes.make(resilience)
            try:
                await self._reshape(new, knobs)
                self.knobs, self.resilience, self._redundancy = knobs, resilience, new
            except ModelFailed:
                await self._reshape(old, before)
                raise
            finally:
                self._modes.keep_only(self._redundancy)
            if new is not old:
                old.stop()
            self.dispatch()

    async def _reshape(self, redundancy: Redundancy, knobs: Knobs) -> None:
        """More workers first, so that what waits has someone to run it."""
        deployed = redundancy.deployed_instances(knobs.instances)
        await redundancy.reshape(knobs.parallelism)
        await self.pool.reshape(Parallelism(deployed, knobs.intra_op_threads, knobs.inter_op_threads))

    async def close(self, grace_s: float) -> None:
        """Answers what is queued (for at most `grace_s`), fails the rest, ends the workers."""
        self.ready = False
        try:
            await asyncio.wait_for(self._empty.wait(), grace_s)
        except TimeoutError:
            self._fail(list(self._queue), "the server is shutting down; send the request to another")
            self._queue.clear()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._redundancy.stop()
        await asyncio.gather(self._modes.close(), self.pool.close())

    # --- requests ----------------------------------------------------------------------------------

    async def infer(self, inputs: Sequence[InputTensor], accepts_approximation: bool = True) -> Answer:
        """Queues a request, its inputs in the order of `self.inputs` and checked, and awaits its answer."""
        if len(self._queue) >= self.protection.max_queue_size:
            self.statistics.record_failure(0)
            raise QueueFull(
                f"the queue of model {self.name!r} is full ({self.protection.max_queue_size} requests wait); "
                "send less, or later"
            )
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        request = Request(inputs, self._shape_key(inputs), future, accepts_approximation)
        self._queue.append(request)
        self._empty.clear()
        self._redundancy.arrived(request)
        self.dispatch()
        if self.recording is not None:
            (spec,) = self.inputs.values()
            self.recording.show(as_array(inputs[0], spec))
        try:
            return await future
        except asyncio.CancelledError:  # the client went away, or its deadline passed
            if self._leaves_queue(request):
                self.statistics.record_failure(time.monotonic_ns() - request.arrived_ns)
            raise

    def _leaves_queue(self, request: Request) -> bool:
        if request not in self._queue:
            return False
        self._queue.remove(request)
        self._note_if_empty()
        return True

    def _shape_key(self, inputs: Sequence[InputTensor]) -> Hashable:
        """Inputs that can be padded may differ in shape; the others must agree."""
        return tuple(
            None if spec.pad_value is not None else tensor.shape[1:]
            for spec, tensor in zip(self.inputs.values(), inputs, strict=True)
        )

    # --- dispatch ----------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Gives free instances what there is to do."""
        while (slot := self._free_slot()) is not None:
            if self._again:
                self._run_copy(self._again.popleft(), slot)
                continue
            decision = next_batch(self._queue, self.knobs.batching, time.monotonic_ns())
            if not decision.take:
                if decision.wait_until_ns is not None:
                    self._look_again_at(decision.wait_until_ns)
                break
            batch = Batch([self._queue.popleft() for _ in range(decision.take)], self._redundancy)
            self.executing += len(batch.requests)
            batch.copies += 1
            if self._run(batch, slot):
                batch.redundancy.dispatched(batch)
        self._redundancy.dispatch()

    def _free_slot(self) -> Slot | None:
        """A worker of the deployed model's own, or one of a lane that may help out."""
        if self.pool.idle and self.pool.busy < self._redundancy.deployed_instances(self.knobs.instances):
            return Slot(self.pool, 0)
        lane = self._redundancy.idle_lane
        return None if lane is None else Slot(lane.pool, DEPLOYED)

    def run_again(self, batch: Batch) -> None:
        """Queues another copy of a batch before what waits."""
        batch.copies += 1
        self._again.append(batch)
        self.dispatch()

    def _run_copy(self, batch: Batch, slot: Slot) -> None:
        if batch.is_wanted():
            self.statistics.copies_count += self._run(batch, slot)
            return
        batch.copies -= 1
        if not batch.copies:
            self._give_up(batch, "the client did not wait for the answer")

    def _look_again_at(self, when_ns: int) -> None:
        if self._timer is not None and not self._timer.cancelled() and self._timer_ns == when_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        delay_s = max(0.0, (when_ns - time.monotonic_ns()) * 1e-9)
        self._timer_ns = when_ns
        self._timer = loop.call_later(delay_s, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self.dispatch()

    def _run(self, batch: Batch, slot: Slot) -> bool:
        """Hands a batch to an idle worker; False, its requests failed, if it does not fit in memory."""
        worker = slot.pool.idle.pop()
        try:
            placed = batch.write(self.inputs, worker.inputs)
        except (OSError, ValueError, MemoryError) as error:
            slot.pool.idle.append(worker)
            batch.copies -= 1
            if not batch.copies:
                text = f"the batch does not fit in shared memory ({error}); send smaller requests"
                self._give_up(batch, text)
            return False
        self.running += 1
        execution = Execution(batch, self.running)
        batch.dispatched_ns = batch.dispatched_ns or execution.dispatched_ns
        slot.pool.run(worker, execution, placed, self.knobs.intra_op_threads, slot.model)
        return True

    # --- answers -----------------------------------------------------------------------------------

    def answered(self, execution: Execution, worker: Worker, message: dict[str, Any] | None) -> None:
        """A worker answered a batch, or (None) died with it."""
        batch = execution.batch
        self.running -= 1
        batch.copies -= 1
        if message is None:
            self._lost(batch)
        elif "error" in message:
            if not batch.copies:
                self._give_up(batch, message["error"])
        else:
            compute = ComputeTimes(*message["compute_ns"])
            service_ns = time.monotonic_ns() - execution.dispatched_ns
            self.statistics.record_batch(batch.rows, execution.busy_instances, service_ns, compute)
            outputs = read_outputs(message, worker.outputs)
            for request, first_row in _waiting(batch):
                self._settle(batch, request, outputs, first_row, EXACT, compute)
            self._finish(batch)
            batch.redundancy.answered(batch, outputs, service_ns)

    def _lost(self, batch: Batch) -> None:
        batch.losses += 1
        if not batch.finished and not batch.is_wanted():
            self._give_up(batch, "the client did not wait for the answer")
            return
        batch.redundancy.lost(batch)
        if batch.copies:  # another worker has it, or will have it
            return
        if batch.finished:
            batch.redundancy.forget(batch)
        elif batch.losses < self.protection.max_attempts:
            batch.copies += 1
            self._again.append(batch)
        else:
            workers = f"{batch.losses} workers ended while they ran this batch"
            self._give_up(batch, f"{workers}; check the model and the inputs")

    def handed_back(self, execution: Execution) -> None:
        """A worker that is not wanted any more ended before it answered a batch, which runs elsewhere."""
        batch = execution.batch
        self.running -= 1
        batch.copies -= 1
        if not batch.copies and not batch.finished:
            self.run_again(batch)
        elif not batch.copies:
            batch.redundancy.forget(batch)

    def approximate(self, batch: Batch, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers those requests of a batch that take an approximation and have no answer yet."""
        for request, first_row in _waiting(batch):
            if request.accepts_approximation:
                self._settle(batch, request, outputs, first_row, origin, NOT_COMPUTED)
        if all(request.settled for request in batch.requests):
            self._finish(batch)

    def approximate_request(self, request: Request, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        """Answers one request, which may still be queued."""
        batch = request.batch
        if batch is None:
            self._leaves_queue(request)
            batch = Batch([request], self._redundancy)
            batch.dispatched_ns = time.monotonic_ns()
            batch.finished = True
        self._settle(batch, request, outputs, 0, origin, NOT_COMPUTED)
        if all(other.settled for other in batch.requests):
            self._finish(batch)

    def _settle(
        self,
        batch: Batch,
        request: Request,
        outputs: Mapping[str, np.ndarray],
        first_row: int,
        origin: str,
        compute: ComputeTimes,
    ) -> None:
        request.settled = True
        queue_ns = batch.dispatched_ns - request.arrived_ns
        service_ns = time.monotonic_ns() - batch.dispatched_ns
        self.statistics.record_success(request.rows, queue_ns, service_ns, compute, origin)
        if not request.future.done():
            tensors = cut(outputs, self.outputs, first_row, request.rows)
            request.future.set_result(Answer(tensors, origin))

    def _give_up(self, batch: Batch, text: str) -> None:
        self._fail(batch.requests, text)
        self._finish(batch)
        batch.redundancy.forget(batch)

    def _finish(self, batch: Batch) -> None:
        if not batch.finished:
            batch.finished = True
            for request in batch.requests:
                request.batch = None  # they refer to each other no longer, so their memory is free at once
            self.executing -= len(batch.requests)
            self._note_if_empty()

    def _note_if_empty(self) -> None:
        if self.in_flight == 0:
            self._empty.set()

    def _fail(self, requests: list[Request], text: str) -> None:
        now_ns = time.monotonic_ns()
        for request in requests:
            if request.settled:
                continue
            request.settled = True
            self.statistics.record_failure(now_ns - request.arrived_ns)
            if not request.future.done():
                request.future.set_exception(InferenceFailed(text))

    async def _kill_hung_workers(self) -> None:
        """A worker that holds its batch for too long is ended; the batch then runs elsewhere."""
        timeout_s = self.protection.worker_timeout_s
        while True:
            await asyncio.sleep(timeout_s / 10)
            late_ns = time.monotonic_ns() - int(timeout_s * 1e9)
            for pool in self.pools:
                for worker in pool.workers:
                    if worker.job is not None and worker.job.dispatched_ns < late_ns:
                        log.warning("worker %d holds a batch for over %g s; ending it", worker.pid, timeout_s)
                        pool.kill(worker)


def _waiting(batch: Batch) -> Iterator[tuple[Request, int]]:
    """The requests of a batch that have no answer yet, each with its first row."""
    first_row = 0
    for request in batch.requests:
        if not request.settled:
            yield request, first_row
        first_row += request.rows


def _spec(fields: dict[str, Any]) -> TensorSpec:
    return TensorSpec(**fields | {"shape": tuple(fields["shape"])})
