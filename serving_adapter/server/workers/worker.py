"""A worker: runs batches that lie in its input arena and leaves the answers in its output arena."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from serving_adapter import messages
from serving_adapter.models.model import Model
from serving_adapter.server.workers.arena import Arena, Placed, place
from serving_adapter.tensors import NUMPY_OF_DATATYPE

DATATYPE_OF_TORCH = {
    torch.from_numpy(np.zeros(1, dtype)).dtype: name for name, dtype in NUMPY_OF_DATATYPE.items()
}
NICENESS = 2  # the front must get a processor at once even when every worker is busy


def describe(model: Model, sizes: tuple[int, int]) -> dict[str, Any]:
    """What the front must know of a model, as JSON; output dimensions that follow a variable input are -1.

    For a child just forked, as `work` is.
    """
    torch.set_num_threads(1)  # renews PyTorch's pool: branches that all do so at once may end the process
    first, second = (model.run(model.example(rows=1, size=size)) for size in sizes)
    outputs = []
    for name, tensor in first.items():
        shape = [a if a == b else -1 for a, b in zip(tensor.shape[1:], second[name].shape[1:], strict=True)]
        outputs.append({"name": name, "datatype": DATATYPE_OF_TORCH[tensor.dtype], "shape": shape})
    inputs = [vars(spec) | {"shape": list(spec.shape)} for spec in model.inputs]
    return {"inputs": inputs, "outputs": outputs, "has_parallel_branches": model.has_parallel_branches}


def work(
    models: Sequence[Model],
    channel: socket.socket,
    input_fd: int,
    output_fd: int,
    device: str,
    settings: dict[str, Any],
) -> None:
    """Sets the thread pools, warms the models up, says it is ready, then runs batches until told to stop."""
    torch.set_num_interop_threads(settings["inter_op_threads"])
    torch.set_num_threads(settings["intra_op_threads"])
    worker = Worker(models, Arena(input_fd), Arena(output_fd), device)
    worker.warm_up()
    os.nice(NICENESS)  # only now: a new worker should not wait for the old ones
    messages.send(channel, {"ready": os.getpid()})
    while (message := messages.receive(channel)) is not None:
        messages.send(channel, worker.run(message))


class Worker:
    def __init__(self, models: Sequence[Model], inputs: Arena, outputs: Arena, device: str) -> None:
        self.models, self.inputs, self.outputs = models, inputs, outputs
        self.device = torch.device(device)
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        if self.stream is not None:
            for model in models:
                model.module.to(self.device)

    def warm_up(self) -> None:
        with self._on_stream():
            for model in self.models:
                model.run({name: x.to(self.device) for name, x in model.example().items()})

    def run(self, message: dict[str, Any]) -> dict[str, Any]:
        """Runs one batch; the answer places the outputs, or says what the model complained of."""
        if message["intra_op_threads"] != torch.get_num_threads():
            torch.set_num_threads(message["intra_op_threads"])
        start_ns = time.monotonic_ns()
        try:
            with self._on_stream():
                tensors = {p.name: self._tensor(p) for p in self._placed(message)}
                read_ns = time.monotonic_ns()
                results = self.models[message["model"]].run(tensors)
                results = {name: tensor.to("cpu") for name, tensor in results.items()}
            _suffer_injected_delay(message)
            infer_ns = time.monotonic_ns()
            outputs = self._write(results)
        except Exception as error:
            return {"error": f"the model raised {type(error).__name__}: {error}"[:4096]}
        end_ns = time.monotonic_ns()
        compute_ns = [read_ns - start_ns, infer_ns - read_ns, end_ns - infer_ns]
        return {"outputs": outputs, "capacity": self.outputs.capacity_bytes, "compute_ns": compute_ns}

    def _placed(self, message: dict[str, Any]) -> Iterator[Placed]:
        self.inputs.ensure(message["capacity"])
        return (
            Placed(name, datatype, tuple(shape), offset)
            for name, datatype, shape, offset in message["inputs"]
        )

    def _tensor(self, placed: Placed) -> torch.Tensor:
        array = torch.from_numpy(self.inputs.array(placed))
        return array.to(self.device)

    def _write(self, results: dict[str, torch.Tensor]) -> list[Placed]:
        placed, needed = place(
            (name, DATATYPE_OF_TORCH[tensor.dtype], tuple(tensor.shape)) for name, tensor in results.items()
        )
        self.outputs.ensure(needed)
        for place_, tensor in zip(placed, results.values(), strict=True):
            torch.from_numpy(self.outputs.array(place_)).copy_(tensor)
        return placed

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)


def _suffer_injected_delay(message: dict[str, Any]) -> None:
    """Makes the batch take longer where the front's fault injector says so (faults.py)."""
    if "slow_ms" in message:
        time.sleep(1e-3 * message["slow_ms"])
