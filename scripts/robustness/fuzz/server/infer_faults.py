"""Faults that are put into an inference request, each by a function whose name says what it does."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from scripts.robustness.fuzz.odd_values import (
    ODD_DATATYPES,
    ODD_DIMENSIONS,
    ODD_INTEGERS,
    ODD_NAMES,
    ODD_VERSIONS,
    PARAMETERS,
    put_parameter,
)
from scripts.robustness.fuzz.server.oracle import CONTENTS, MINILM

LONG_BYTES = (1 << 16, 1 << 20, 3 << 20)

Request = Any  # pb.ModelInferRequest, whose module is generated and untyped


def _odd_dimension(request: Request, rng: Random) -> None:
    shape = rng.choice(request.inputs).shape
    shape[rng.randrange(len(shape))] = rng.choice(ODD_DIMENSIONS)


def _other_rank(request: Request, rng: Random) -> None:
    shape = rng.choice(request.inputs).shape
    if rng.random() < 0.5:
        shape.append(rng.choice((1, 1, *ODD_DIMENSIONS)))
    else:
        del shape[rng.randrange(len(shape)) :]


def _many_dimensions(request: Request, rng: Random) -> None:
    rng.choice(request.inputs).shape.extend(
        [rng.choice(ODD_DIMENSIONS)] * (4000 if rng.random() < 0.05 else rng.choice((31, 64)))
    )


def _odd_datatype(request: Request, rng: Random) -> None:
    rng.choice(request.inputs).datatype = rng.choice(ODD_DATATYPES)


def _odd_input_name(request: Request, rng: Random) -> None:
    rng.choice(request.inputs).name = rng.choice(ODD_NAMES)


def _missing_input(request: Request, rng: Random) -> None:
    del request.inputs[rng.randrange(len(request.inputs))]


def _input_twice(request: Request, rng: Random) -> None:
    request.inputs.add().CopyFrom(rng.choice(request.inputs))


def _many_inputs(request: Request, rng: Random) -> None:
    for i in range(3000 if rng.random() < 0.02 else 20):
        request.inputs.add(name=f"x{i}", datatype="FP32", shape=[1, 4])


def _raw_of_another_length(request: Request, rng: Random) -> None:
    if not request.raw_input_contents:
        request.raw_input_contents.append(rng.randbytes(rng.choice((0, 1, 16))))
        return
    i = rng.randrange(len(request.raw_input_contents))
    data = request.raw_input_contents[i]
    request.raw_input_contents[i] = rng.choice(
        (b"", data[:-1], data + b"\0", data * 2, data[: len(data) // 2])
    )


def _raw_missing(request: Request, rng: Random) -> None:
    if request.raw_input_contents:
        del request.raw_input_contents[rng.randrange(len(request.raw_input_contents))]


def _raw_and_typed(request: Request, rng: Random) -> None:
    tensor = rng.choice(request.inputs)
    getattr(tensor.contents, CONTENTS.get(tensor.datatype, "int_contents")).append(1)
    if not request.raw_input_contents:
        request.raw_input_contents.extend([b"\0" * 8] * len(request.inputs))


def _contents_of_another_length(request: Request, rng: Random) -> None:
    tensor = rng.choice(request.inputs)
    del request.raw_input_contents[:]
    field = getattr(tensor.contents, CONTENTS.get(tensor.datatype, "int_contents"))
    field.extend([1] * (20_000 if rng.random() < 0.02 else rng.choice((1, 2, 64))))


def _contents_of_another_type(request: Request, rng: Random) -> None:
    tensor = rng.choice(request.inputs)
    del request.raw_input_contents[:]
    field = rng.choice(
        ("fp64_contents", "uint_contents", "uint64_contents", "bool_contents", "bytes_contents")
    )
    values: list[Any] = [b"1"] if field == "bytes_contents" else [1]
    getattr(tensor.contents, field).extend(values * rng.choice((1, 4, 16)))


def _contents_out_of_range(request: Request, rng: Random) -> None:
    del request.raw_input_contents[:]
    for tensor in request.inputs:
        tensor.contents.int64_contents.extend([rng.choice(ODD_INTEGERS)] * rng.choice((1, 8)))
        tensor.contents.int_contents.extend([2**31 - 1] * rng.choice((1, 8)))


def long_contents(request: Request, rng: Random) -> None:
    """A few bytes are asked for, megabytes are sent."""
    size_bytes = rng.choice(LONG_BYTES)
    tensor = rng.choice(request.inputs)
    if rng.random() < 0.3:
        request.raw_input_contents.append(b"\0" * size_bytes)
        return
    del request.raw_input_contents[:]
    field = rng.choice((CONTENTS.get(tensor.datatype, "int_contents"), "int64_contents", "uint_contents"))
    getattr(tensor.contents, field).extend(np.ones(size_bytes, np.int64).tolist())


def _odd_model(request: Request, rng: Random) -> None:
    request.model_name = rng.choice(ODD_NAMES)


def _odd_version(request: Request, rng: Random) -> None:
    request.model_version = rng.choice(ODD_VERSIONS)


def _odd_output(request: Request, rng: Random) -> None:
    request.outputs.add(name=rng.choice(ODD_NAMES))


def _outputs_many_times(request: Request, rng: Random) -> None:
    name = "embedding" if request.model_name == MINILM else "length"
    for _ in range(3000 if rng.random() < 0.02 else 2):
        request.outputs.add(name=name)


def _parameter(request: Request, rng: Random) -> None:
    put_parameter(request.parameters[rng.choice(PARAMETERS)], rng)


def _parameter_of_a_tensor(request: Request, rng: Random) -> None:
    tensors = [*request.inputs, *request.outputs]
    put_parameter(rng.choice(tensors).parameters[rng.choice(PARAMETERS)], rng)


def _empty(request: Request, rng: Random) -> None:
    request.Clear()


FAULTS: tuple[tuple[str, Callable[[Request, Random], None]], ...] = tuple(
    (fault.__name__.strip("_").replace("_", " "), fault)
    for fault in (
        _odd_dimension,
        _other_rank,
        _many_dimensions,
        _odd_datatype,
        _odd_input_name,
        _missing_input,
        _input_twice,
        _many_inputs,
        _raw_of_another_length,
        _raw_missing,
        _raw_and_typed,
        _contents_of_another_length,
        _contents_of_another_type,
        _contents_out_of_range,
        _odd_model,
        _odd_version,
        _odd_output,
        _outputs_many_times,
        _parameter,
        _parameter_of_a_tensor,
        _empty,
    )
)
