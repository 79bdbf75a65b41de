"""Requests of one's own: perf_analyzer's input data and arrays, as they reach the server."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as messages
from tritonclient.utils import deserialize_bytes_tensor

from serving_adapter.codecs import CODECS
from serving_adapter.load.connection import ModelSignature
from serving_adapter.load.own_requests import OwnRequests
from serving_adapter.load.payloads import Payloads
from serving_adapter.load.sizes import FixedSizes
from serving_adapter.target import TargetError
from tests.support.servers.echo_server import TENSOR


def signature(**inputs: tuple[str, list[int]]) -> ModelSignature:
    tensors = [TENSOR(name=n, datatype=d, shape=[-1, *shape]) for n, (d, shape) in inputs.items()]
    return ModelSignature("mine", tensors, is_batched=True)


NUMBERS = signature(x=("FP32", [2, 3]))


def own(folder: Path, data: Any, model: ModelSignature = NUMBERS) -> OwnRequests:
    path = folder / "data.json"
    path.write_text(json.dumps(data) if not isinstance(data, str) else data)
    return OwnRequests(path, model)


def sent(requests: OwnRequests | Payloads) -> messages.ModelInferRequest:
    request = messages.ModelInferRequest.FromString(requests.of_size(7))
    assert request.model_name == "mine"
    return request


SIX = [1.5, 2.5, 3.5, 4.5, 5.5, 6.5]


@pytest.mark.parametrize(
    "given",
    [
        SIX,
        [SIX[:3], SIX[3:]],
        {"content": SIX},
        {"content": SIX, "shape": [2, 3]},
        {"b64": base64.b64encode(np.array(SIX, np.float32).tobytes()).decode()},
    ],
)
def test_one_tensor_in_every_form_that_perf_analyzer_takes(tmp_path: Path, given: Any) -> None:
    request = sent(own(tmp_path, {"data": [{"x": given}]}))
    assert list(request.inputs[0].shape) == [1, 2, 3]
    assert np.frombuffer(request.raw_input_contents[0], np.float32).tolist() == SIX


def test_requests_come_in_the_order_of_the_file_and_again(tmp_path: Path) -> None:
    requests = own(tmp_path, {"data": [{"x": [k] * 6} for k in range(3)]})
    firsts = [struct.unpack("<f", sent(requests).raw_input_contents[0][:4])[0] for _ in range(5)]
    assert firsts == [0, 1, 2, 0, 1]


def test_the_steps_of_a_sequence_are_requests(tmp_path: Path) -> None:
    assert own(tmp_path, {"data": [[{"x": SIX}, {"x": SIX}], [{"x": SIX}]]}).count == 3


def test_a_variable_shape_is_told_or_follows_from_the_values(tmp_path: Path) -> None:
    tokens = signature(ids=("INT64", [-1]))
    assert list(sent(own(tmp_path, {"data": [{"ids": [5, 6, 7]}]}, tokens)).inputs[0].shape) == [1, 3]
    images = signature(image=("UINT8", [3, -1, -1]))
    request = sent(own(tmp_path, {"data": [{"image": {"content": [0] * 12, "shape": [3, 2, 2]}}]}, images))
    assert list(request.inputs[0].shape) == [1, 3, 2, 2]


def test_strings_travel_with_their_lengths(tmp_path: Path) -> None:
    texts = signature(text=("BYTES", [2]))
    request = sent(own(tmp_path, {"data": [{"text": ["Grüße", ""]}]}, texts))
    assert deserialize_bytes_tensor(request.raw_input_contents[0]).tolist() == ["Grüße".encode(), b""]
    one = signature(text=("BYTES", [1]))
    encoded = base64.b64encode(b"\x00\xff").decode()
    request = sent(own(tmp_path, {"data": [{"text": {"b64": encoded}}]}, one))
    assert deserialize_bytes_tensor(request.raw_input_contents[0]).tolist() == [b"\x00\xff"]


def test_bfloat16_is_the_upper_half_rounded() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, np.inf, np.nan], np.float32)
    halves = np.frombuffer(CODECS["BF16"].packed(values), np.uint16)
    assert [hex(half) for half in halves] == ["0x3f80", "0x3f80", "0x3f82", "0x7f80", "0x7fc0"]


def test_the_rows_of_arrays_are_requests(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.savez(tmp_path / "data.npz", anything=values)
    requests = OwnRequests(tmp_path / "data.npz", NUMBERS)
    for row in values:
        assert (
            np.frombuffer(sent(requests).raw_input_contents[0], np.float32).tolist() == row.ravel().tolist()
        )


@pytest.mark.parametrize(
    ("values", "datatype"),
    [
        (np.array([5, 6]), "INT64"),
        (np.array([5, 6], np.float32), "FP32"),
        (np.array(["five", "six"]), "BYTES"),
        (np.array([b"five", b"six"]), "BYTES"),
    ],
)
@pytest.mark.parametrize("shape", [[-1], [1]])
def test_a_row_may_be_a_single_value(
    tmp_path: Path, values: np.ndarray, datatype: str, shape: list[int]
) -> None:
    np.savez(tmp_path / "data.npz", x=values)
    requests = OwnRequests(tmp_path / "data.npz", signature(x=(datatype, shape)))
    codec = CODECS[datatype]
    for value in values:
        request = sent(requests)
        assert list(request.inputs[0].shape) == [1, 1]
        assert request.raw_input_contents[0] == codec.packed(np.array([value], codec.dtype))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ([], 'must be an object with a list "data"'),
        ({"data": []}, "has no requests"),
        ({"data": [3]}, "data[0] must be an object of inputs by name"),
        ({"data": [{"y": SIX}]}, "data[0]: model 'mine' takes the inputs x, got y"),
        ({"data": [{"x": SIX}, {"x": SIX[:5]}]}, "data[1], input 'x': shape [2, 3] needs 6 values, got 5"),
        ({"data": [{"x": [SIX[:3], SIX[:2]]}]}, "its values are not of one shape"),
        ({"data": [{"x": ["a"] * 6}]}, "FP32 takes numbers, got"),
        ({"data": [{"x": {"shape": [2, 3]}}]}, "it needs a list of values, or an object with"),
        ({"data": [{"x": {"content": SIX, "shape": [3, 2]}}]}, "the model takes the shape [2, 3]"),
        ({"data": [{"x": {"content": SIX, "shape": [-2, -3]}}]}, "its shape must be a list of whole numbers"),
        ({"data": [{"x": {"b64": "?"}}]}, "its 'b64' is no base64"),
        ({"data": [{"x": {"b64": "AAAA"}}]}, "its 'b64' has 3 bytes, no multiple of the 4 of FP32"),
    ],
)
def test_bad_input_data_are_refused_in_a_sentence_with_file_and_place(
    tmp_path: Path, data: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=r"data\.json") as caught:
        own(tmp_path, data)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_numbers_must_fit_their_type(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a value does not fit INT8"):
        own(tmp_path, {"data": [{"x": [300]}]}, signature(x=("INT8", [1])))
    with pytest.raises(ValueError, match=r"INT8 takes whole numbers, got .*1\.5"):
        own(tmp_path, {"data": [{"x": [1.5]}]}, signature(x=("INT8", [1])))


def test_made_up_strings_are_texts_of_as_many_words_as_the_size() -> None:
    payloads = Payloads(signature(text=("BYTES", [1])), np.random.default_rng(0))
    (text,) = deserialize_bytes_tensor(sent(payloads).raw_input_contents[0]).tolist()
    assert len(text.split()) == 7


@pytest.mark.parametrize("datatype", ["FP32", "INT64"])
def test_a_request_that_no_message_can_hold_is_refused(datatype: str) -> None:
    payloads = Payloads(signature(x=(datatype, [-1, -1])), np.random.default_rng(0))
    with pytest.raises(TargetError, match="a request of size 1000000 to model 'mine' would have"):
        payloads.prepare(FixedSizes(1_000_000))


def test_a_shape_fixes_a_variable_input() -> None:
    model = signature(image=("UINT8", [3, -1, -1]))
    payloads = Payloads(model, np.random.default_rng(0), shapes={"image": [3, 4, 5]})
    assert list(sent(payloads).inputs[0].shape) == [1, 3, 4, 5]
    with pytest.raises(TargetError, match=r"takes the shape \[3, -1, -1\] \(-1: any\), got \[4, 4, 5\]"):
        Payloads(model, np.random.default_rng(0), shapes={"image": [4, 4, 5]})
    with pytest.raises(TargetError, match="has no input 'sound' to give a shape to; it has image"):
        Payloads(model, np.random.default_rng(0), shapes={"sound": [4]})
