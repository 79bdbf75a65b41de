"""What `rrl-serve --record FILE.jsonl` keeps is sent again as it came, at the moments at which it came."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton
from tritonclient.grpc import service_pb2 as messages

from serving_adapter.load.arrivals import make_arrivals
from serving_adapter.load.command_line import main
from serving_adapter.load.connection import ModelSignature
from serving_adapter.load.own_requests import OwnRequests
from serving_adapter.load.recordings import read_recording, recorded_arrivals
from serving_adapter.server.request_recording import RequestRecording
from serving_adapter.server.requests import InputTensor
from serving_adapter.tensors import TensorSpec
from tests.support.servers.echo_server import TENSOR, EchoService, serving

TEXTS = [["Grüße"], ["a", "", "b"], ["c"]]
TOKENS = {"tokens": TensorSpec("tokens", "INT64", (-1,))}
MOMENTS_NS = [5_000_000_000, 5_010_000_000, 5_030_000_000]


def recording_of(path: Path, items: int = 10, most_bytes: int = 1 << 20) -> RequestRecording:
    """Three requests of one, two and three tokens."""
    recording = RequestRecording(path, items, most_bytes)
    for size, at_ns in enumerate(MOMENTS_NS, start=1):
        data = np.arange(size, dtype=np.int64).tobytes()
        recording.show(TOKENS, [InputTensor(memoryview(data), (1, size))], at_ns)
    return recording


def test_a_server_records_what_stock_clients_send(start_server: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    server = start_server("--model", "tests.support.models.texts:upper", "--record", file)
    with triton.InferenceServerClient(server.address) as client:
        for texts in TEXTS:
            tensor = triton.InferInput("text", [1, len(texts)], "BYTES")
            tensor.set_data_from_numpy(np.array([[text.encode() for text in texts]], object))
            client.infer("upper", [tensor])
    assert server.stop() == 0
    assert "recorded 3 of 3 requests" in server.process.stdout.read()
    moments_s = [request.arrival_s for request in read_recording(file)]
    assert moments_s[0] == 0.0 < moments_s[1] < moments_s[2]
    model = ModelSignature("upper", [TENSOR(name="text", datatype="BYTES", shape=[-1, -1])], True)
    again = OwnRequests(file, model)
    for texts in TEXTS:
        sent = messages.ModelInferRequest.FromString(again.of_size(0))
        assert list(sent.inputs[0].shape) == [1, len(texts)]
        expected = b"".join(len(t.encode()).to_bytes(4, "little") + t.encode() for t in texts)
        assert sent.raw_input_contents[0] == expected


def test_a_recording_is_sent_again_in_its_order(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    assert recording_of(file).write() == 3
    service = EchoService()
    with serving(service) as address, pytest.raises(SystemExit) as ended:
        main(["--target", address, "--input-data", str(file), "--arrivals", "recorded", "--duration-s", "0"])
    assert ended.value.code == 0
    received = sorted(service.requests, key=lambda request: request.inputs[0].shape[1])
    assert [list(request.inputs[0].shape) for request in received] == [[1, 1], [1, 2], [1, 3]]
    assert received[2].raw_input_contents[0] == np.arange(3, dtype=np.int64).tobytes()


def test_the_gaps_are_those_that_there_were_or_scaled_as_asked(tmp_path: Path) -> None:
    file = tmp_path / "requests.jsonl"
    recording_of(file).write()
    assert recorded_arrivals(file).moments_s.tolist() == pytest.approx([0.0, 0.01, 0.03])
    assert recorded_arrivals(file, speed_up=2).moments_s.tolist() == pytest.approx([0.0, 0.005, 0.015])
    scaled = make_arrivals("recorded", 10.0, recording=file)
    assert scaled.mean_rate_per_s == pytest.approx(10.0)


def test_the_first_requests_are_kept_up_to_a_number_and_a_size(tmp_path: Path) -> None:
    few = recording_of(tmp_path / "few.jsonl", items=2)
    assert (few.write(), few.seen) == (2, 3)
    small = recording_of(tmp_path / "small.jsonl", most_bytes=16)
    assert small.write() == 1
    assert len(list(read_recording(small.path))) == 1


def line_of(arrival_s: object = 0.0, **changes: Any) -> str:
    tensor = {"shape": [1, 1], "raw": base64.b64encode(bytes(8)).decode()} | changes
    return json.dumps({"arrival_s": arrival_s, "inputs": {"tokens": tensor}})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", 'line 2: expected {"arrival_s"'),
        ("[1]", 'line 2: expected {"arrival_s"'),
        (line_of("soon"), 'line 2: expected {"arrival_s"'),
        (line_of(10**400), 'line 2: expected {"arrival_s"'),
        (line_of(0.5), "line 2: arrival_s must not go back, got 0.5"),
        (line_of(2.0, shape="wide"), "line 2, input 'tokens': its shape must be a list"),
        (line_of(2.0, raw="?"), "line 2, input 'tokens': its 'raw' is no base64"),
        (line_of(2.0, raw="AAAA"), "line 2, input 'tokens': it needs 8 bytes, got 3"),
        (line_of(2.0, shape=[1]), "the model takes the shape [-1, -1] (-1: any), got [1]"),
    ],
)
def test_what_is_no_recording_is_refused_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    file = tmp_path / "requests.jsonl"
    file.write_text(f"{line_of(1.0)}\n{line}\n")
    model = ModelSignature("echo", [TENSOR(name="tokens", datatype="INT64", shape=[-1, -1])], True)
    with pytest.raises(ValueError, match=re.escape(says)):
        OwnRequests(file, model)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "are those of a recording: give its FILE.jsonl as --input-data"),
        (["--input-data", "data.json"], "are those of a recording: give its FILE.jsonl"),
        (["--input-data", "absent.jsonl"], "cannot read absent.jsonl"),
        (["--input-data", "absent.jsonl", "--offset-s", "1"], "leave --offset-s away"),
        (["--input-data", "absent.jsonl", "--rate", "1", "--speed-up", "2"], "leave one of them out"),
    ],
)
def test_arrivals_that_no_recording_tells_are_refused(
    arguments: list[str], says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--target", "127.0.0.1:1", "--arrivals", "recorded", *arguments])
    assert ended.value.code == 2
    assert says in capfd.readouterr().err
