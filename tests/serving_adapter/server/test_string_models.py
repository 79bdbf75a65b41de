"""Strings and BF16 numbers through the whole server, by stock clients at both doors."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient import http as rest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from tests.support.servers.running_server import RunningServer, start

MODELS = "tests.support.models.texts"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = [
        argument for name in ("upper", "joined", "doubled") for argument in ("--model", f"{MODELS}:{name}")
    ]
    batching = ("--max-batch-size", 8, "--max-queue-delay-us", 20_000, "--intra-op-threads", 1)
    server = start(*models, *batching)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


def texts(kind, values: list[list[str]]):
    array = np.array(values, object)
    tensor = kind.InferInput("text", list(array.shape), "BYTES")
    tensor.set_data_from_numpy(array)
    return tensor


def test_strings_come_back_with_what_the_model_made_of_them(client):
    assert [(t.name, t.datatype) for t in client.get_model_metadata("upper").inputs] == [("text", "BYTES")]
    assert client.get_model_config("upper").config.input[0].data_type == 13  # TYPE_STRING
    result = client.infer("upper", [texts(triton, [["ab", ""], ["ü", "xyz"]])])
    assert result.as_numpy("upper").tolist() == [[b"AB", b""], ["ü".encode(), b"XYZ"]]
    assert result.as_numpy("length").tolist() == [[2, 0], [2, 3]]


def test_each_of_a_batch_gets_its_own_strings(client):
    rows = [[f"{'a' * k}", f"{k}"] for k in range(24)]

    def joined(row: list[str]) -> list[bytes]:
        return client.infer("joined", [texts(triton, [row])]).as_numpy("joined").tolist()

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(joined, rows)) == [[" ".join(row).encode()] for row in rows]
    batches = client.get_inference_statistics("joined").model_stats[0].execution_count
    assert batches < len(rows)


def test_typed_strings_are_read_like_raw_ones(stub: GRPCInferenceServiceStub):
    request = pb.ModelInferRequest(model_name="joined")
    tensor = request.inputs.add(name="text", datatype="BYTES", shape=[1, 2])
    tensor.contents.bytes_contents.extend([b"\xff", b"b"])
    answer = stub.ModelInfer(request)
    assert answer.raw_output_contents[0][4:] == b"\xff b"


@pytest.mark.parametrize("as_binary", [False, True])
def test_strings_over_http(server, as_binary):
    address = server.rest_url.removeprefix("http://").removesuffix("/v2")
    with rest.InferenceServerClient(address) as client:
        tensor = rest.InferInput("text", [1, 2], "BYTES")
        tensor.set_data_from_numpy(np.array([["ab", "ü"]], object), binary_data=as_binary)
        asked = [rest.InferRequestedOutput("upper", binary_data=as_binary)]
        result = client.infer("upper", [tensor], outputs=asked)
    (answered,) = result.as_numpy("upper").tolist()
    assert [text if isinstance(text, bytes) else text.encode() for text in answered] == [b"AB", "ü".encode()]


def test_strings_that_json_cannot_hold_are_said_to_be_such(server):
    tensor = {"name": "text", "shape": [1, 2], "datatype": "BYTES", "parameters": {"binary_data_size": 10}}
    document = json.dumps({"inputs": [tensor]}).encode()
    body = document + b"\x01\0\0\0\xff\x01\0\0\0b"
    headers = {"inference-header-content-length": str(len(document))}
    request = urllib.request.Request(f"{server.rest_url}/models/joined/infer", body, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert "no UTF-8, which JSON cannot hold" in json.loads(refused.value.read())["error"]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "2 strings take 8 bytes or more, got 0"),
        (b"\x01\0\0\0a\xff\xff\xff\xff", "are not 2 strings"),
        (b"\x01\0\0\0a\x01\0\0\0bc", "are not 2 strings"),
    ],
)
def test_bytes_that_are_no_strings_are_refused(stub, data, sentence):
    request = pb.ModelInferRequest(model_name="joined")
    request.inputs.add(name="text", datatype="BYTES", shape=[1, 2])
    request.raw_input_contents.append(data)
    with pytest.raises(Exception, match=sentence):
        stub.ModelInfer(request)


def test_too_many_strings_are_refused(client):
    with pytest.raises(InferenceServerException, match="at most 65536 strings are taken at once, got 65537"):
        client.infer("upper", [texts(triton, [["a"] * 65_537])])


def test_bfloat16_is_served_and_padded(stub):
    def doubled(bits: list[int]) -> list[int]:
        request = pb.ModelInferRequest(model_name="doubled")
        request.inputs.add(name="x", datatype="BF16", shape=[1, len(bits)])
        request.raw_input_contents.append(np.array(bits, np.uint16).tobytes())
        return np.frombuffer(stub.ModelInfer(request).raw_output_contents[0], np.uint16).tolist()

    one, two, four = 0x3F80, 0x4000, 0x4080
    with ThreadPoolExecutor(4) as pool:
        short, long = pool.map(doubled, [[one], [one, two]])
    assert short[0] == two
    assert long == [two, four]
