"""Requests made before they are needed, so that sending one costs the client no tensor work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Protocol

import numpy as np
from tritonclient.grpc import service_pb2 as messages

from serving_adapter import strings
from serving_adapter.codecs import CODECS, Codec
from serving_adapter.load.connection import ModelSignature
from serving_adapter.load.sizes import Sizes
from serving_adapter.target import TargetError

REQUESTS_PER_SIZE = 4  # different requests of one size
MAX_CACHED_BYTES = 64 << 20  # of serialised requests
MAX_REQUEST_BYTES = (2 << 30) - (1 << 20)  # of its tensors: a message has less than 2 GiB
SAMPLED_SIZES = 10_000  # whose requests are made at the start
TOKENS = (1000, 20_000)  # values of integer tensors: ordinary words in the vocabularies of text models
LETTERS = np.frombuffer(b"etaoinshrdlu", np.uint8)
LETTERS_OF_A_WORD = 5


class RequestSource(Protocol):
    """Where the load generator takes its requests from."""

    def prepare(self, sizes: Sizes) -> None:
        """Makes the requests of the sizes that are likely to come."""

    def of_size(self, size: int) -> bytes:
        """A serialised ModelInferRequest whose variable dimensions measure `size`, where they vary."""
        ...


class Payloads:
    """Requests with made-up values, by size and seeded.

    Those that do not fit in memory are made anew each time. A string is a text of as many words as the size.
    `shapes` fix the shapes of inputs by name, the batch dimension left out.
    """

    def __init__(
        self,
        model: ModelSignature,
        rng: np.random.Generator,
        kept_bytes: int = MAX_CACHED_BYTES,
        shapes: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        for tensor in model.inputs:
            if tensor.datatype not in CODECS:
                raise TargetError(
                    f"input {tensor.name!r} of model {model.name!r} has datatype {tensor.datatype}; "
                    f"values can be made up for {', '.join(CODECS)}. Send its requests with a "
                    "client of your own: rrl-tune needs none of ours"
                )
        self._model = model
        self._shapes = _checked(shapes or {}, model)
        self._rng = rng
        self._free_bytes = kept_bytes
        self._of_size: dict[int, cycle[bytes]] = {}
        self._varies = any(
            not CODECS[tensor.datatype].itemsize or -1 in self._item_shape(tensor) for tensor in model.inputs
        )

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

    def _item_shape(self, tensor: Any) -> list[int]:
        if tensor.name in self._shapes:
            return list(self._shapes[tensor.name])
        return list(tensor.shape[1:] if self._model.is_batched else tensor.shape)

    def _request(self, size: int) -> bytes:
        request = messages.ModelInferRequest(model_name=self._model.name)
        shapes = [
            [size if dimension < 0 else dimension for dimension in self._item_shape(tensor)]
            for tensor in self._model.inputs
        ]
        self._check_bytes(size, shapes)
        for tensor, shape in zip(self._model.inputs, shapes, strict=True):
            batch = [1] if self._model.is_batched else []
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=batch + shape)
            codec = CODECS[tensor.datatype]
            request.raw_input_contents.append(codec.packed(_values(codec, shape, size, self._rng)))
        return request.SerializeToString()

    def _check_bytes(self, size: int, shapes: list[list[int]]) -> None:
        of_text = strings.LENGTH.size + max(1, size) * (LETTERS_OF_A_WORD + 1)
        total_bytes = sum(
            math.prod(shape) * (CODECS[tensor.datatype].itemsize or of_text)
            for tensor, shape in zip(self._model.inputs, shapes, strict=True)
        )
        if total_bytes > MAX_REQUEST_BYTES:
            raise TargetError(
                f"a request of size {size} to model {self._model.name!r} would have {total_bytes:,} bytes, "
                "more than a message can hold: give smaller sizes or shapes"
            )


def _checked(shapes: Mapping[str, Sequence[int]], model: ModelSignature) -> Mapping[str, Sequence[int]]:
    for name, shape in shapes.items():
        tensor = next((each for each in model.inputs if each.name == name), None)
        if tensor is None:
            names = ", ".join(each.name for each in model.inputs)
            raise TargetError(
                f"model {model.name!r} has no input {name!r} to give a shape to; it has {names}"
            )
        wanted = list(tensor.shape[1:] if model.is_batched else tensor.shape)
        if len(shape) != len(wanted) or any(w not in (-1, s) for w, s in zip(wanted, shape, strict=True)):
            raise TargetError(f"input {name!r} takes the shape {wanted} (-1: any), got {list(shape)}")
    return shapes


def _values(codec: Codec, shape: list[int], size: int, rng: np.random.Generator) -> np.ndarray:
    match codec.kind:
        case "O":
            texts = [_text(max(1, size), rng) for _ in range(math.prod(shape))]
            return np.array(texts, dtype=object).reshape(shape)
        case "f":
            return rng.standard_normal(shape, np.float32)
        case "b":
            return rng.integers(2, size=shape).astype(bool)
    if codec.itemsize == 1:
        return rng.integers(np.iinfo(codec.dtype).max, size=shape, dtype=codec.dtype, endpoint=True)
    return rng.integers(*TOKENS, size=shape, dtype=codec.dtype)


def _text(words: int, rng: np.random.Generator) -> bytes:
    """So many words of random letters."""
    letters = rng.choice(LETTERS, (words, LETTERS_OF_A_WORD + 1))
    letters[:, -1] = ord(" ")
    return bytes(letters.tobytes().rstrip())
