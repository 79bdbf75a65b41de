"""Every message between the front, a zygote and its workers comes out of its socket as it went in."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from serving_adapter.messages import receive_with_descriptors, socket_pair
from serving_adapter.server.statistics.model_statistics import ComputeTimes
from serving_adapter.server.workers import messages
from serving_adapter.server.workers.arena import Placed
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    BuildError,
    BuildModels,
    ClusterReport,
    Forked,
    ForkWorker,
    Message,
    ModelDescription,
    ModelReference,
    NodeEnded,
    NodeUse,
    RunBatch,
    SignalWorker,
    WorkerReady,
    WorkerSignal,
    parse_batch_reply,
    parse_build_reply,
    parse_worker_message,
    parse_worker_start,
    parse_zygote_answer,
    parse_zygote_order,
)
from serving_adapter.server.workers.parallelism import NodePlacement, UnitMember
from serving_adapter.server.workers.tenant import Tenant
from serving_adapter.tensors import TensorSpec

PLACED = [Placed("x", "FP32", (2, 16), 0, 128), Placed("length", "INT64", (2,), 128, 16)]
TOKENS = TensorSpec("token_ids", "INT64", (-1,), pad_value=0, max_size=512)
REFERENCES = (ModelReference("minilm", (("layers", "6"), ("seed", "1"))), ModelReference("noop"))


@pytest.mark.parametrize(
    ("message", "parse"),
    [
        (BuildModels(REFERENCES, "cuda:1", 60.0), BuildModels.from_wire),
        (ModelDescription((TOKENS,), (TensorSpec("y", "FP32", (4, 4)),), True), parse_build_reply),
        (BuildError("there is no such model"), parse_build_reply),
        (ForkWorker(inter_op_threads=2, intra_op_threads=3), parse_zygote_order),
        (ForkWorker(1, 1, instances=4, placement=NodePlacement(2, "pack", 2)), parse_zygote_order),
        (ForkWorker(1, 1, member=UnitMember(1, 2, "10.0.0.2", "10.0.0.1", 4000)), parse_zygote_order),
        (SignalWorker(WorkerSignal.STOP, 17), parse_zygote_order),
        (Forked(17), parse_zygote_answer),
        (Forked(1 << 22, node="10.0.0.2"), parse_zygote_answer),
        (Forked(1 << 22, node="10.0.0.2", more_nodes=("10.0.0.3",)), parse_zygote_answer),
        (Forked(0, "it could not be forked"), parse_zygote_answer),
        (ClusterReport((NodeUse("10.0.0.2", 4.0, 3, 2, 1),), 1.5), parse_zygote_answer),
        (ClusterReport((NodeUse("10.0.0.2", 4.0, 3, 2, 1),), 1.5, goes_on=True), parse_zygote_answer),
        (WorkerReady(17), parse_worker_start),
        (BuildError("it failed while it warmed up"), parse_worker_start),
        (RunBatch(1, PLACED, 1 << 20, 2, slow_ms=0.5, number=7), RunBatch.from_wire),
        (RunBatch(0, PLACED, 1 << 20, 1, tenant=Tenant(8.4, 50.0, 3, 12)), RunBatch.from_wire),
        (BatchOutputs(PLACED, 1 << 21, ComputeTimes(1, 2, 3), number=7), parse_batch_reply),
        (BatchError("the model raised ValueError: no", number=7), parse_worker_message),
        (NodeEnded("10.0.0.2"), parse_worker_message),
        (BatchError("the model raised RuntimeError: CUDA error", worker_is_broken=True), parse_batch_reply),
    ],
)
def test_a_message_arrives_as_it_was_sent(message: Message, parse: Callable[[messages.Wire], object]) -> None:
    ours, theirs = socket_pair()
    with ours, theirs:
        messages.send(ours, message)
        assert messages.receive(theirs, parse) == message


def test_descriptors_ride_along() -> None:
    ours, theirs = socket_pair()
    with ours, theirs:
        messages.send(ours, ForkWorker(1, 1), (ours.fileno(),))
        wire, descriptors = receive_with_descriptors(theirs)
        assert wire is not None
        assert parse_zygote_order(wire) == ForkWorker(1, 1)
        (descriptor,) = descriptors
        os.close(descriptor)


def test_there_is_no_message_from_a_side_that_is_gone() -> None:
    ours, theirs = socket_pair()
    with theirs:
        ours.close()
        assert messages.receive(theirs, parse_batch_reply) is None
