"""How an answer leaves: its tensors are copied once, behind the rest of its message.

A protobuf message that holds tensors copies them when they are put in, and several times more as it is
serialised. Fields may come in any order, so the raw outputs are joined to what is serialised without them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.requests import OutputTensor

LARGE_BYTES = 4 << 20
"""From so many on, gRPC copies an answer in a turn of its own, so that others have theirs between."""

RAW_OUTPUT_CONTENTS = pb.ModelInferResponse.DESCRIPTOR.fields_by_name["raw_output_contents"].number
TAG = bytes([RAW_OUTPUT_CONTENTS << 3 | 2])  # of a field of bytes


def response_bytes(response: pb.ModelInferResponse, outputs: Iterable[OutputTensor]) -> bytes:
    """A response with these outputs, serialised; it is given without them."""
    parts: list[bytes | memoryview] = [b""]
    for output in outputs:
        response.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
        parts += (TAG, _varint(len(output.data)), output.data)
    parts[0] = response.SerializeToString()
    return b"".join(parts)


def bytes_field(number: int, *parts: bytes) -> bytes:
    """A field of a message, or of bytes, in one piece or in parts, as protobuf writes it."""
    return b"".join((bytes([number << 3 | 2]), _varint(sum(map(len, parts))), *parts))


def _varint(value: int) -> bytes:
    """A number as protobuf writes it, seven bits a byte."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
