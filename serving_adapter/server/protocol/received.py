"""From the bytes of a message to the message, without a client's size or form holding up the event loop.

A protobuf parser makes an object of every two bytes if the sender likes, and copies every tensor twice. So
the length is looked at first. Of a large inference request the raw tensors are left where they are, as views
of what came. Only the rest is parsed, and that is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import grpc
from google.protobuf.message import DecodeError, Message
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.refusals import Refused, invalid

SMALL_BYTES = 64 << 10  # parsing so many takes no time to speak of
MAX_PARSED_BYTES = 1 << 19
MAX_FIELDS = 4096
MAX_CONTROL_BYTES = 256 << 10

RAW_INPUT_CONTENTS = pb.ModelInferRequest.DESCRIPTOR.fields_by_name["raw_input_contents"].number
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class InferenceMessage(NamedTuple):
    """An inference request, its raw tensors, and how many bytes it came in."""

    request: pb.ModelInferRequest
    raw: Sequence[bytes | memoryview]
    size_bytes: int


def inference_reader(max_bytes: int) -> Callable[[bytes], InferenceMessage | Refused]:
    """Reads the messages of ModelInfer; a refusal is answered in place of what it was to be."""

    def read(data: bytes) -> InferenceMessage | Refused:
        if len(data) > max_bytes:
            return Refused(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"the request has {len(data)} bytes, the server takes at most {max_bytes}; "
                "send smaller requests or start the server with a larger --max-message-bytes",
            )
        try:
            if len(data) <= SMALL_BYTES:
                request = pb.ModelInferRequest.FromString(data)
                return InferenceMessage(request, request.raw_input_contents, len(data))
            rest, raw = _apart(data)
            return InferenceMessage(pb.ModelInferRequest.FromString(rest), raw, len(data))
        except DecodeError as error:
            return _malformed(pb.ModelInferRequest, error)
        except Refused as refused:
            return refused

    return read


def reader(message: type[Message]) -> Callable[[bytes], Message | Refused]:
    """Reads the messages of any other method, which are small."""

    def read(data: bytes) -> Message | Refused:
        try:
            check_small(data, f"a {message.DESCRIPTOR.name}")
            return message.FromString(data)
        except DecodeError as error:
            return _malformed(message, error)
        except Refused as refused:
            return refused

    return read


def check_small(data: bytes, what: str) -> None:
    """Refused, in one sentence, for a message that is too large for any method but that of inference."""
    if len(data) > MAX_CONTROL_BYTES:
        raise invalid(f"{what} may have at most {MAX_CONTROL_BYTES} bytes, got {len(data)}")


def _malformed(message: type[Message], error: DecodeError) -> Refused:
    return invalid(f"these bytes are no {message.DESCRIPTOR.name}: {error}")


def _apart(data: bytes) -> tuple[bytes, list[memoryview]]:
    """What is to be parsed of an inference request, and views of its raw tensors."""
    view, raw, rest, rest_bytes = memoryview(data), [], [], 0
    for count, (number, start, content, end) in enumerate(_fields(data)):
        if number == RAW_INPUT_CONTENTS and data[start] & 7 == BYTES:
            raw.append(view[content:end])
        else:
            rest.append(view[start:end])
            rest_bytes += end - start
        if rest_bytes > MAX_PARSED_BYTES:
            raise invalid(
                f"a request may have at most {MAX_PARSED_BYTES} bytes beside raw_input_contents; "
                "send large tensors there, not as typed contents"
            )
        if count >= MAX_FIELDS:
            raise invalid(f"a request may have at most {MAX_FIELDS} inputs, outputs and parameters")
    return b"".join(rest), raw


def _fields(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """The top fields of a message: number, start, start of the content, end. DecodeError for other bytes."""
    at = 0
    while at < len(data):
        start = at
        tag, at = _varint(data, at)
        wire_type = tag & 7
        content = at
        if wire_type == BYTES:
            length, content = _varint(data, at)
            at = content + length
        elif wire_type == VARINT:
            _, at = _varint(data, at)
        elif wire_type in (FIXED32, FIXED64):
            at += 4 if wire_type == FIXED32 else 8
        else:
            raise DecodeError(f"wire type {wire_type}")
        if at > len(data):
            raise DecodeError("it ends within a field")
        yield tag >> 3, start, content, at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number there, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise DecodeError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise DecodeError("a number of more than 10 bytes")
