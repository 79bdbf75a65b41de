"""Requests made before they are needed, so that sending one costs the client no tensor work."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from serving_adapter.load.connection import ModelSignature
from serving_adapter.load.sizes import Sizes
from serving_adapter.target import TargetError
from serving_adapter.tensors import NUMPY_OF_DATATYPE

REQUESTS_PER_SIZE = 4  # different requests of one size
MAX_CACHED_BYTES = 64 << 20  # of serialised requests
SAMPLED_SIZES = 10_000  # whose requests are made at the start
TOKENS = (1000, 20_000)  # values of integer tensors: ordinary words in the vocabularies of text models


class Payloads:
    """Serialised requests by size, seeded; those that do not fit in memory are made anew each time."""

    def __init__(
        self, model: ModelSignature, rng: np.random.Generator, kept_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        for tensor in model.inputs:
            if tensor.datatype not in NUMPY_OF_DATATYPE:
                raise TargetError(
                    f"input {tensor.name!r} of model {model.name!r} has datatype {tensor.datatype}; "
                    f"values can be made up for {', '.join(NUMPY_OF_DATATYPE)}. Send its requests with a "
                    "client of your own: rrl-tune needs none of ours"
                )
        self._model = model
        self._rng = rng
        self._free_bytes = kept_bytes
        self._of_size: dict[int, cycle[bytes]] = {}
        self._varies = any(-1 in _item_shape(model, tensor) for tensor in model.inputs)

    def prepare(self, sizes: Sizes) -> None:
        """Makes the requests of the sizes that are likely to come."""
        for size in np.unique(sizes.sample(self._rng, SAMPLED_SIZES)).tolist():
            if self._free_bytes > 0:
                self.of_size(size)

    def of_size(self, size: int) -> bytes:
        """A serialised ModelInferRequest whose variable dimensions measure `size`."""
        size = size if self._varies else 0
        if size in self._of_size:
            return next(self._of_size[size])
        if self._free_bytes <= 0:
            return self._request(size)
        made = [self._request(size) for _ in range(REQUESTS_PER_SIZE)]
        self._free_bytes -= sum(map(len, made))
        self._of_size[size] = cycle(made)
        return made[-1]

    def _request(self, size: int) -> bytes:
        request = messages.ModelInferRequest(model_name=self._model.name)
        for tensor in self._model.inputs:
            shape = [size if dimension < 0 else dimension for dimension in _item_shape(self._model, tensor)]
            batch = [1] if self._model.is_batched else []
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=batch + shape)
            request.raw_input_contents.append(_values(tensor.datatype, shape, self._rng).tobytes())
        return request.SerializeToString()


def _item_shape(model: ModelSignature, tensor: Any) -> list[int]:
    return list(tensor.shape[1:] if model.is_batched else tensor.shape)


def _values(datatype: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    dtype = NUMPY_OF_DATATYPE[datatype]
    if dtype.kind == "f":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(2, size=shape).astype(dtype)
    if dtype.itemsize == 1:
        return rng.integers(np.iinfo(dtype).max, size=shape, dtype=dtype, endpoint=True)
    return rng.integers(*TOKENS, size=shape, dtype=dtype)
