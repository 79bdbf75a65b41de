"""Answers of many MiB are right, bounded, and copied without holding up the event loop."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.protocol.sent import response_bytes
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import InputTensor, OutputTensor
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.workers import pool
from serving_adapter.server.workers.arena import Arena, CopiedOutputs, Placed
from serving_adapter.server.workers.handles import WorkerHandle
from serving_adapter.server.workers.messages import ModelReference, WorkerSignal
from tests.support.models.large import PER_MIB
from tests.support.servers.paused_relay import PausedRelay
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

LARGE = "tests.support.models.large:large"
MOST_MIB = 8
BATCH = 3
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def front() -> Iterator[RunningServer]:
    """One worker, whose arena the next batch overwrites; batches wait until they are full."""
    waiting = ("--max-batch-size", BATCH, "--max-queue-delay-us", 10_000_000)
    running = start("--model", LARGE, *waiting, "--max-message-bytes", (MOST_MIB << 20) + 100)
    yield running
    assert running.stop() == 0
    assert running.process.stdout is not None
    running.process.stdout.close()


def rows_of(mib: int, filling: float, rows: int = 1) -> np.ndarray:
    return np.full((rows, 2), [mib, filling], np.float32)


def request_of(mib: int, filling: float, rows: int = 1, *wanted: str) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="large")
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 2])
    request.raw_input_contents.append(rows_of(mib, filling, rows).tobytes())
    for name in wanted:
        request.outputs.add(name=name)
    return request


@pytest.fixture(scope="module")
def stub(front: RunningServer) -> Iterator[GRPCInferenceServiceStub]:
    options = [("grpc.max_receive_message_length", -1)]
    with grpc.insecure_channel(front.address, options=options) as channel:
        yield GRPCInferenceServiceStub(channel)


def ask(stub: GRPCInferenceServiceStub, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
    return stub.ModelInfer(request, timeout=PATIENCE_S)


def test_each_request_of_large_batches_gets_its_own_rows(stub):
    fillings = [float(i) for i in range(4 * BATCH)]
    with ThreadPoolExecutor(len(fillings)) as threads:
        responses = threads.map(lambda filling: ask(stub, request_of(3, filling)), fillings)
        for filling, response in zip(fillings, responses, strict=True):
            assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
                ("filled", "FP32", [1, 3 * PER_MIB]),
                ("mib", "FP32", [1, 1]),
            ]
            filled, mib = response.raw_output_contents
            assert filled == np.full(3 * PER_MIB, filling, np.float32).tobytes()
            assert mib == np.float32(3).tobytes()


def test_an_answer_above_the_limit_is_refused_in_a_sentence_and_counts_as_failed(front, stub):
    before = front.counted("nv_inference_request_failure", reason="BACKEND")
    assert ask(stub, request_of(MOST_MIB // 2, 1.0, BATCH, "mib")), "outputs that are left out do not count"
    with pytest.raises(grpc.RpcError) as refused:
        ask(stub, request_of(MOST_MIB // 2, 1.0, BATCH))
    size_bytes, most_bytes = BATCH * ((MOST_MIB // 2 << 20) + 4), (MOST_MIB << 20) + 100
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert refused.value.details() == (
        f"the answer would have {size_bytes} bytes, the server gives at most {most_bytes}; ask for fewer "
        "rows or outputs, or start the server with a larger --max-message-bytes"
    )
    assert front.counted("nv_inference_request_failure", reason="BACKEND") == before + 1
    assert front.counted("rrl_in_flight_request_count") == 0


def test_only_the_outputs_that_are_asked_for_come(stub):
    response = ask(stub, request_of(1, 2.0, BATCH, "mib"))
    assert [output.name for output in response.outputs] == ["mib"]
    assert response.raw_output_contents[:] == [np.full(BATCH, 1, np.float32).tobytes()]


@pytest.mark.parametrize("data", [b"", bytes(127), bytes(128), bytes(3 << 14)])
def test_an_answer_travels_as_protobuf_would_write_it(data):
    output = OutputTensor("y", "UINT8", (1, len(data)), data)
    sent = response_bytes(pb.ModelInferResponse(model_name="m", id="7"), [output, output])
    expected = pb.ModelInferResponse(model_name="m", id="7", raw_output_contents=[data, data])
    for _ in range(2):
        expected.outputs.add(name="y", datatype="UINT8", shape=[1, len(data)])
    assert pb.ModelInferResponse.FromString(sent) == expected


def test_a_large_answer_is_copied_once_as_it_is_written():
    size_bytes = 8 << 20
    output = OutputTensor("y", "UINT8", (1, size_bytes), memoryview(bytes(size_bytes)))
    tracemalloc.start()
    try:
        response_bytes(pb.ModelInferResponse(), [output])
        assert tracemalloc.get_traced_memory()[1] < 1.1 * size_bytes
    finally:
        tracemalloc.stop()


def test_answers_that_a_client_does_not_read_are_bounded_and_cost_nobody_else_his(start_server):
    """Of 20 MiB, an answer of 6 MiB takes 12, and a connection may have more until it has its share."""
    server = start_server("--model", LARGE, "--max-batch-size", BATCH, "--max-queue-bytes", 20 << 20)
    with PausedRelay(server.address) as relay, grpc.insecure_channel(server.address) as channel:
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(relay.address, options=options) as slow:
            asked = [request_of(6, float(i)) for i in range(5)]
            unread = [GRPCInferenceServiceStub(slow).ModelInfer.future(request) for request in asked]
            until(lambda: server.counted("nv_inference_request_failure", reason="REJECTED") == 3)
            honest = GRPCInferenceServiceStub(channel).ModelInfer(request_of(1, 1.0), timeout=PATIENCE_S)
            assert honest.raw_output_contents[0] == np.full(PER_MIB, 1.0, np.float32).tobytes()
            relay.resume()
            errors = [future.exception(PATIENCE_S) for future in unread]
            refused = [error for error in errors if isinstance(error, grpc.RpcError)]
            assert len(refused) == 3
            for error in refused:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert "read what you asked for" in error.details()
            for i, error in enumerate(errors):
                if error is None:
                    filled = unread[i].result().raw_output_contents[0]
                    assert filled == np.full(6 * PER_MIB, i, np.float32).tobytes()
        told = GRPCInferenceServiceStub(channel).ModelStatistics(pb.ModelStatisticsRequest(name="large"))
        counted = told.model_stats[0].inference_stats
        assert (counted.success.count, counted.fail.count) == (3, 3), "each request counts once"
    assert server.counted("nv_inference_request_success") == 3
    assert server.counted("nv_inference_request_failure") == 3
    assert server.counted("rrl_request_latency_seconds_count") == 3


async def served() -> ServedModel:
    """The front in this process, with one worker beside it."""
    settings = (Knobs(), Protection(), ResilienceSettings(), RedundantModels())
    model = ServedModel("large", ModelReference(LARGE), "cpu", *settings)
    await model.start()
    return model


def test_a_thread_copies_large_outputs_and_a_worker_that_dies_meanwhile_loses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    ended = threading.Event()
    tell_begun: list[Callable[[], object]] = []

    class Watched(CopiedOutputs):
        def __init__(self, placed: Iterable[Placed], arena: Arena) -> None:
            threads.append(threading.get_ident())
            if len(threads) == 1:
                tell_begun[0]()
                assert ended.wait(PATIENCE_S)
            super().__init__(placed, arena)

    monkeypatch.setattr(pool, "CopiedOutputs", Watched)
    worker_died = pool.WorkerPool._worker_died

    def told(self: pool.WorkerPool, worker: WorkerHandle) -> None:
        worker_died(self, worker)
        ended.set()

    monkeypatch.setattr(pool.WorkerPool, "_worker_died", told)

    async def scenario() -> None:
        model, begun = await served(), asyncio.Event()
        tell_begun.append(partial(asyncio.get_running_loop().call_soon_threadsafe, begun.set))
        asking = asyncio.ensure_future(model.infer([InputTensor(rows_of(8, 5.0).tobytes(), (1, 2))]))
        await asyncio.wait_for(begun.wait(), PATIENCE_S)
        model.pool.workers[0].signal(WorkerSignal.KILL)
        answer = await asyncio.wait_for(asking, PATIENCE_S)
        assert answer.outputs[0].data == np.full(8 * PER_MIB, 5, np.float32).tobytes()
        assert len(threads) == 2, "the batch ran again"
        assert threading.get_ident() not in threads
        assert model.replacements == 1
        assert model.in_flight == model.pool.busy == 0
        await model.close(grace_s=1.0)

    asyncio.run(scenario())
