"""Messages are measured before they are parsed, and large tensors are left where they lie."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.received import (
    MAX_FIELDS,
    MAX_PARSED_BYTES,
    RAW_INPUT_CONTENTS,
    VARINT,
    InferenceMessage,
    inference_reader,
)
from serving_adapter.server.protocol.refusals import Refused

read = inference_reader(1 << 26)


def request(raw: list[bytes]) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name="m", id="seven", raw_input_contents=raw)
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    asked.outputs.add(name="y")
    return asked


@pytest.mark.parametrize("size_bytes", [0, 64, 70_000, 3 << 20])
def test_a_request_of_any_size_is_read_as_protobuf_reads_it(size_bytes):
    asked = request([b"a" * size_bytes, b"", b"b" * size_bytes])
    data = asked.SerializeToString()
    message = read(data)
    assert isinstance(message, InferenceMessage)
    assert [bytes(tensor) for tensor in message.raw] == list(asked.raw_input_contents)
    assert message.size_bytes == len(data)
    del asked.raw_input_contents[:], message.request.raw_input_contents[:]
    assert message.request == asked


def refusal(data: bytes) -> Refused:
    refused = read(data)
    assert isinstance(refused, Refused)
    return refused


def test_what_would_take_long_to_parse_is_not_parsed():
    typed = request([])
    typed.inputs[0].contents.int64_contents.extend([1] * (MAX_PARSED_BYTES + 1))
    assert "send large tensors there" in str(refusal(typed.SerializeToString()))
    many = b"\x32\x00" * (MAX_FIELDS + 100_000)  # outputs without a name, two bytes each
    assert f"at most {MAX_FIELDS} inputs, outputs and parameters" in str(refusal(many))
    assert refusal(bytes((1 << 26) + 1)).code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("size_bytes", [64, 70_000])
def test_no_tensor_is_made_of_a_number_in_its_place(size_bytes):
    asked = request([b"a" * size_bytes])
    message = read(asked.SerializeToString() + bytes([RAW_INPUT_CONTENTS << 3 | VARINT, 1]))
    assert isinstance(message, InferenceMessage)
    assert [bytes(tensor) for tensor in message.raw] == [b"a" * size_bytes]


@given(st.binary(max_size=200), st.integers(0, 80_000))
def test_bytes_of_any_kind_are_read_or_refused(noise, cut):
    data = request([b"a" * 70_000]).SerializeToString()
    for mutated in (data[:cut] + noise + data[cut:], noise + data, noise * 400):
        assert isinstance(read(mutated), InferenceMessage | Refused)
