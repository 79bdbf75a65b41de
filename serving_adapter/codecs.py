"""The data types of the Open Inference Protocol: how tensors of each travel, share a batch and are computed.

| type | in an array | for a model |
|---|---|---|
| BOOL, INT8 to INT64, UINT8, FP16 to FP64 | numpy's own type | a tensor of the array's memory |
| BF16 | its bits: numpy has no such numbers | a tensor of `torch.bfloat16` |
| BYTES | Python bytes of any length | that array |

What is a type's own is here, and nowhere else is one asked for by name. torch is imported where a tensor is
made: the front, which makes none, does without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from serving_adapter import strings

if TYPE_CHECKING:
    from torch import Tensor

Data = bytes | memoryview
Part = tuple[Data, tuple[int, ...]]
"""A tensor of one request: its bytes and its shape."""

BYTES = "BYTES"
MADE_FROM = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""By the kind of a data type, the kinds of numbers that it is made from without loss of meaning."""
IN_WORDS = {"b": "true and false", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}


class Codec:
    """A type of numbers that numpy and torch have; the other types say what they do otherwise."""

    def __init__(self, name: str, dtype: type) -> None:
        self.name = name
        self.dtype: np.dtype = np.dtype(dtype)  # of arrays
        self.kind = self.dtype.kind  # of its values, in numpy's letters
        self.itemsize = self.dtype.itemsize  # bytes of a value; 0 where they differ
        self.config_name = f"TYPE_{name}"  # in a model's configuration

    def check_count(self, count: int) -> None:
        """ValueError, in a part of a sentence, where so many values are too many to pack."""

    def check(self, data: Data, shape: Sequence[int]) -> None:
        """ValueError, in a part of a sentence, where `data` is no tensor of this shape."""
        expected_bytes = self.size_bytes(shape)
        if len(data) != expected_bytes:
            raise ValueError(f"it needs {expected_bytes} bytes, got {len(data)}")

    def received(self, data: Data, shape: Sequence[int]) -> np.ndarray:
        """What a client sent as an array, a view where that can be; it has been checked."""
        return self.array(data, shape)

    def listed(self, values: Any) -> np.ndarray:
        """Values of a JSON document as an array; ValueError, in a part of a sentence, for others.

        numpy gives each string of a list the room of the longest, so it is given numbers only.
        """
        for kind in _types_in(values):
            if not issubclass(kind, int | float):
                raise ValueError(f"{self.name} takes {IN_WORDS[self.kind]}, got {kind.__name__}")
        try:
            return np.array(values)
        except (ValueError, OverflowError):
            raise ValueError("its values are not of one shape") from None

    def packed(self, values: np.ndarray) -> bytes:
        """Values as they travel, in row-major order; ValueError, in a part of a sentence, for others."""
        if values.size and values.dtype.kind not in MADE_FROM[self.kind]:
            raise ValueError(f"{self.name} takes {IN_WORDS[self.kind]}, got {values.ravel()[0]!r}")
        if values.size and self.kind in "iu":
            limits: Any = np.iinfo(self.dtype)
            if values.min() < limits.min or values.max() > limits.max:
                raise ValueError(f"a value does not fit {self.name}")
        try:
            with np.errstate(over="raise"):  # It would be infinity otherwise.
                return self.of_numbers(values).tobytes()
        except FloatingPointError:
            raise ValueError(f"a value does not fit {self.name}") from None

    def raw(self, data: bytes) -> tuple[int, bytes]:
        """Bytes from elsewhere: how many values, and as they travel; ValueError, in a part of a sentence."""
        if len(data) % self.itemsize:
            raise ValueError(f"has {len(data)} bytes, no multiple of the {self.itemsize} of {self.name}")
        return len(data) // self.itemsize, data

    def told(self, data: Data) -> Any:
        """What travelled as a JSON document has it, flat."""
        return np.frombuffer(data, self.dtype)

    def size_bytes(self, shape: Sequence[int]) -> int:
        """What numbers of this shape take."""
        return math.prod(shape) * self.itemsize

    def batch_bytes(self, shape: Sequence[int], parts: Sequence[Part]) -> int:
        """What these parts take together, padded to this shape."""
        return self.size_bytes(shape)

    def array(self, memory: Data, shape: Sequence[int]) -> np.ndarray:
        """The array that lies there, a view where that can be."""
        return np.frombuffer(memory, self.dtype).reshape(shape)

    def stack(
        self, parts: Sequence[Part], memory: memoryview, shape: Sequence[int], filling: int | float | None
    ) -> None:
        """Writes the rows of each part, padded at the end of every dimension, into memory of this shape."""
        target, first_row = self.array(memory, shape), 0
        for data, of_part in parts:
            rows = self.received(data, of_part)
            there = target[first_row : first_row + of_part[0]]
            if rows.shape != there.shape:
                there[...] = filling
                there = there[(slice(None), *(slice(0, size) for size in of_part[1:]))]
            there[...] = rows
            first_row += of_part[0]

    def cut_bytes(self, rows: np.ndarray) -> int:
        """The size of what `cut` gives."""
        return rows.nbytes

    def cut(self, outputs: np.ndarray, first_row: int, rows: int) -> Data:
        """Rows of a batch as they travel, in memory that lasts.

        They are copied out of a worker's arena. Of an array that has its memory to itself they are a view.
        """
        part = outputs[first_row : first_row + rows]
        return part.tobytes() if outputs.base is not None else part.reshape(-1).view(np.uint8).data

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers as arrays of this type have them."""
        return numbers.astype(self.dtype, copy=False)

    def holds(self, value: object) -> bool:
        """Whether a number can be padded with."""
        if not isinstance(value, int | float) or not self.itemsize:
            return False
        if self.kind == "f":
            return True
        limits = (0, 1) if self.kind == "b" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
        return value == value // 1 and limits[0] <= value <= limits[1]

    def filling(self, pad_value: int | float | None) -> int | float | None:
        """A number to pad with, as arrays of this type take it."""
        return pad_value

    def zeros(self, shape: Sequence[int]) -> np.ndarray:
        """Values that say nothing."""
        return np.zeros(shape, self.dtype)

    def tensor(self, array: np.ndarray) -> Any:
        """What a model takes: a tensor of the array's memory."""
        import torch

        return torch.from_numpy(array)

    def ones(self, shape: Sequence[int]) -> Any:
        """Values to try a model with."""
        return self.tensor(self.of_numbers(np.ones(shape)))

    def output_bytes(self, values: Tensor) -> int:
        """What `put` writes."""
        return self.size_bytes(values.shape)

    def put(self, values: Tensor, memory: memoryview) -> None:
        """Writes what a model answered, which lies in the host's memory."""
        self.tensor(self.array(memory, values.shape)).copy_(values)


def _types_in(values: Any) -> set[type]:
    """The types of the values in a list, flat or nested; none for an array, which has one of its own."""
    if not isinstance(values, list):
        return set()
    while (types := set(map(type, values))) == {list}:
        values = list(chain.from_iterable(values))
    return types


class BooleanCodec(Codec):
    """BOOL: a client may send any byte but 0 for true."""

    def received(self, data: Data, shape: Sequence[int]) -> np.ndarray:
        return np.frombuffer(data, np.uint8).reshape(shape) != 0


class BFloat16Codec(Codec):
    """BF16: the upper 16 bits of FP32, which is what numbers of it are to numpy."""

    def __init__(self, name: str) -> None:
        super().__init__(name, np.uint16)
        self.kind = "f"

    def told(self, data: Data) -> Any:
        return (np.frombuffer(data, self.dtype).astype(np.uint32) << 16).view(np.float32)

    def of_numbers(self, numbers: np.ndarray) -> np.ndarray:
        """Rounded to the nearest, halves to even."""
        exact = numbers.astype(np.float32)
        bits = exact.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(exact), 0x7FC0, rounded).astype(np.uint16)

    def filling(self, pad_value: int | float | None) -> int | float | None:
        return None if pad_value is None else int(self.of_numbers(np.array([pad_value]))[0])

    def tensor(self, array: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


class StringCodec(Codec):
    """BYTES: strings, each with its length before it where they travel and where a batch lies."""

    def __init__(self, name: str) -> None:
        super().__init__(name, object)
        self.itemsize = 0
        self.config_name = "TYPE_STRING"

    def check_count(self, count: int) -> None:
        strings.check_count(count)

    def check(self, data: Data, shape: Sequence[int]) -> None:
        strings.check(data, math.prod(shape))

    def listed(self, values: Any) -> np.ndarray:
        return np.array(values, object)

    def packed(self, values: np.ndarray) -> bytes:
        return strings.packed(values)

    def raw(self, data: bytes) -> tuple[int, bytes]:
        """One string."""
        return 1, strings.packed(np.array([data], object))

    def told(self, data: Data) -> Any:
        """UnicodeDecodeError where a string is no UTF-8."""
        return [string.decode() for string in strings.each(data)]

    def batch_bytes(self, shape: Sequence[int], parts: Sequence[Part]) -> int:
        return sum([len(data) for data, _ in parts])

    def array(self, memory: Data, shape: Sequence[int]) -> np.ndarray:
        """A copy."""
        return strings.unpacked(memory, shape)

    def stack(
        self, parts: Sequence[Part], memory: memoryview, shape: Sequence[int], filling: int | float | None
    ) -> None:
        memory[:] = b"".join([data for data, _ in parts])

    def cut_bytes(self, rows: np.ndarray) -> int:
        return strings.packed_bytes(rows)

    def cut(self, outputs: np.ndarray, first_row: int, rows: int) -> Data:
        return strings.packed(outputs[first_row : first_row + rows])

    def zeros(self, shape: Sequence[int]) -> np.ndarray:
        return np.full(shape, b"", object)

    def tensor(self, array: np.ndarray) -> Any:
        return array

    def ones(self, shape: Sequence[int]) -> Any:
        return np.full(shape, b"example", object)

    def output_bytes(self, values: Any) -> int:
        return strings.packed_bytes(values)

    def put(self, values: Any, memory: memoryview) -> None:
        memory[:] = strings.packed(values)


CODECS: dict[str, Codec] = {
    "BOOL": BooleanCodec("BOOL", bool),
    "UINT8": Codec("UINT8", np.uint8),
    **{f"INT{8 * n}": Codec(f"INT{8 * n}", np.dtype(f"i{n}").type) for n in (1, 2, 4, 8)},
    **{f"FP{8 * n}": Codec(f"FP{8 * n}", np.dtype(f"f{n}").type) for n in (2, 4, 8)},
    "BF16": BFloat16Codec("BF16"),
    BYTES: StringCodec(BYTES),
}
"""All types that are served, by the protocol's word."""
