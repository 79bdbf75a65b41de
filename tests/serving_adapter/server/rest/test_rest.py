"""The protocol over HTTP: stock clients, plain requests as `curl` sends them, and each kind of bad input."""

from __future__ import annotations

import gzip
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from serving_adapter.strings import MAX_STRINGS
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

BODY_LIMIT = 1 << 20
TOO_MANY = MAX_STRINGS + 1


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    server = start("--model", "noop", "--max-message-bytes", BODY_LIMIT, "--intra-op-threads", 1)
    yield server
    server.stop()
    assert server.process.stdout is not None
    server.process.stdout.close()


@pytest.fixture(scope="module")
def url(server) -> str:
    return server.rest_url


@pytest.fixture
def client(url):
    with triton.InferenceServerClient(url.removeprefix("http://").removesuffix("/v2")) as client:
        yield client


def sent(url: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of the answer, as `curl` has them."""
    request = urllib.request.Request(url, body, {k.replace("_", "-"): v for k, v in headers.items()})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read(), dict(refused.headers)


def request_of(values: Any, shape: list[int], **changes: Any) -> bytes:
    tensor = {"name": "x", "shape": shape, "datatype": "FP32", "data": values}
    return json.dumps({"inputs": [tensor | changes]}).encode()


def in_two_inputs(strings: list[str]) -> bytes:
    tensor = {"shape": [1, len(strings)], "datatype": "BYTES", "data": strings}
    tensors = [tensor | {"name": name} for name in "xy"]
    return json.dumps({"inputs": tensors}).encode()


ROW = [float(i) for i in range(16)]


@pytest.mark.parametrize("values", [ROW, [ROW]])
def test_numbers_flat_or_nested_are_answered_as_json(url, values):
    status, body, headers = sent(f"{url}/models/noop/infer", request_of(values, [1, 16]))
    assert status == 200
    assert headers["content-type"] == "application/json"
    answer = json.loads(body)
    assert (answer["model_name"], answer["model_version"]) == ("noop", "1")
    (output,) = answer["outputs"]
    assert (output["datatype"], output["shape"], output["data"]) == ("FP32", [1, 16], ROW)


@pytest.mark.parametrize("as_binary", [False, True])
@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
def test_a_stock_client_infers(client, as_binary, packing):
    values = np.arange(2048, dtype=np.float32).reshape(128, 16)
    tensor = triton.InferInput("x", [128, 16], "FP32")
    tensor.set_data_from_numpy(values, binary_data=as_binary)
    name = client.get_model_metadata("noop")["outputs"][0]["name"]
    result = client.infer(
        "noop",
        [tensor],
        outputs=[triton.InferRequestedOutput(name, binary_data=as_binary)],
        request_id="seven",
        request_compression_algorithm=packing,
        response_compression_algorithm=packing,
    )
    np.testing.assert_array_equal(result.as_numpy(name), values)
    assert result.get_response()["id"] == "seven"


def test_a_stock_client_reads_what_the_server_is(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("noop", "1")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("noop")
    assert [(t["name"], t["datatype"], t["shape"]) for t in metadata["inputs"]] == [("x", "FP32", [-1, 16])]
    assert client.get_model_repository_index()[0]["state"] == "READY"


def test_both_doors_count_in_one_place(client, url):
    def count() -> int:
        return client.get_inference_statistics("noop")["model_stats"][0]["inference_count"]

    before = count()
    sent(f"{url}/models/noop/infer", request_of(ROW, [1, 16]))
    assert count() - before == 1


def test_a_stock_client_changes_the_configuration_live(client):
    found = client.get_model_config("noop")
    client.load_model("noop", config=json.dumps(found | {"max_batch_size": 4}))
    assert client.get_model_config("noop")["max_batch_size"] == 4
    client.load_model("noop", config=json.dumps(found))
    assert client.get_model_config("noop") == found


def test_a_stock_client_gets_the_sentence(client):
    with pytest.raises(InferenceServerException, match="unknown model 'nobody'"):
        client.get_model_config("nobody")
    with pytest.raises(InferenceServerException, match="is served for as long as the server runs"):
        client.unload_model("noop")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"sequence_id": 7, "sequence_start": True}, "asks for 'sequence_"),
        ({"priority": 1}, "asks for 'priority'"),
        ({}, "asks for 'classification'"),
    ],
)
def test_a_stock_client_that_asks_for_what_cannot_be_had_is_told_so(client, asked, says):
    tensor = triton.InferInput("x", [1, 16], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 16), np.float32))
    name = client.get_model_metadata("noop")["outputs"][0]["name"]
    outputs = [triton.InferRequestedOutput(name, class_count=0 if asked else 3)]
    with pytest.raises(InferenceServerException, match=says):
        client.infer("noop", [tensor], outputs=outputs, **asked)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_asks_as_the_pages_show(url):
    body = request_of(ROW, [1, 16]).decode()
    for arguments in (["-d", body], ["--compressed", "-d", body]):
        command = ["curl", "-sS", "--noproxy", "*", f"{url}/models/noop/infer", *arguments]
        done = subprocess.run(command, capture_output=True, timeout=60, check=True)
        assert json.loads(done.stdout)["outputs"][0]["data"] == ROW


BAD_BODIES = [
    (b"", 400, "no JSON"),
    (b"[]", 400, "must be a JSON object"),
    (b"[" * 100_000, 400, "no JSON"),
    (b'{"inputs": 3}', 400, "'inputs' must be a list of objects"),
    (b'{"inputs": []}', 400, "takes the inputs 'x', got none"),
    (request_of(ROW, [1, 16], name="y"), 400, "takes the inputs 'x', got 'y'"),
    (request_of(ROW, [1, 16], name=7), 400, "the name of an input must be a string"),
    (request_of(ROW, [1, 16], datatype="INT64"), 400, "INT64 takes whole numbers"),
    (request_of([1] * 16, [1, 16], datatype="INT64"), 400, "must have datatype FP32, got 'INT64'"),
    (request_of(ROW, [1, 16], datatype="BYTES"), 400, "BYTES takes strings, got float"),
    (request_of(["a"] * 16, [1, 16], datatype="BYTES"), 400, "must have datatype FP32, got 'BYTES'"),
    (request_of([""] * TOO_MANY, [1, TOO_MANY], datatype="BYTES"), 400, f"at most {MAX_STRINGS} strings"),
    (in_two_inputs([""] * MAX_STRINGS), 400, f"at most {MAX_STRINGS} strings"),
    (request_of(ROW, [1, 15]), 400, "of shape [1, 15] has data of shape [16]"),
    (request_of(ROW[:15], [1, 15]), 400, "must have shape [-1, 16]"),
    (request_of([ROW, ROW[:3]], [2, 16]), 400, "are not of one shape"),
    (request_of(["a"] * 16, [1, 16]), 400, "FP32 takes numbers"),
    (request_of([*ROW[1:], "a" * 99], [1, 16]), 400, "FP32 takes numbers, got str"),
    (request_of(ROW, [-1, 16]), 400, "needs a shape"),
    (request_of(ROW, [1, 16], parameters={"binary_data_size": 64}), 400, "needs either 'data' or"),
    (request_of(ROW, [1, 16], parameters={"colour": "red"}), 400, "unknown parameter 'colour'"),
    (request_of(ROW, [1, 16], parameters={"colour": [1]}), 400, "must be a string, a number, true or false"),
    (b" " * (BODY_LIMIT + 1), 413, f"more than {BODY_LIMIT} bytes"),
    (gzip.compress(b" " * (BODY_LIMIT << 6), mtime=0), 413, f"more than {BODY_LIMIT} bytes"),
]


@pytest.mark.parametrize(("body", "status", "sentence"), BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_body_gets_one_sentence(url, body, status, sentence):
    headers = {"content_encoding": "gzip"} if body[:2] == b"\x1f\x8b" else {}
    got, answer, _ = sent(f"{url}/models/noop/infer", body, **headers)
    assert got == status
    assert sentence in json.loads(answer)["error"]
    assert "\n" not in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("headers", "status", "sentence"),
    [
        ({"inference_header_content_length": "9999"}, 400, "must be the length of the JSON document"),
        ({"inference_header_content_length": "-1"}, 400, "must be the length of the JSON document"),
        ({"inference_header_content_length": "1" * 5000}, 400, "must be the length of the JSON document"),
        ({"content_encoding": "br"}, 415, "gzip, deflate or identity, got 'br'"),
        ({"content_encoding": "gzip"}, 400, "is not packed by gzip"),
    ],
)
def test_a_bad_header_gets_one_sentence(url, headers, status, sentence):
    got, answer, _ = sent(f"{url}/models/noop/infer", request_of(ROW, [1, 16]), **headers)
    assert got == status
    assert sentence in json.loads(answer)["error"]


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("models/nobody/infer", request_of(ROW, [1, 16]), 404, "unknown model 'nobody'"),
        ("models/noop/versions/2/infer", request_of(ROW, [1, 16]), 404, "version"),
        ("models/noop/infer", None, 405, "no GET /v2/models/noop/infer"),
        ("nowhere", None, 404, "no GET /v2/nowhere"),
        ("systemsharedmemory/status", None, 501, "no shared memory"),
        ("repository/models/noop/load", b'{"parameters": {"colour": "red"}}', 400, "got colour"),
        ("repository/models/noop/load", b'{"parameters": 3}', 400, "must be an object of names and values"),
    ],
)
def test_a_bad_call_gets_one_sentence(url, path, body, status, sentence):
    got, answer, _ = sent(f"{url}/{path}", body)
    assert got == status
    assert sentence in json.loads(answer)["error"]


def test_binary_tensors_may_not_be_longer_or_shorter_than_they_say(url):
    for given, sentence in ((60, "60 bytes are left"), (68, "4 bytes behind the document")):
        tensor = {"name": "x", "shape": [1, 16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}
        document = json.dumps({"inputs": [tensor]}).encode()
        status, answer, _ = sent(
            f"{url}/models/noop/infer",
            document + bytes(given),
            inference_header_content_length=str(len(document)),
        )
        assert status == 400
        assert sentence in json.loads(answer)["error"]


def test_a_key_locks_control_at_this_door_too(start_server, tmp_path):
    key = tmp_path / "key"
    key.write_text("open sesame")
    key.chmod(0o600)
    server = start_server("--model", "noop", "--control-key-file", key)
    load = f"{server.rest_url}/repository/models/noop/load"
    status, answer, _ = sent(load, b'{"parameters": {"config": "{}"}}')
    assert (status, "is locked" in json.loads(answer)["error"]) == (403, True)
    unlocked = {"triton_grpc_protocol_control_key": "open sesame"}
    assert sent(load, b'{"parameters": {"config": "{}"}}', **unlocked)[0] == 200


@pytest.mark.parametrize("action", ["load", "unload"])
@pytest.mark.parametrize("origin", ["https://elsewhere.example", "null"])
def test_a_web_page_cannot_control_a_server_without_a_key(url, action, origin):
    """A page sends plain text without asking the server first."""
    headers = {"origin": origin, "content_type": "text/plain"}
    body = json.dumps({"parameters": {"config": json.dumps({"max_batch_size": 2})}}).encode()
    before = sent(f"{url}/models/noop/config")[1]
    status, answer, _ = sent(f"{url}/repository/models/noop/{action}", body, **headers)
    assert (status, "web pages may not control" in json.loads(answer)["error"]) == (403, True)
    assert sent(f"{url}/models/noop/config")[1] == before


@contextmanager
def held_request(server: RunningServer) -> Iterator[socket.socket]:
    """A connection by which the server was asked for what it holds until its gate is there."""
    body = request_of([7.0] * 16, [1, 16])
    host, _, port = server.rest_url.removeprefix("http://").removesuffix("/v2").rpartition(":")
    head = f"POST /v2/models/held/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: server.counted("rrl_in_flight_request_count") == 1)
        yield connection


def test_a_client_that_goes_away_gives_its_request_up(start_server, tmp_path):
    gate = tmp_path / "gate"
    model = ("--model", "tests.support.models.gated:held", "--model-option", f"gate={gate}")
    server = start_server(*model)
    with held_request(server):
        pass
    until(lambda: server.counted("nv_inference_request_failure", reason="CANCELED") == 1)
    gate.touch()


def test_what_is_in_flight_is_answered_while_it_stops(start_server, tmp_path):
    gate = tmp_path / "gate"
    model = ("--model", "tests.support.models.gated:held", "--model-option", f"gate={gate}")
    server = start_server(*model)
    with held_request(server) as connection:
        server.process.terminate()
        assert "draining" in server.process.stdout.readline()
        gate.touch()
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200")
    assert server.process.wait(30) == 0


def test_no_door_for_http_where_none_is_wanted(start_server):
    assert start_server("--model", "noop", "--http-port", -1).rest_url == ""
