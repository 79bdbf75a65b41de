"""What a client asks for is obeyed or refused by name, in a request, in a configuration and as a method."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from serving_adapter import strings
from serving_adapter.lease import DURATION_PARAMETER, OWNER_PARAMETER, PROLONGS_PARAMETER
from serving_adapter.server.protocol.inference_request import read_inputs
from serving_adapter.server.protocol.received import InferenceMessage
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.tensors import TensorSpec
from tests.support.models.gated import WAITS
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

INVALID, LATE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.DEADLINE_EXCEEDED


def request(rows: int = 1) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name="sleep")
    asked.inputs.add(name="x", datatype="FP32", shape=[rows, 16])
    asked.raw_input_contents.append(bytes(64 * rows))
    return asked


def refused(stub, asked: pb.ModelInferRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(asked, timeout=30)
    return caught.value.code(), caught.value.details()


def assert_invalid(method, asked, says: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        method(asked, timeout=30)
    assert caught.value.code() is INVALID
    assert says in caught.value.details()


# --- requests --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field", "value", "says"),
    [
        ("priority", "uint64_param", 1, "asks for 'priority', and model 'sleep' has no priority levels"),
        ("sequence_id", "int64_param", 7, "asks for 'sequence_id'"),
        ("sequence_id", "string_param", "abc", "asks for 'sequence_id'"),
        ("sequence_end", "bool_param", True, "asks for 'sequence_end'"),
        ("timeuot", "int64_param", 5, "the unknown parameter 'timeuot'; it takes exact, timeout, priority"),
        ("timeout", "int64_param", -1, "'timeout' must be a whole number of microseconds"),
        ("timeout", "string_param", "soon", "got 'soon'"),
    ],
)
def test_a_request_parameter_that_cannot_be_obeyed_is_refused_by_name(stub, name, field, value, says):
    asked = request()
    setattr(asked.parameters[name], field, value)
    code, sentence = refused(stub, asked)
    assert code is INVALID
    assert says in sentence


def test_parameters_that_ask_for_nothing_are_fine(stub):
    asked = request()
    asked.parameters["priority"].uint64_param = 0
    asked.parameters["sequence_start"].bool_param = False
    asked.parameters["timeout"].int64_param = 0
    assert len(stub.ModelInfer(asked, timeout=30).outputs) == 1


def test_inputs_and_outputs_have_no_shared_memory_and_no_classes(stub):
    asked = request()
    asked.inputs[0].parameters["shared_memory_region"].string_param = "mine"
    assert "input 'x' asks for 'shared_memory_region'" in refused(stub, asked)[1]
    asked = request()
    asked.outputs.add(name="y").parameters["classification"].int64_param = 3
    assert "output 'y' asks for 'classification'" in refused(stub, asked)[1]


class GatedServer(NamedTuple):
    running: RunningServer
    gate: Path

    def in_flight(self) -> int:
        page = urllib.request.urlopen(self.running.metrics_url, timeout=10).read().decode()
        (count,) = re.findall(r"^rrl_in_flight_request_count\{.*\} (\S+)$", page, re.MULTILINE)
        return int(float(count))


@pytest.fixture(scope="module")
def gated_server(tmp_path_factory) -> Iterator[GatedServer]:
    gate = tmp_path_factory.mktemp("gate") / "open"
    model = ("--model", "tests.support.models.gated:held", "--model-option", f"gate={gate}")
    running = start(*model, "--max-queue-bytes", 10_000)
    yield GatedServer(running, gate)
    running.stop()
    assert running.process.stdout is not None
    running.process.stdout.close()


@pytest.fixture
def held(gated_server) -> Iterator[tuple[GRPCInferenceServiceStub, grpc.Future]]:
    """A server that runs one request until the test is over."""
    gated_server.gate.unlink(missing_ok=True)
    with grpc.insecure_channel(gated_server.running.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        waits = to_held(100)
        waits.raw_input_contents[0] = np.full((100, 16), WAITS, np.float32).tobytes()
        first = stub.ModelInfer.future(waits, timeout=60)
        until(lambda: gated_server.in_flight() == 1)
        yield stub, first
        gated_server.gate.touch()
        assert len(first.result().outputs) == 1
        assert len(stub.ModelInfer(to_held(200), timeout=30).outputs) == 1  # alone, whatever its size


def to_held(rows: int = 1) -> pb.ModelInferRequest:
    asked = request(rows)
    asked.model_name = "held"
    return asked


def test_a_timeout_ends_a_request_that_waits_and_lets_the_others_be(held):
    stub, first = held
    asked = to_held()
    asked.parameters["timeout"].int64_param = 50_000
    code, sentence = refused(stub, asked)
    assert code is LATE
    assert "no answer within the request's timeout of 50000 us" in sentence
    assert not first.done()


def test_inputs_are_bounded_in_bytes_those_that_are_run_included(held):
    stub, _ = held
    code, sentence = refused(stub, to_held(100))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "is full (its inputs take 6400 of 10000 bytes, and these 6400 more); send less" in sentence


@pytest.mark.parametrize(
    ("contents", "says"),
    [
        ({"fp32_contents": [0.0] * 17}, "needs 16 values in fp32_contents, got 17"),
        ({"int64_contents": [0] * 16}, "must be sent in fp32_contents or raw_input_contents, got int64"),
        ({}, "needs 16 values in fp32_contents, got 0"),
    ],
)
def test_typed_contents_that_do_not_fit_are_refused_by_their_number(stub, contents, says):
    asked = pb.ModelInferRequest(model_name="sleep")
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 16], contents=pb.InferTensorContents(**contents))
    assert says in refused(stub, asked)[1]


def test_too_many_typed_strings_are_refused_before_one_is_packed(monkeypatch):
    monkeypatch.delattr(strings, "packed")
    spec = TensorSpec("text", "BYTES", (-1,))
    model: Any = SimpleNamespace(name="texts", inputs={spec.name: spec}, max_rows=1)
    asked = pb.ModelInferRequest(model_name=model.name)
    count = strings.MAX_STRINGS + 1
    contents = pb.InferTensorContents(bytes_contents=[b""] * count)
    asked.inputs.add(name=spec.name, datatype="BYTES", shape=[1, count], contents=contents)
    with pytest.raises(Refused, match=f"at most {strings.MAX_STRINGS} strings"):
        read_inputs(InferenceMessage(asked, [], asked.ByteSize()), model)


def test_a_tensor_is_sent_one_way(stub):
    asked = request()
    asked.inputs[0].contents.fp32_contents.extend([0.0] * 16)
    assert "typed contents beside raw_input_contents" in refused(stub, asked)[1]


def test_a_sentence_is_short_enough_for_a_client_however_long_the_name_it_repeats(stub):
    asked = request()
    asked.inputs[0].name = "\N{SNOWMAN}" * 50_000
    code, sentence = refused(stub, asked)
    assert code is INVALID
    assert sentence.startswith("model 'sleep' takes the inputs 'x', got")


def test_large_raw_tensors_are_answered_and_bytes_that_are_no_request_are_refused(server, stub):
    values = np.arange(1024 * 16, dtype=np.float32).reshape(1024, 16)
    asked = request(1024)
    asked.raw_input_contents[0] = values.tobytes()
    data = asked.SerializeToString()
    with grpc.insecure_channel(server.address) as channel:
        infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer = pb.ModelInferResponse.FromString(infer(data, timeout=30))
        assert answer.raw_output_contents[0] == values.tobytes()
        for broken in (data[:-1], b"\x07" * 70_000, b"\xff" * 70_000, b"\xff" * 9):
            with pytest.raises(grpc.RpcError, match="these bytes are no ModelInferRequest") as caught:
                infer(broken, timeout=30)
            assert caught.value.code() is INVALID


# --- configurations --------------------------------------------------------------------------------

NOT_KNOBS = [
    ('{"parameters": {"INTRA_OP_THREADS": {"string_value": "2"}}}', r"'parameters\.INTRA_OP_THREADS'"),
    ('{"instance_group": [{"count": 1}, {"count": 2}]}', r"'instance_group'"),
    ('{"instance_group": [{"count": 1, "kind": "KIND_GPU"}]}', r"'instance_group\[0\]\.kind'"),
    ('{"instance_group": [{"count": 1, "gpus": [0]}]}', r"'instance_group\[0\]\.gpus'"),
    ('{"dynamic_batching": {"preferred_batch_size": [4]}}', r"'dynamic_batching\.preferred_batch_size'"),
    (
        '{"dynamic_batching": {"default_queue_policy": {"max_queue_size": 3}}}',
        r"'dynamic_batching\.default_queue_policy'",
    ),
    ('{"sequence_batching": {}}', r"'sequence_batching'"),
    ('{"ensemble_scheduling": {}}', r"'ensemble_scheduling'"),
    ('{"input": [{"name": "y"}]}', r"'input\[0\]\.name'"),
]


@pytest.mark.parametrize(("text", "path"), NOT_KNOBS)
def test_a_field_that_is_no_knob_and_differs_is_refused_by_its_path(client, text, path):
    before = client.get_model_config("sleep", as_json=True)
    with pytest.raises(InferenceServerException, match=rf"changes {path} of model 'sleep'") as caught:
        client.load_model("sleep", config=text)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert client.get_model_config("sleep", as_json=True) == before


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"max_batch_size": 8, "maxBatchSize": 4}', "'max_batch_size' and 'maxBatchSize', which are one"),
        ('{"max_batch_size": 0}', "max_batch_size must be from 1 to 1024, got 0"),
        ('{"parameters": {"key": "INTRA_OP_THREAD_COUNT"}}', "the parameter 'key' must look like"),
        ('{"parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": "1_0"}}}', "must be an integer as text"),
        ("[" * 60_000, "it is nested too deeply"),
        (json.dumps({"name": "x" * 70_000}), "at most 65536 characters"),
    ],
)
def test_a_configuration_that_cannot_be_read_one_way_is_refused(client, text, says):
    with pytest.raises(InferenceServerException, match=says) as caught:
        client.load_model("sleep", config=text)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_configuration_of_another_type_or_size_is_refused(stub):
    load = pb.RepositoryModelLoadRequest(model_name="sleep")
    load.parameters["config"].int64_param = 8
    with pytest.raises(grpc.RpcError, match="'config' must be a string_param") as caught:
        stub.RepositoryModelLoad(load, timeout=30)
    assert caught.value.code() is INVALID
    load.parameters["config"].string_param = " " * 300_000
    with pytest.raises(grpc.RpcError, match="may have at most 262144 bytes") as caught:
        stub.RepositoryModelLoad(load, timeout=30)
    assert caught.value.code() is INVALID


# --- methods ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({OWNER_PARAMETER: "a", DURATION_PARAMETER: "60000"}, "'lease_ms' as int64_param"),
        ({OWNER_PARAMETER: "a"}, "'lease_ms' as int64_param"),
        ({DURATION_PARAMETER: 60_000}, "'lease_owner' as string_param"),
        ({OWNER_PARAMETER: 7, DURATION_PARAMETER: 60_000}, "'lease_owner' as string_param"),
        ({PROLONGS_PARAMETER: 1}, "'lease_owner' as string_param"),
        (
            {OWNER_PARAMETER: "a", DURATION_PARAMETER: 60_000, PROLONGS_PARAMETER: 1},
            "'lease_prolongs' as bool_param",
        ),
    ],
)
def test_a_lease_that_cannot_be_read_is_refused_and_not_taken_for_none(stub, parameters, says):
    asked = pb.RepositoryModelLoadRequest(model_name="sleep")
    for name, value in parameters.items():
        setattr(asked.parameters[name], "string_param" if type(value) is str else "int64_param", value)
    assert_invalid(stub.RepositoryModelLoad, asked, says)


def test_no_other_repository_and_no_other_version_is_taken_for_what_there_is(stub):
    says = "models are in no repository 'elsewhere'; leave its name out"
    elsewhere = {"model_name": "sleep", "repository_name": "elsewhere"}
    assert_invalid(stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(**elsewhere), says)
    assert_invalid(stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(**elsewhere), says)
    assert_invalid(stub.ModelStatistics, pb.ModelStatisticsRequest(version="99"), "'99' is of no model")


def test_methods_that_the_server_does_not_have_say_so(client, stub):
    with pytest.raises(
        InferenceServerException, match="no SystemSharedMemoryRegister: there is no shared"
    ) as e:
        client.register_system_shared_memory("mine", "/mine", 64)
    assert e.value.status() == "StatusCode.UNIMPLEMENTED"
    for ask in (client.get_trace_settings, client.get_log_settings, client.get_cuda_shared_memory_status):
        with pytest.raises(InferenceServerException, match="this server has no") as e:
            ask()
        assert e.value.status() == "StatusCode.UNIMPLEMENTED"
