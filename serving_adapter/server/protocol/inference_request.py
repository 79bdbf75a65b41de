"""What a client asks for in an inference request: obeyed, or refused by name.

Nothing is left out in silence. A parameter that would change the answer or its time, and that this server
does not have, is an error: the client would go on in the belief that it was heard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.received import InferenceMessage
from serving_adapter.server.protocol.refusals import Refused, invalid
from serving_adapter.server.requests import InputTensor
from serving_adapter.server.served_model import ServedModel
from serving_adapter.tensors import TensorSpec

CONTENTS: dict[str, tuple[str, type]] = {
    "BOOL": ("bool_contents", bool),
    "UINT8": ("uint_contents", np.int64),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", np.int64)),
    "INT64": ("int64_contents", np.int64),
    "FP32": ("fp32_contents", np.float32),
    "FP64": ("fp64_contents", np.float64),
    "BYTES": ("bytes_contents", object),
}
"""Where a tensor's values are if they are not raw, and as what; FP16 and BF16 travel raw only."""

WANTS_AN_END = "triton_enable_empty_final_response"
"""Asks to be told, by an empty answer if need be, that there will be no other. Each answer here tells so."""
REQUEST_PARAMETERS = ("exact", "timeout", "priority", WANTS_AN_END)
UNSUPPORTED = {
    "sequence_id": "there is no batching of sequences",
    "sequence_start": "there is no batching of sequences",
    "sequence_end": "there is no batching of sequences",
    "classification": "outputs are answered whole",
    "shared_memory_region": "there is no shared memory with clients; send tensors in raw_input_contents",
    "shared_memory_offset": "there is no shared memory with clients; send tensors in raw_input_contents",
    "shared_memory_byte_size": "there is no shared memory with clients; send tensors in raw_input_contents",
    "binary_data": "that is of the protocol over HTTP; here all outputs are raw",
    "binary_data_size": "that is of the protocol over HTTP; send tensors in raw_input_contents",
}
"""What stock clients may ask for, and why it cannot be had. Asking for its absence (0, false, "") is fine."""

MAX_TIMEOUT_US = 86_400_000_000


class RequestOptions(NamedTuple):
    """What the parameters of a request ask for."""

    accepts_approximation: bool = True
    timeout_us: int = 0  # from its arrival; 0 is none
    priority: int = 0  # one of the model's levels; 0 is its default


def read_options(request: pb.ModelInferRequest, model: ServedModel) -> RequestOptions:
    """The options of a request; raises Refused, in one sentence, for one that cannot be obeyed."""
    if not request.parameters:
        return RequestOptions()
    _check_parameters(request.parameters, REQUEST_PARAMETERS, "request")
    return RequestOptions(not _exact(request), _timeout_us(request), _priority(request, model))


def wanted_outputs(request: pb.ModelInferRequest, model: ServedModel) -> list[str]:
    """The names of the outputs that are asked for; empty for all."""
    for output in request.outputs:
        if output.name not in model.outputs:
            raise invalid(
                f"model {model.name!r} has no output {output.name!r}; it has {names(model.outputs)}"
            )
        if output.parameters:
            _check_parameters(output.parameters, (), f"output {output.name!r}")
    return [output.name for output in request.outputs]


def read_inputs(message: InferenceMessage, model: ServedModel) -> list[InputTensor]:
    """The request's inputs in the model's order; raises Refused, in one sentence, where they do not fit."""
    request, raw = message.request, message.raw
    given = {tensor.name: (i, tensor) for i, tensor in enumerate(request.inputs)}
    if given.keys() != model.inputs.keys() or len(given) != len(request.inputs):
        got = ", ".join(repr(tensor.name) for tensor in request.inputs) or "none"
        raise invalid(f"model {model.name!r} takes the inputs {names(model.inputs)}, got {got}")
    if raw and len(raw) != len(request.inputs):
        raise invalid(f"raw_input_contents has {len(raw)} entries for {len(request.inputs)} inputs")
    inputs = []
    for spec in model.inputs.values():
        i, tensor = given[spec.name]
        if tensor.parameters:
            _check_parameters(tensor.parameters, (), f"input {spec.name!r}")
        shape = tuple(tensor.shape)
        _check_shape(spec, tensor.datatype, shape, model.max_rows)
        data = _raw(spec, tensor, shape, raw[i]) if raw else _contents(spec, tensor, shape)
        inputs.append(InputTensor(data, shape))
    if len({tensor.shape[0] for tensor in inputs}) > 1:
        raise invalid("all inputs of a request must have the same batch dimension (the first of the shape)")
    return inputs


def names(known: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in known) or "none"


def _exact(request: pb.ModelInferRequest) -> bool:
    """A client refuses approximate answers with the request parameter `exact`."""
    if "exact" not in request.parameters:
        return False
    if request.parameters["exact"].WhichOneof("parameter_choice") != "bool_param":
        raise invalid("the request parameter 'exact' must be a bool_param: true refuses approximate answers")
    return bool(request.parameters["exact"].bool_param)


def _timeout_us(request: pb.ModelInferRequest) -> int:
    what = f"a whole number of microseconds up to {MAX_TIMEOUT_US}"
    return _whole_number(request, "timeout", MAX_TIMEOUT_US, what)


def _priority(request: pb.ModelInferRequest, model: ServedModel) -> int:
    levels = model.priorities.levels
    if levels:
        what = f"a level from 1, which is served first, to {levels}, or 0 for the default"
        return _whole_number(request, "priority", levels, what)
    if "priority" in request.parameters and _value(request.parameters["priority"]):
        raise invalid(
            f"the request asks for 'priority', and model {model.name!r} has no priority levels; start the "
            "server with --priority-levels, or leave it out"
        )
    return 0


def _whole_number(request: pb.ModelInferRequest, name: str, most: int, what: str) -> int:
    """A parameter of the request; 0 where it has none."""
    if name not in request.parameters:
        return 0
    value = _value(request.parameters[name])
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise invalid(f"the request parameter {name!r} must be {what}, got {value!r}")
    return value


def _check_parameters(given: Mapping[str, Any], known: Sequence[str], of: str) -> None:
    """Raises Refused for a parameter that is asked for and not known, or known to be not supported."""
    for name, parameter in given.items():
        if name in known:
            continue
        why = UNSUPPORTED.get(name)
        if why is None:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise invalid(f"the {of} has the unknown parameter {name!r}; {takes}")
        if _value(parameter):
            raise invalid(f"the {of} asks for {name!r}, which this server does not support: {why}")


def _value(parameter: pb.InferParameter) -> Any:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _check_shape(spec: TensorSpec, datatype: str, shape: tuple[int, ...], max_rows: int) -> None:
    if datatype != spec.datatype:
        raise invalid(f"input {spec.name!r} must have datatype {spec.datatype}, got {datatype!r}")
    fits = len(shape) == 1 + len(spec.shape) and all(
        given >= 1 and wanted in (-1, given) for given, wanted in zip(shape[1:], spec.shape, strict=True)
    )
    if not fits or not 1 <= shape[0] <= max_rows:
        raise invalid(
            f"input {spec.name!r} must have shape {[-1, *spec.shape]} (-1: any length from 1; the first is "
            f"the batch, at most {max_rows}), got {_shape(shape)}"
        )
    if spec.max_size is not None:
        longest = max((g for g, w in zip(shape[1:], spec.shape, strict=True) if w == -1), default=0)
        if longest > spec.max_size:
            raise invalid(f"input {spec.name!r} may be at most {spec.max_size} long, got {longest}")


def _shape(shape: tuple[int, ...]) -> str:
    """A client's shape in a sentence, however many dimensions it has."""
    return str(list(shape)) if len(shape) <= 16 else f"one of {len(shape)} dimensions"


def _raw(
    spec: TensorSpec, tensor: Any, shape: tuple[int, ...], data: bytes | memoryview
) -> bytes | memoryview:
    if tensor.HasField("contents") and tensor.contents.ListFields():
        raise invalid(
            f"input {spec.name!r} has typed contents beside raw_input_contents; send one of the two"
        )
    try:
        spec.codec.check(data, shape)
    except ValueError as error:
        raise _unfit(spec, shape, error) from None
    return data


def _unfit(spec: TensorSpec, shape: tuple[int, ...], error: ValueError) -> Refused:
    return invalid(f"input {spec.name!r} of shape {list(shape)} and datatype {spec.datatype}: {error}")


def _contents(spec: TensorSpec, tensor: Any, shape: tuple[int, ...]) -> bytes:
    """A tensor sent as typed contents instead of raw bytes; its length is compared before its values."""
    field, of_values = CONTENTS.get(spec.datatype, ("", object))
    if not field:
        raise invalid(f"input {spec.name!r} of datatype {spec.datatype} must be sent in raw_input_contents")
    filled = {descriptor.name for descriptor, _ in tensor.contents.ListFields()}
    if filled - {field}:
        raise invalid(
            f"input {spec.name!r} of datatype {spec.datatype} must be sent in {field} or raw_input_contents, "
            f"got {', '.join(sorted(filled))}"
        )
    contents, expected = getattr(tensor.contents, field), math.prod(shape)
    if len(contents) != expected:
        raise invalid(
            f"input {spec.name!r} of shape {list(shape)} needs {expected} values in {field}, "
            f"got {len(contents)}"
        )
    try:
        spec.codec.check_count(expected)
        data = spec.codec.packed(np.fromiter(contents, of_values, expected))
        spec.codec.check(data, shape)
    except ValueError as error:
        raise _unfit(spec, shape, error) from None
    return data
