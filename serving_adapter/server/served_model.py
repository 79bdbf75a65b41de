"""One model being served: its queue, its batches, its workers and its live configuration.

    infer() -> queue -> next_batch() -> a free worker's arena -> answer -> infer() returns

All of it runs on the front's event loop; only the pure rule in `batching` decides.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from serving_adapter.server.arena import Placed, place
from serving_adapter.server.batching import Batching, next_batch
from serving_adapter.server.statistics import ComputeTimes, ModelStatistics
from serving_adapter.server.worker_pool import ModelFailed, Parallelism, Worker, WorkerPool
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)


class InferenceFailed(Exception):
    """The server could not answer a request; the text is one sentence for the client."""


class QueueFull(Exception):
    """The bounded queue has no room; the text says what to do."""


class InputTensor(NamedTuple):
    data: memoryview | bytes
    shape: tuple[int, ...]  # batch dimension included


class OutputTensor(NamedTuple):
    name: str
    datatype: str
    shape: tuple[int, ...]
    data: bytes


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


class Request:
    """One waiting inference request."""

    __slots__ = ("arrived_ns", "future", "inputs", "rows", "shape_key")

    def __init__(
        self, inputs: Sequence[InputTensor], shape_key: Hashable, future: asyncio.Future[Any]
    ) -> None:
        self.inputs = inputs
        self.rows = inputs[0].shape[0]
        self.shape_key = shape_key
        self.arrived_ns = time.monotonic_ns()
        self.future = future


class Batch:
    """Requests on their way through one worker."""

    __slots__ = ("attempts", "busy_instances", "dispatched_ns", "requests", "rows", "worker")

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.rows = sum(request.rows for request in requests)
        self.attempts = 0
        self.dispatched_ns = 0
        self.busy_instances = 0
        self.worker: Worker | None = None


class ServedModel:
    """Serves one model. `infer`, `apply` and `close` are its whole interface, the rest is to be read."""

    def __init__(
        self,
        name: str,
        reference: str,
        options: dict[str, str],
        device: str,
        knobs: Knobs,
        protection: Protection,
    ) -> None:
        self.name, self.device = name, device
        self.knobs, self.protection = knobs, protection
        self.statistics = ModelStatistics()
        self.inputs: dict[str, TensorSpec] = {}
        self.outputs: dict[str, TensorSpec] = {}
        self.ready = False
        self.executing = 0  # requests
        self.pool = WorkerPool(reference, options, device, self._answered, self._dispatch)
        self._queue: deque[Request] = deque()
        self._again: deque[Batch] = deque()  # batches whose worker died
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._empty = asyncio.Event()
        self._empty.set()
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

    async def start(self) -> None:
        description = await self.pool.start()
        self.inputs = {spec["name"]: _spec(spec) for spec in description["inputs"]}
        self.outputs = {spec["name"]: _spec(spec) for spec in description["outputs"]}
        await self.pool.reshape(self.knobs.parallelism)
        self._watchdog = asyncio.get_running_loop().create_task(self._kill_hung_workers())
        self.ready = True

    async def apply(self, knobs: Knobs) -> None:
        """Puts a configuration in force without losing a request; on ModelFailed the old one stays."""
        async with self._apply_lock:
            before, self.knobs = self.knobs, knobs
            try:
                await self.pool.reshape(knobs.parallelism)
            except ModelFailed:
                self.knobs = before
                await self.pool.reshape(before.parallelism)
                raise
            self._dispatch()

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
        await self.pool.close()

    async def infer(self, inputs: Sequence[InputTensor]) -> list[OutputTensor]:
        """Queues a request, its inputs in the order of `self.inputs` and checked, and awaits its answer."""
        if len(self._queue) >= self.protection.max_queue_size:
            self.statistics.record_failure(0)
            raise QueueFull(
                f"the queue of model {self.name!r} is full ({self.protection.max_queue_size} requests wait); "
                "send less, or later"
            )
        request = Request(inputs, self._shape_key(inputs), asyncio.get_running_loop().create_future())
        self._queue.append(request)
        self._empty.clear()
        self._dispatch()
        try:
            outputs: list[OutputTensor] = await request.future
            return outputs
        except asyncio.CancelledError:  # the client went away, or its deadline passed
            if request in self._queue:
                self._queue.remove(request)
                self.statistics.record_failure(time.monotonic_ns() - request.arrived_ns)
                self._note_if_empty()
            raise

    def _shape_key(self, inputs: Sequence[InputTensor]) -> Hashable:
        """Inputs that can be padded may differ in shape; the others must agree."""
        return tuple(
            None if spec.pad_value is not None else tensor.shape[1:]
            for spec, tensor in zip(self.inputs.values(), inputs, strict=True)
        )

    # --- dispatch ----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Gives free instances what there is to do."""
        while self.pool.idle and self.pool.busy < self.knobs.instances:
            if self._again:
                self._run(self._again.popleft())
                continue
            decision = next_batch(self._queue, self.knobs.batching, time.monotonic_ns())
            if not decision.take:
                if decision.wait_until_ns is not None:
                    self._look_again_at(decision.wait_until_ns)
                return
            batch = Batch([self._queue.popleft() for _ in range(decision.take)])
            self.executing += len(batch.requests)
            self._run(batch)

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
        self._dispatch()

    def _run(self, batch: Batch) -> None:
        worker = self.pool.idle.pop()
        try:
            placed = self._write(batch, worker)
        except (OSError, ValueError, MemoryError) as error:
            self.pool.idle.append(worker)
            self._finish(batch)
            self._fail(
                batch.requests, f"the batch does not fit in shared memory ({error}); send smaller requests"
            )
            return
        batch.worker = worker
        batch.attempts += 1
        batch.dispatched_ns = time.monotonic_ns()
        batch.busy_instances = self.pool.busy + 1
        message = {
            "inputs": placed,
            "capacity": worker.inputs.capacity_bytes,
            "intra_op_threads": self.knobs.intra_op_threads,
        }
        self.pool.run(worker, batch, message)

    def _write(self, batch: Batch, worker: Worker) -> list[Placed]:
        """Puts the batch's inputs into the worker's arena, padded to one shape."""
        shapes = []
        for i, spec in enumerate(self.inputs.values()):
            largest = map(max, zip(*(request.inputs[i].shape[1:] for request in batch.requests), strict=True))
            shapes.append((spec.name, spec.datatype, (batch.rows, *largest)))
        placed, needed_bytes = place(shapes)
        worker.inputs.ensure(needed_bytes)
        for i, (spec, tensor) in enumerate(zip(self.inputs.values(), placed, strict=True)):
            _stack([request.inputs[i] for request in batch.requests], spec, worker.inputs.array(tensor))
        return placed

    # --- answers -----------------------------------------------------------------------------------

    def _answered(self, batch: Batch, message: dict[str, Any] | None) -> None:
        """A worker answered a batch, or (None) died with it."""
        if message is None:
            if all(request.future.done() for request in batch.requests):  # nobody waits for it any more
                self._finish(batch)
                self._fail(batch.requests, "the client did not wait for the answer")
                return
            if batch.attempts < self.protection.max_attempts:
                self._again.append(batch)
                return
            text = f"{batch.attempts} workers ended while they ran this batch; check the model and the inputs"
            self._finish(batch)
            self._fail(batch.requests, text)
            return
        now_ns = time.monotonic_ns()
        self._finish(batch)
        if "error" in message:
            self._fail(batch.requests, message["error"])
            return
        compute = ComputeTimes(*message["compute_ns"])
        service_ns = now_ns - batch.dispatched_ns
        self.statistics.record_batch(batch.rows, batch.busy_instances, service_ns, compute)
        assert batch.worker is not None
        outputs = [
            Placed(name, datatype, tuple(shape), at) for name, datatype, shape, at in message["outputs"]
        ]
        first_row = 0
        for request in batch.requests:
            queue_ns = batch.dispatched_ns - request.arrived_ns
            self.statistics.record_success(request.rows, queue_ns, service_ns, compute)
            if not request.future.done():
                rows = slice(first_row, first_row + request.rows)
                request.future.set_result(
                    [_cut(tensor, rows, batch.worker.outputs.view) for tensor in outputs]
                )
            first_row += request.rows

    def _finish(self, batch: Batch) -> None:
        self.executing -= len(batch.requests)
        self._note_if_empty()

    def _note_if_empty(self) -> None:
        if self.in_flight == 0:
            self._empty.set()

    def _fail(self, requests: list[Request], text: str) -> None:
        now_ns = time.monotonic_ns()
        for request in requests:
            self.statistics.record_failure(now_ns - request.arrived_ns)
            if not request.future.done():
                request.future.set_exception(InferenceFailed(text))

    async def _kill_hung_workers(self) -> None:
        """A worker that holds its batch for too long is ended; the batch then runs elsewhere."""
        timeout_s = self.protection.worker_timeout_s
        while True:
            await asyncio.sleep(timeout_s / 10)
            late_ns = time.monotonic_ns() - int(timeout_s * 1e9)
            for worker in self.pool.workers:
                if worker.job is not None and worker.job.dispatched_ns < late_ns:
                    log.warning("worker %d holds a batch for over %g s; ending it", worker.pid, timeout_s)
                    self.pool.kill(worker)


def _spec(fields: dict[str, Any]) -> TensorSpec:
    return TensorSpec(**fields | {"shape": tuple(fields["shape"])})


def _stack(tensors: list[InputTensor], spec: TensorSpec, target: np.ndarray) -> None:
    """Copies each request's rows into `target` (rows, ...), padding at the end of every dimension."""
    first_row = 0
    for tensor in tensors:
        rows = np.frombuffer(tensor.data, dtype=spec.dtype).reshape(tensor.shape)
        place_ = target[first_row : first_row + tensor.shape[0]]
        if rows.shape != place_.shape:
            place_[...] = spec.pad_value
            place_ = place_[(slice(None), *(slice(0, n) for n in rows.shape[1:]))]
        place_[...] = rows
        first_row += tensor.shape[0]


def _cut(tensor: Placed, rows: slice, arena: memoryview) -> OutputTensor:
    """The rows of one request out of a batch's output."""
    row_bytes = tensor.size_bytes // tensor.shape[0]
    data = bytes(arena[tensor.offset + rows.start * row_bytes : tensor.offset + rows.stop * row_bytes])
    return OutputTensor(tensor.name, tensor.datatype, (rows.stop - rows.start, *tensor.shape[1:]), data)
