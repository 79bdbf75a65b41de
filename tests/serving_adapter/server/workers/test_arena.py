"""Shared memory for batches: it grows at once, and what only a large batch needed is given back."""

from __future__ import annotations

import asyncio
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from serving_adapter.server.requests import UNPROTECTED, Batch, InputTensor, Request
from serving_adapter.server.workers.arena import BATCHES_TO_LOOK_BACK, INITIAL_BYTES, Arena
from serving_adapter.server.workers.messages import BatchOutputs, RunBatch
from serving_adapter.server.workers.worker import BatchRunner
from serving_adapter.tensors import TensorSpec
from tests.support.models.large import large

LARGE_BYTES = 4 * INITIAL_BYTES
X = {"x": TensorSpec("x", "UINT8", (-1,))}


@pytest.fixture
def arenas() -> Iterator[tuple[Arena, Arena]]:
    """That of who writes, and that of who reads."""
    writer = Arena.create("test")
    reader = Arena(os.dup(writer.fd))
    yield writer, reader
    for arena in (writer, reader):
        arena.close()


def held_bytes(arena: Arena) -> int:
    return 512 * os.fstat(arena.fd).st_blocks


def batch_of(data: np.ndarray) -> Batch:
    future = asyncio.Future[None](loop=asyncio.new_event_loop())
    future.get_loop().close()
    tensor = InputTensor(data.tobytes(), (1, *data.shape))
    return Batch([Request([tensor], None, future, 0)], UNPROTECTED)  # type: ignore[arg-type]


def send(writer: Arena, reader: Arena, size_bytes: int, value: int) -> None:
    """A batch of so many bytes, which arrives as it was sent."""
    sent = np.full(size_bytes, value, np.uint8)
    (placed,) = batch_of(sent).write(X, writer)
    reader.ensure(writer.capacity_bytes)
    np.testing.assert_array_equal(reader.array(placed)[0], sent)


def test_one_that_cannot_be_mapped_leaves_no_descriptor(monkeypatch):
    def refuse(*_: object) -> mmap.mmap:
        raise OSError(24, "Too many open files")

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as full:
        full.setattr(mmap, "mmap", refuse)
        with pytest.raises(OSError, match="Too many"):
            Arena.create("test")
    assert os.listdir("/proc/self/fd") == before


def test_the_memory_of_a_batch_larger_than_all_others_of_late_is_given_back(arenas):
    writer, reader = arenas
    send(writer, reader, LARGE_BYTES, 1)
    assert held_bytes(writer) >= LARGE_BYTES
    for number in range(2 * BATCHES_TO_LOOK_BACK):
        send(writer, reader, 1000, number % 256)
    assert held_bytes(writer) <= INITIAL_BYTES
    send(writer, reader, LARGE_BYTES, 2)
    send(writer, reader, 2 * LARGE_BYTES, 3)


def test_where_large_batches_come_now_and_then_their_memory_is_kept(arenas):
    writer, reader = arenas
    for number in range(3 * BATCHES_TO_LOOK_BACK):
        send(writer, reader, LARGE_BYTES if number % 100 == 0 else 1000, number % 256)
    assert held_bytes(writer) >= LARGE_BYTES


def test_a_worker_gives_back_what_a_large_answer_needed(arenas):
    inputs, outputs = Arena.create("inputs"), arenas[0]
    model = large()
    described = [TensorSpec("filled", "FP32", (-1,)), TensorSpec("mib", "FP32", (1,))]
    runner = BatchRunner([model], described, inputs, outputs, "cpu")
    specs = {spec.name: spec for spec in model.inputs}

    def answer(mib: int) -> None:
        placed = batch_of(np.array([mib, 7.0], np.float32)).write(specs, inputs)
        order = RunBatch(0, placed, inputs.capacity_bytes, torch.get_num_threads(), 0.0, 1)
        reply = runner.run(order)
        assert isinstance(reply, BatchOutputs)
        assert (outputs.array(reply.outputs[0]) == 7).all()

    answer(mib=LARGE_BYTES >> 20)
    assert held_bytes(outputs) >= LARGE_BYTES
    for _ in range(2 * BATCHES_TO_LOOK_BACK):
        answer(mib=0)
    assert held_bytes(outputs) <= INITIAL_BYTES
    inputs.close()
