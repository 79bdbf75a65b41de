"""Inference requests and answers of the REST form, with the extension for binary tensors.

    inputs: JSON numbers, or `binary_data_size` bytes each behind the JSON document, whose length is then in
            the header `Inference-Header-Content-Length`
    outputs: likewise, by the output's parameter `binary_data` or the request's `binary_data_output`

No thread reads a JSON document without holding up the event loop at times, so one may have `MAX_JSON_BYTES`.
Larger tensors come as binary ones.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.codecs import CODECS
from serving_adapter.server.protocol.received import MAX_PARSED_BYTES, SMALL_BYTES, InferenceMessage
from serving_adapter.server.protocol.refusals import Refused, invalid
from serving_adapter.server.requests import OutputTensor
from serving_adapter.server.rest import parameters

HEADER_LENGTH = "inference-header-content-length"
LENGTH = re.compile("[0-9]{1,18}")
MAX_JSON_BYTES = 4 << 20
MAX_TENSORS = 1024
MAX_DIMENSIONS = 64


class OutputForm(NamedTuple):
    """Which outputs leave as binary tensors."""

    all_binary: bool
    of_names: Mapping[str, bool]

    def is_binary(self, name: str) -> bool:
        return self.of_names.get(name, self.all_binary)


def read_request(body: bytes, length: int, model: str, version: str) -> tuple[InferenceMessage, OutputForm]:
    """The request as a message, and how its outputs are to leave; Refused, in one sentence, for another body.

    `length` is that of its document.
    """
    view = memoryview(body)
    document, behind = json_object(view[:length]), view[length:]
    # Views would keep the whole body for as long as the request waits.
    binary = _Binary(behind if length <= SMALL_BYTES else memoryview(bytes(behind)))
    request = pb.ModelInferRequest(model_name=model, model_version=version)
    request.id = _text(document.get("id", ""), "id")
    given = document.get("parameters", {})
    all_binary = isinstance(given, Mapping) and given.get("binary_data_output") is True
    if isinstance(given, Mapping):
        given = {name: value for name, value in given.items() if name != "binary_data_output"}
    parameters.put(given, request.parameters, "the request")
    counts: Counter[str] = Counter()
    raw = [_read_input(each, request, binary, counts) for each in _objects(document, "inputs")]
    binary.check_empty()
    asked = [_read_output(each, request) for each in _objects(document, "outputs")]
    if request.ByteSize() > MAX_PARSED_BYTES:
        raise invalid(f"a request may have at most {MAX_PARSED_BYTES} bytes beside its tensors")
    of_names = {name: is_binary for name, is_binary in asked if is_binary is not None}
    return InferenceMessage(request, raw, len(body)), OutputForm(all_binary, of_names)


class _Binary:
    """The bytes behind the document, taken from the front."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def take(self, size_bytes: int, name: str) -> memoryview:
        if size_bytes > len(self._data):
            raise invalid(
                f"input {name!r} has a binary_data_size of {size_bytes}, but {len(self._data)} bytes are left"
            )
        taken, self._data = self._data[:size_bytes], self._data[size_bytes:]
        return taken

    def check_empty(self) -> None:
        if self._data:
            raise invalid(f"{len(self._data)} bytes behind the document belong to no input")


def document_bytes(body: bytes, json_bytes: str | None) -> int:
    """The length of the JSON document at the front of a body; Refused, in one sentence, where it is too long.

    `json_bytes` is what the header says.
    """
    length = len(body)
    if json_bytes is not None:
        if not LENGTH.fullmatch(json_bytes) or int(json_bytes) > length:
            raise invalid(
                f"the header {HEADER_LENGTH} must be the length of the JSON document, at most the {length} "
                f"bytes of the body, got {json_bytes!r}"
            )
        length = int(json_bytes)
    if length > MAX_JSON_BYTES:
        raise invalid(
            f"a JSON document may have at most {MAX_JSON_BYTES} bytes, got {length}; send large tensors as "
            f"binary data (the header {HEADER_LENGTH}), or over gRPC"
        )
    return length


def json_object(data: bytes | memoryview) -> Mapping[str, Any]:
    """What a body says; Refused, in one sentence, where it is no JSON object."""
    try:
        document = orjson.loads(data)
    except ValueError as error:
        raise invalid(f"the body is no JSON: {error}") from None
    if not isinstance(document, Mapping):
        raise invalid("the body must be a JSON object")
    return document


def _objects(document: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    given = document.get(name, [])
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise invalid(f"{name!r} must be a list of objects")
    if len(given) > MAX_TENSORS:
        raise invalid(f"{name!r} may have at most {MAX_TENSORS} entries, got {len(given)}")
    return given


def _read_input(
    given: Mapping[str, Any], request: pb.ModelInferRequest, binary: _Binary, counts: Counter[str]
) -> Any:
    """Puts an input into the request; returns its bytes."""
    name, shape = _text(given.get("name"), "name of an input"), given.get("shape")
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_size, shape)):
        raise invalid(f"input {name!r} needs a shape: a list of whole numbers from 0")
    datatype = _text(given.get("datatype"), f"datatype of input {name!r}")
    tensor = request.inputs.add(name=name, datatype=datatype, shape=shape)
    of_tensor = given.get("parameters", {})
    size_bytes = of_tensor.get("binary_data_size") if isinstance(of_tensor, Mapping) else None
    if size_bytes is None:
        parameters.put(of_tensor, tensor.parameters, f"input {name!r}")
        return _of_numbers(name, datatype, shape, given.get("data"), counts)
    if not _is_size(size_bytes) or "data" in given:
        raise invalid(f"input {name!r} needs either 'data' or a binary_data_size in bytes")
    others = {key: value for key, value in of_tensor.items() if key != "binary_data_size"}
    parameters.put(others, tensor.parameters, f"input {name!r}")
    return binary.take(size_bytes, name)


def _of_numbers(name: str, datatype: str, shape: list[int], data: Any, counts: Counter[str]) -> bytes:
    """A tensor's bytes from JSON numbers, flat or nested; `counts` has the values of each type so far."""
    if not isinstance(data, list):
        raise invalid(f"input {name!r} needs 'data', a list of its values, or a binary_data_size")
    codec = CODECS.get(datatype)
    if codec is None:
        return b""  # which the model does not take: it says so
    try:
        counts[datatype] += math.prod(shape)
        codec.check_count(counts[datatype])
        values = codec.listed(data)
    except ValueError as error:
        raise _unfit(name, error) from None
    if values.size != math.prod(shape) or (values.ndim > 1 and list(values.shape) != shape):
        raise invalid(f"input {name!r} of shape {shape} has data of shape {list(values.shape)}")
    try:
        return codec.packed(values)
    except ValueError as error:
        raise _unfit(name, error) from None


def _unfit(name: str, error: ValueError) -> Refused:
    return invalid(f"the data of input {name!r}: {error}")


def _read_output(given: Mapping[str, Any], request: pb.ModelInferRequest) -> tuple[str, bool | None]:
    """Puts an output into the request; returns its name, and whether it is to leave as binary if it says."""
    name = _text(given.get("name"), "name of an output")
    output = request.outputs.add(name=name)
    of_output = given.get("parameters", {})
    if not isinstance(of_output, Mapping):
        raise invalid(f"the parameters of output {name!r} must be an object of names and values")
    others = {key: value for key, value in of_output.items() if key != "binary_data"}
    parameters.put(others, output.parameters, f"output {name!r}")
    is_binary = of_output.get("binary_data")
    if is_binary is not None and not isinstance(is_binary, bool):
        raise invalid(f"the parameter 'binary_data' of output {name!r} must be true or false")
    return name, is_binary


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"the {what} must be a string")
    return value


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def answer(
    response: pb.ModelInferResponse, tensors: Iterable[OutputTensor], form: OutputForm
) -> tuple[bytes, int | None]:
    """The body of an answer, given without its outputs; the length of its document if tensors follow it."""
    document: dict[str, Any] = {
        "model_name": response.model_name,
        "model_version": response.model_version,
    }
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = {name: value.bool_param for name, value in response.parameters.items()}
    binary: list[bytes | memoryview] = []
    outputs: list[dict[str, Any]] = []
    for output in tensors:
        raw = output.data
        told: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(output.shape),
        }
        if form.is_binary(output.name):
            told["parameters"] = {"binary_data_size": len(raw)}
            binary.append(raw)
        elif len(raw) > MAX_JSON_BYTES:
            raise invalid(
                f"output {output.name!r} has {len(raw)} bytes, and at most {MAX_JSON_BYTES} leave as JSON; "
                "ask for it as binary data (the parameter binary_data_output), or over gRPC"
            )
        else:
            told["data"] = _told(output)
        outputs.append(told)
    document["outputs"] = outputs
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return b"".join((text, *binary)), (len(text) if binary else None)


def _told(output: OutputTensor) -> Any:
    """The values of an output as JSON has them, flat."""
    try:
        return CODECS[output.datatype].told(output.data)
    except UnicodeDecodeError:
        raise invalid(
            f"output {output.name!r} has strings that are no UTF-8, which JSON cannot hold; ask for it as "
            "binary data (the parameter binary_data_output), or over gRPC"
        ) from None
