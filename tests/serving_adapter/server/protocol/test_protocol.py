"""A stock tritonclient drives the server: inference, statistics, configuration, each kind of bad input."""

from __future__ import annotations

import json
import urllib.request

import grpc
import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException


def infer_input(values: np.ndarray, name: str = "x") -> triton.InferInput:
    tensor = triton.InferInput(name, list(values.shape), "FP32")
    tensor.set_data_from_numpy(values)
    return tensor


def request_of(**changes) -> pb.ModelInferRequest:
    fields = {"name": "x", "datatype": "FP32", "shape": [1, 16]} | changes
    request = pb.ModelInferRequest(model_name="sleep")
    request.inputs.add(**fields)
    request.raw_input_contents.append(np.zeros(16, np.float32).tobytes())
    return request


def test_it_is_live_ready_and_says_what_it_can(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("sleep")
    extensions = list(client.get_server_metadata().extensions)
    assert {"statistics", "model_configuration", "model_repository"} <= set(extensions)
    index = client.get_model_repository_index().models
    assert [(model.name, model.state) for model in index] == [("sleep", "READY")]


def test_metadata_describes_inputs_and_outputs_with_a_batch_dimension(client):
    metadata = client.get_model_metadata("sleep")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("x", "FP32", [-1, 16])]
    assert list(metadata.outputs[0].shape) == [-1, 16]


def test_inference_answers_every_row(client):
    values = np.arange(48, dtype=np.float32).reshape(3, 16)
    result = client.infer("sleep", [infer_input(values)], request_id="seven")
    name = client.get_model_metadata("sleep").outputs[0].name
    np.testing.assert_array_equal(result.as_numpy(name), values)
    assert result.get_response().id == "seven"


def test_typed_contents_are_read_like_raw_ones(stub):
    request = pb.ModelInferRequest(model_name="sleep")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    tensor.contents.fp32_contents.extend(range(16))
    answer = np.frombuffer(stub.ModelInfer(request).raw_output_contents[0], np.float32)
    np.testing.assert_array_equal(answer, np.arange(16, dtype=np.float32))


def test_statistics_count_requests_and_their_parts_agree(client):
    def read() -> dict:
        return client.get_inference_statistics("sleep", as_json=True)["model_stats"][0]

    def count(stats: dict, part: str) -> int:
        return int(stats["inference_stats"].get(part, {}).get("count", 0))

    before = read()
    for _ in range(5):
        client.infer("sleep", [infer_input(np.zeros((2, 16), np.float32))])
    after = read()
    parts = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    assert [count(after, part) - count(before, part) for part in parts] == [5] * 5
    assert int(after["inference_count"]) - int(before.get("inference_count", 0)) == 10


def test_the_metrics_page_counts_the_same(client, server):
    client.infer("sleep", [infer_input(np.zeros((1, 16), np.float32))])
    page = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
    line = next(row for row in page.splitlines() if row.startswith("nv_inference_request_success{"))
    stats = client.get_inference_statistics("sleep", as_json=True)["model_stats"][0]
    assert float(line.rpartition(" ")[2]) == float(stats["inference_stats"]["success"]["count"])
    assert "rrl_request_latency_seconds_bucket" in page


@pytest.mark.parametrize("camel_case", [False, True])
def test_a_configuration_read_edited_and_sent_back_is_in_force(client, camel_case):
    found = client.get_model_config("sleep", as_json=True)["config"]
    edited = json.loads(json.dumps(found))
    edited["max_batch_size"] = 4
    edited["instance_group"][0]["count"] = 2
    edited["parameters"]["INTRA_OP_THREAD_COUNT"]["string_value"] = "1"
    edited["dynamic_batching"] = {"max_queue_delay_microseconds": 1500}
    if camel_case:
        edited["maxBatchSize"] = edited.pop("max_batch_size")
    client.load_model("sleep", config=json.dumps(edited))
    now = client.get_model_config("sleep").config
    assert now.max_batch_size == 4
    assert now.instance_group[0].count == 2
    assert now.parameters["INTRA_OP_THREAD_COUNT"].string_value == "1"
    assert now.dynamic_batching.max_queue_delay_microseconds == 1500
    assert "INTER_OP_THREAD_COUNT" not in now.parameters
    client.load_model("sleep", config=json.dumps(found))
    assert client.get_model_config("sleep", as_json=True)["config"] == found


def test_an_override_that_leaves_a_knob_out_returns_it_to_its_default(client):
    default = client.get_model_config("sleep", as_json=True)["config"]
    client.load_model("sleep", config=json.dumps(default | {"max_batch_size": 8}))
    client.load_model("sleep", config="{}")
    assert client.get_model_config("sleep", as_json=True)["config"] == default


BAD_REQUESTS = [
    ({"name": "y"}, "takes the inputs 'x', got 'y'"),
    ({"datatype": "INT64"}, "must have datatype FP32, got 'INT64'"),
    ({"shape": [1, 15]}, r"must have shape \[-1, 16\]"),
    ({"shape": [16]}, r"must have shape \[-1, 16\]"),
    ({"shape": [0, 16]}, r"must have shape \[-1, 16\]"),
    ({"shape": [-1, 16]}, r"must have shape \[-1, 16\]"),
    ({"shape": [2, 16]}, "needs 128 bytes, got 64"),
    ({"shape": [2**40, 16]}, "must have shape"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD_REQUESTS)
def test_a_request_that_does_not_fit_is_refused_with_one_sentence(stub, changes, sentence):
    with pytest.raises(grpc.RpcError, match=sentence) as refused:
        stub.ModelInfer(request_of(**changes))
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_unknown_names_are_refused_and_the_known_listed(client):
    with pytest.raises(
        InferenceServerException, match=r"NOT_FOUND.*unknown model 'wake'; this server has 'sleep'"
    ):
        client.get_model_config("wake")
    with pytest.raises(InferenceServerException, match="has version 1 only, not '7'"):
        client.get_model_config("sleep", model_version="7")
    values = infer_input(np.zeros((1, 16), np.float32))
    with pytest.raises(InferenceServerException, match="has no output 'z'"):
        client.infer("sleep", [values], outputs=[triton.InferRequestedOutput("z")])


BAD_OVERRIDES = [
    ("{", "not a ModelConfig in JSON"),
    ("[]", "a JSON object is expected"),
    ('{"no_such_field": 1}', "no_such_field"),
    ('{"max_batch_size": "many"}', "not a ModelConfig in JSON"),
    ('{"max_batch_size": 5000}', "max_batch_size must be from 1 to 1024, got 5000"),
    ('{"max_batch_size": -1}', "max_batch_size must be from 1 to 1024, got -1"),
    ('{"instance_group": [{"count": 0}]}', "instances must be from 1 to [0-9]+, got 0"),
    ('{"instance_group": [{"count": 10001}]}', "instances must be from 1 to [0-9]+, got 10001"),
    ('{"parameters": {"INTRA_OP_THREAD_COUNT": {"string_value": "two"}}}', "must be an integer"),
    ('{"parameters": {"INTER_OP_THREAD_COUNT": {"string_value": "2"}}}', "no parallel branches"),
    ('{"name": "other"}', "changes 'name'"),
]


@pytest.mark.parametrize(("override", "sentence"), BAD_OVERRIDES)
def test_a_bad_override_is_refused_and_changes_nothing(client, override, sentence):
    before = client.get_model_config("sleep", as_json=True)
    with pytest.raises(InferenceServerException, match=sentence) as refused:
        client.load_model("sleep", config=override)
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert client.get_model_config("sleep", as_json=True) == before


def test_a_model_cannot_be_unloaded(client):
    with pytest.raises(InferenceServerException, match="end the server instead"):
        client.unload_model("sleep")


def test_an_oversized_request_is_refused_with_both_sizes(start_server):
    server = start_server("--model", "noop", "--max-message-bytes", 4096)
    with grpc.insecure_channel(server.address) as channel:
        request = pb.ModelInferRequest(model_name="noop")
        request.inputs.add(name="x", datatype="FP32", shape=[80, 16])
        request.raw_input_contents.append(bytes(80 * 64))
        with pytest.raises(grpc.RpcError, match="takes at most 4096; send smaller requests") as refused:
            GRPCInferenceServiceStub(channel).ModelInfer(request)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_control_can_be_locked_with_a_key(start_server, tmp_path):
    key = tmp_path / "key"
    key.write_text("open sesame\n")
    server = start_server("--model", "noop", "--control-key-file", key)
    with triton.InferenceServerClient(server.address) as client:
        assert client.is_model_ready("noop")
        with pytest.raises(InferenceServerException, match="control of this server is locked"):
            client.load_model("noop", config="{}")
        client.load_model("noop", config="{}", headers={"triton-grpc-protocol-control-key": "open sesame"})
