"""Requests with a user's own data, sent in the order of the file and from its start again.

| file | what it has |
|---|---|
| `.json` | perf_analyzer's input data: `{"data": [{"INPUT": [1, 2], ...}, ...]}` |
| `.npz` | an array an input by its name, its first axis the requests (`rrl-serve --record` writes such) |
| `.jsonl` | a recording of requests (`recordings`) |

An input in JSON is a list of values, flat or nested, or an object with `content` (a list) or `b64` (its bytes
in base64), and maybe `shape`. Shapes are those of one item, without the batch dimension. Strings are for
inputs of BYTES.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from serving_adapter.codecs import CODECS, Codec
from serving_adapter.load.connection import ModelSignature
from serving_adapter.load.recordings import ENDING, RecordedTensor, is_shape, read_recording
from serving_adapter.load.sizes import Sizes
from serving_adapter.tensors import UNREADABLE_ARRAYS

MAX_FILE_BYTES = 1 << 30
MAX_HELD_BYTES = 1 << 30  # of serialised requests


class OwnRequests:
    """Serialised requests of a file for one model; ValueError, in one sentence, where they do not fit it."""

    def __init__(self, path: Path, model: ModelSignature) -> None:
        self._path, self._model = path, model
        requests: list[bytes] = []
        held_bytes = 0
        for where, tensors in _items(path):
            if path.suffix == ".npz" and len(tensors) == len(model.inputs) == 1:
                tensors = {model.inputs[0].name: next(iter(tensors.values()))}  # a recording calls it x
            requests.append(self._request(where, tensors))
            held_bytes += len(requests[-1])
            if held_bytes > MAX_HELD_BYTES:
                raise ValueError(f"{path} has more than {MAX_HELD_BYTES >> 20} MiB of requests; give fewer")
        if not requests:
            raise ValueError(f"{path} has no requests")
        self.count = len(requests)
        self._next = cycle(requests)

    def prepare(self, sizes: Sizes) -> None:
        """They are made already."""

    def of_size(self, size: int) -> bytes:
        """The next request, whatever its size."""
        return next(self._next)

    def _request(self, where: str, tensors: Mapping[str, Any]) -> bytes:
        known = {tensor.name: tensor for tensor in self._model.inputs}
        if tensors.keys() != known.keys():
            raise ValueError(
                f"{where}: model {self._model.name!r} takes the inputs {', '.join(known)}, "
                f"got {', '.join(map(str, tensors)) or 'none'}"
            )
        request = messages.ModelInferRequest(model_name=self._model.name)
        for name, tensor in known.items():
            if tensor.datatype not in CODECS:
                raise ValueError(
                    f"{where}: input {name!r} has datatype {tensor.datatype}, which cannot be sent"
                )
            codec, given = CODECS[tensor.datatype], tensors[name]
            try:
                if isinstance(given, RecordedTensor):
                    shape, data = given
                    _check_shape(shape, tensor.shape)
                    codec.check(data, shape)
                elif self._model.is_batched:
                    of_item, data = _tensor(given, codec, tensor.shape[1:])
                    shape = [1, *of_item]
                else:
                    shape, data = _tensor(given, codec, tensor.shape)
            except ValueError as error:
                raise ValueError(f"{where}, input {name!r}: {error}") from None
            request.inputs.add(name=name, datatype=tensor.datatype, shape=shape)
            request.raw_input_contents.append(data)
        serialised: bytes = request.SerializeToString()
        return serialised


def check_requests(path: Path) -> None:
    """ValueError, in one sentence, for a file that can be sent to no model."""
    if not sum(1 for _ in _items(path)):
        raise ValueError(f"{path} has no requests")


def _items(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each request's inputs by name, and where they stand in the file."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path} has more than {MAX_FILE_BYTES >> 20} MiB; give a part of it")
        if path.suffix == ENDING:
            return ((request.where, request.inputs) for request in read_recording(path))
        items = _of_arrays(path) if path.suffix == ".npz" else _of_json(path)
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror or error}") from None
    return items


def _of_arrays(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except UNREADABLE_ARRAYS as error:
        raise ValueError(f"{path} is no .npz of plain arrays: {error}") from None
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if len(lengths) != 1:
        raise ValueError(f"the arrays of {path} must have as many rows each, one a request")
    for row in range(lengths.pop()):
        yield f"{path}, row {row}", {name: array[row] for name, array in arrays.items()}


def _of_json(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from None
    data = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(data, list):
        raise ValueError(f'{path} must be an object with a list "data", as perf_analyzer\'s input data')
    for number, entry in enumerate(data):
        steps = entry if isinstance(entry, list) else [entry]  # a list is perf_analyzer's sequence
        for step in steps:
            where = f"{path}, data[{number}]"
            if not isinstance(step, Mapping):
                raise ValueError(f"{where} must be an object of inputs by name")
            yield where, step


def _tensor(given: Any, codec: Codec, wanted: Sequence[int]) -> tuple[list[int], bytes]:
    """Shape and bytes of one input; ValueError, in a part of a sentence."""
    shape = None
    if isinstance(given, Mapping):
        shape = given.get("shape")
        if shape is not None and not is_shape(shape):
            raise ValueError("its shape must be a list of whole numbers from 1")
        if "b64" in given:
            return _of_base64(given["b64"], codec, shape, wanted)
        if "content" not in given:
            raise ValueError("it needs a list of values, or an object with 'content' or 'b64'")
        given = given["content"]
    if isinstance(given, np.generic):  # a row of an array of one dimension
        given = np.array([given])
    elif isinstance(given, str | int | float):
        given = [given]
    values = codec.listed(given)
    shape = _fitting_shape(values, shape, wanted)
    return shape, codec.packed(values.reshape(shape))


def _fitting_shape(values: np.ndarray, shape: list[int] | None, wanted: Sequence[int]) -> list[int]:
    """The shape that is told, that of nested values, or the model's for flat ones."""
    if shape is None:
        free = [i for i, size in enumerate(wanted) if size < 0]
        if values.ndim == len(wanted):
            shape = list(values.shape)
        elif len(free) == 1 and values.ndim == 1:
            others = math.prod(size for size in wanted if size >= 0)
            shape = list(wanted)
            shape[free[0]] = values.size // max(1, others)
        elif not free:
            shape = list(wanted)
        else:
            raise ValueError(f"it has a variable shape {list(wanted)}: give its 'shape' too")
    _check_shape(shape, wanted)
    if values.size != math.prod(shape):
        raise ValueError(f"shape {shape} needs {math.prod(shape)} values, got {values.size}")
    return shape


def _check_shape(shape: list[int], wanted: Sequence[int]) -> None:
    fits = len(shape) == len(wanted) and all(w in (-1, s) for w, s in zip(wanted, shape, strict=True))
    if not fits:
        raise ValueError(f"the model takes the shape {list(wanted)} (-1: any), got {shape}")


def _of_base64(
    text: Any, codec: Codec, shape: list[int] | None, wanted: Sequence[int]
) -> tuple[list[int], bytes]:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueError("its 'b64' is no base64") from None
    try:
        count, data = codec.raw(data)
    except ValueError as error:
        raise ValueError(f"its 'b64' {error}") from None
    return _fitting_shape(np.empty(count, np.bool_), shape, wanted), data
