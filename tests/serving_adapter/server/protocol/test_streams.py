"""Many requests over one call, by a stock client."""

from __future__ import annotations

import queue
import signal
from itertools import chain

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.waiting import until


def request_of(value: float, name: str = "x", number: str = "") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="held", id=number)
    request.inputs.add(name=name, datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.full(16, value, np.float32).tobytes())
    return request


def test_a_stock_client_streams_requests_and_hears_of_each(client):
    heard: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    for k in range(20):
        tensor = triton.InferInput("x", [1, 16], "FP32")
        tensor.set_data_from_numpy(np.full((1, 16), k, np.float32))
        client.async_stream_infer("sleep", [tensor], request_id=str(k))
    answers = [heard.get(timeout=30) for _ in range(20)]
    client.stop_stream()
    assert all(error is None for _, error in answers)
    by_id = {result.get_response().id: result for result, _ in answers}
    name = client.get_model_metadata("sleep").outputs[0].name
    assert [int(by_id[str(k)].as_numpy(name)[0, 0]) for k in range(20)] == list(range(20))
    assert all(each.get_response().parameters["triton_final_response"].bool_param for each in by_id.values())


def test_who_asks_for_an_empty_final_answer_gets_the_one_that_is_final(client):
    heard: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    tensor = triton.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 16), np.float32))
    client.async_stream_infer("sleep", [tensor], enable_empty_final_response=True)
    result, error = heard.get(timeout=30)
    client.stop_stream()
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param
    assert heard.empty()


def test_a_bad_request_leaves_the_stream_to_the_others(stub: GRPCInferenceServiceStub):
    def sleeping(request: pb.ModelInferRequest) -> pb.ModelInferRequest:
        request.model_name = "sleep"
        return request

    requests = [
        request_of(1.0, number="a"),
        request_of(1.0, name="y", number="b"),
        request_of(2.0, number="c"),
    ]
    answers = {a.infer_response.id: a for a in stub.ModelStreamInfer(iter(map(sleeping, requests)))}
    assert answers["b"].error_message == "model 'sleep' takes the inputs 'x', got 'y'"
    assert answers["a"].error_message == answers["c"].error_message == ""
    assert len(answers["c"].infer_response.raw_output_contents[0]) == 64


def test_a_slow_request_does_not_hold_up_the_next(start_server, tmp_path):
    gate = tmp_path / "gate"
    model = ("--model", "tests.support.models.gated:held", "--model-option", f"gate={gate}")
    server = start_server(*model, "--instances", 2, "--intra-op-threads", 1)
    with grpc.insecure_channel(server.address) as channel:
        requests = [request_of(7.0, number="slow"), request_of(1.0, number="quick")]
        answers = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests), timeout=60)
        assert next(answers).infer_response.id == "quick"
        gate.touch()
        assert next(answers).infer_response.id == "slow"


def test_what_a_stream_sends_beyond_the_queue_waits_in_its_connection(start_server):
    server = start_server("--model", "noop", "--max-queue-size", 4)
    with grpc.insecure_channel(server.address) as channel:
        requests = [request_of(float(k), number=str(k)) for k in range(100)]
        for request in requests:
            request.model_name = "noop"
        answers = list(GRPCInferenceServiceStub(channel).ModelStreamInfer(iter(requests), timeout=60))
    assert {answer.error_message for answer in answers} == {""}
    assert len(answers) == 100


def test_a_client_that_leaves_gives_its_requests_up(start_server, tmp_path):
    gate = tmp_path / "gate"
    model = ("--model", "tests.support.models.gated:held", "--model-option", f"gate={gate}")
    server = start_server(*model, "--intra-op-threads", 1)
    with grpc.insecure_channel(server.address) as channel:
        answers = GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([request_of(7.0)]))
        until(lambda: server.counted("rrl_in_flight_request_count") == 1)
        answers.cancel()
        until(lambda: server.counted("nv_inference_request_failure", reason="CANCELED") == 1)
    gate.touch()


def test_streams_that_stay_leave_room_for_others(start_server):
    queued = 8
    server = start_server("--model", "noop", "--max-queue-size", queued)
    most = (2 * queued + 1024) // 2
    waits: queue.Queue = queue.Queue()
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        open_streams = [stub.ModelStreamInfer(iter(waits.get, None)) for _ in range(most)]
        with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as other:
            refused = until(lambda: _refusal(GRPCInferenceServiceStub(other)))
            assert "streams are open, the most that are served" in refused
            assert GRPCInferenceServiceStub(other).ServerReady(pb.ServerReadyRequest()).ready
        for stream in open_streams:
            stream.cancel()
        for _ in open_streams:
            waits.put(None)


def _refusal(stub: GRPCInferenceServiceStub) -> str:
    try:
        list(stub.ModelStreamInfer(iter([])))
    except grpc.RpcError as error:
        return error.details() if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED else ""
    return ""


def test_a_request_that_cannot_be_read_is_refused_in_the_stream(server):
    with grpc.insecure_channel(server.address) as channel:
        stream = channel.stream_stream(
            "/inference.GRPCInferenceService/ModelStreamInfer",
            request_serializer=bytes,
            response_deserializer=pb.ModelStreamInferResponse.FromString,
        )
        (answer,) = stream(iter([b"\xff"]))
    assert "no ModelInferRequest" in answer.error_message


def test_who_stays_hears_that_the_server_drains_and_does_not_hold_it_up(start_server, tmp_path):
    gate = tmp_path / "gate"
    waits: queue.Queue = queue.Queue()
    model = ("--model", "tests.support.models.gated:held", "--model-option", f"gate={gate}")
    server = start_server(*model, "--instances", 2, "--intra-op-threads", 1, "--drain-s", 600)
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=120)
        assert next(watch) == b"\x08\x01"
        reflection = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
        asked = reflection(iter(waits.get, None), timeout=120)
        idle = stub.ModelStreamInfer(chain([request_of(1.0)], iter(waits.get, None)), timeout=120)
        assert next(idle).error_message == ""
        busy = stub.ModelStreamInfer(chain([request_of(7.0, number="slow")], iter(waits.get, None)))
        until(lambda: server.counted("rrl_in_flight_request_count") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert list(watch) == [b"\x08\x02"]
        with pytest.raises(grpc.RpcError, match="open a stream to another") as refused:
            next(idle)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert list(asked) == []
        gate.touch()
        assert next(busy).infer_response.id == "slow"
        assert server.process.wait(120) == 0
        for _ in range(3):
            waits.put(None)
