"""A worker process: it runs batches that lie in its input arena and leaves the outputs in the other.

In a unit (`unit`) the first worker passes each batch on, all run it, and the first one answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from serving_adapter.codecs import CODECS
from serving_adapter.model_store.torch_side.device_tensors import ParametersOnDevice
from serving_adapter.models.model import Model, ModelError, Values, as_described, complaint, datatype_of
from serving_adapter.sentences import printable
from serving_adapter.server.statistics.model_statistics import ComputeTimes
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Arena, Placed, place
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    BatchReply,
    BuildError,
    ForkWorker,
    ModelDescription,
    RunBatch,
    WorkerReady,
)
from serving_adapter.server.workers.tenant import Tenant, TenantQueries
from serving_adapter.server.workers.unit import KEEP_ALIVE_S, Unit, UnitBroken
from serving_adapter.strings import MAX_STRINGS
from serving_adapter.tensors import TensorSpec

log = logging.getLogger(__name__)

NICENESS = 2  # the front must get a processor at once even when every worker is busy


def describe(model: Model, sizes: tuple[int, int]) -> ModelDescription:
    """What the front must know of a model; it runs the model on examples of two sizes to learn the outputs.

    An output dimension is fixed if both have it so. One without length is not: other inputs will have some.

    Call it in a child that was just forked, as `work` is.
    """
    torch.set_num_threads(1)  # renews PyTorch's pool, which branches must not do all at once
    first, second = (model.run(model.example(rows=1, size=size)) for size in sizes)
    specs = [TensorSpec(name, datatype_of(name, x), tuple(x.shape[1:])) for name, x in first.items()]
    second = as_described(second, specs)
    outputs = [replace(spec, shape=_common(spec.shape, second[spec.name].shape[1:])) for spec in specs]
    return ModelDescription(
        model.inputs, tuple(outputs), model.has_parallel_branches, model.max_rows, model.parts
    )


def _common(first: Iterable[int], second: Iterable[int]) -> tuple[int, ...]:
    return tuple(a if a == b and a else -1 for a, b in zip(first, second, strict=True))


def work(
    models: Sequence[Model],
    outputs: Sequence[TensorSpec],
    channel: socket.socket,
    input_fd: int,
    output_fd: int,
    device: str,
    threads: ForkWorker,
    on_device: Sequence[ParametersOnDevice] = (),
    meeting_fd: int | None = None,
) -> None:
    """Sets the thread pools, warms the models up, says it is ready, then runs batches until told to stop.

    `outputs` are those that the models were described with, one description for all of them. `on_device` is
    what the model store holds on the device of their weights; the rest is copied there. At `meeting_fd` the
    first member of a unit listens for the others.
    """
    torch.set_num_interop_threads(threads.inter_op_threads)
    torch.set_num_threads(threads.intra_op_threads)
    try:
        unit = None if threads.member is None else Unit(threads.member, meeting_fd)
        if unit is not None:
            models = [unit.split(model) for model in models]
        runner = BatchRunner(models, outputs, Arena(input_fd), Arena(output_fd), device, on_device)
        runner.warm_up()
    except BaseException as error:
        messages.send(channel, BuildError(complaint(error)))
        raise
    os.nice(NICENESS)  # only now: a new worker should not wait for the old ones
    messages.send(channel, WorkerReady(os.getpid()))
    with contextlib.suppress(BrokenPipeError):  # the front has closed its end, and waits for no answer
        if unit is None:
            _serve(runner, channel)
        else:
            _serve_in(unit, runner, channel)


def _serve(runner: BatchRunner, channel: socket.socket) -> None:
    while (order := messages.receive(channel, RunBatch.from_wire)) is not None:
        messages.send(channel, replace(runner.run(order), number=order.number))


def _serve_in(unit: Unit, runner: BatchRunner, channel: socket.socket) -> None:
    """Until the unit breaks. Then this process ends, and with it what others wait for of it."""
    try:
        if unit.is_first:
            _lead(unit, runner, channel)
        while not unit.is_first:
            _run_together(unit, runner, unit.take(runner.inputs))
    except UnitBroken as error:
        log.warning("worker %d ends, since its unit is broken: %s", os.getpid(), error)


def _lead(unit: Unit, runner: BatchRunner, channel: socket.socket) -> None:
    orders = select.poll()
    orders.register(channel, select.POLLIN)
    while True:
        if not orders.poll(1e3 * KEEP_ALIVE_S):
            unit.keep_alive()
            continue
        order = messages.receive(channel, RunBatch.from_wire)
        if order is None:
            return
        unit.give(order, runner.inputs)
        messages.send(channel, replace(_run_together(unit, runner, order), number=order.number))


def _run_together(unit: Unit, runner: BatchRunner, order: RunBatch) -> BatchReply:
    """What this member answers; UnitBroken where another one may have answered something else."""
    reply = runner.run(order)
    unit.agree(isinstance(reply, BatchError))
    return reply


def _put(shared: ParametersOnDevice) -> None:
    """Uses the store's copy, or leaves the weights to be copied where this process cannot open it."""
    try:
        shared.put()
    except RuntimeError as error:  # CUDA's driver, or torch: not every device lets others open its memory
        log.warning("the weights on the device cannot be shared with this process: %s", error)


class BatchRunner:
    """Runs batches on the models that a worker holds."""

    def __init__(
        self,
        models: Sequence[Model],
        described: Sequence[TensorSpec],
        inputs: Arena,
        outputs: Arena,
        device: str,
        on_device: Sequence[ParametersOnDevice] = (),
    ) -> None:
        self.models, self.inputs, self.outputs = models, inputs, outputs
        self._described = described
        self._printed: set[str] = set()
        self._tenant: Tenant | None = None  # the last one, whose queries these are
        self._queries: TenantQueries
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        if self.stream is not None:
            for shared in on_device:
                _put(shared)
            for model in models:
                model.module.to(self.device)

    def warm_up(self) -> None:
        with self._on_stream():
            for model in self.models:
                model.run({name: _on(x, self.device) for name, x in model.example().items()})

    def run(self, order: RunBatch) -> BatchReply:
        """Runs one batch; the reply places the outputs, or says what the model complained of."""
        if order.intra_op_threads != torch.get_num_threads():
            torch.set_num_threads(order.intra_op_threads)
        start_ns = time.monotonic_ns()
        try:
            with self._on_stream():
                self.inputs.ensure(order.capacity_bytes)
                tensors = {placed.name: self._values(placed) for placed in order.inputs}
                read_ns = time.monotonic_ns()
                results = as_described(self.models[order.model].run(tensors), self._described)
                results = {name: _on(values, "cpu") for name, values in results.items()}
            self._wait_as_told(order, read_ns)
            infer_ns = time.monotonic_ns()
            outputs = self._write(results)
        except BaseException as error:  # of the user's code, which may raise what it likes: no signal does
            return self._failed(error)
        end_ns = time.monotonic_ns()
        compute = ComputeTimes(read_ns - start_ns, infer_ns - read_ns, end_ns - infer_ns)
        return BatchOutputs(outputs, self.outputs.capacity_bytes, compute)

    def _wait_as_told(self, order: RunBatch, began_ns: int) -> None:
        """Lets the faults happen that the front's injector wants of this batch."""
        if order.slow_ms:
            time.sleep(1e-3 * order.slow_ms)
        if order.tenant is None:
            return
        if order.tenant != self._tenant:
            self._tenant, self._queries = order.tenant, TenantQueries(order.tenant)
        time.sleep(1e-9 * self._queries.delay_ns(began_ns, time.monotonic_ns() - began_ns))

    def _failed(self, error: BaseException) -> BatchError:
        """The reply; the server's log gets where it was raised, once for each type of exception."""
        if isinstance(error, ModelError):
            return BatchError(complaint(error))
        kind = type(error).__name__
        if kind not in self._printed:
            self._printed.add(kind)
            with contextlib.suppress(OSError, ValueError):  # nobody reads the log any more
                sys.stderr.write(printable("".join(traceback.format_exception(error))))
                sys.stderr.flush()
        return BatchError(f"the model raised {complaint(error)}", self._is_broken())

    def _is_broken(self) -> bool:
        """Whether no batch can run here any more: after some errors a CUDA context answers nothing else."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def _values(self, placed: Placed) -> Values:
        return _on(CODECS[placed.datatype].tensor(self.inputs.array(placed)), self.device)

    def _write(self, results: dict[str, Values]) -> list[Placed]:
        _check_count(results)
        tensors = []
        for name, values in results.items():
            datatype = datatype_of(name, values)
            size_bytes = CODECS[datatype].output_bytes(values)
            tensors.append((name, datatype, tuple(values.shape), size_bytes))
        placed, needed_bytes = place(tensors)
        self.outputs.ensure_for_batch(needed_bytes)
        for where, values in zip(placed, results.values(), strict=True):
            CODECS[where.datatype].put(values, self.outputs.bytes_of(where))
        return placed

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def _on(values: Values, device: torch.device | str) -> Values:
    """Tensors there, strings where they are."""
    return values if isinstance(values, np.ndarray) else values.to(device)


def _check_count(results: dict[str, Values]) -> None:
    for name, values in results.items():
        if isinstance(values, np.ndarray) and values.size > MAX_STRINGS:
            raise ModelError(
                f"output {name!r} has {values.size} strings, and a batch may have {MAX_STRINGS}; "
                "lower max_batch_size, or answer fewer"
            )
