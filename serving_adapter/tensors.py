"""Tensors as the Open Inference Protocol names them: data types, specifications."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

NUMPY_OF_DATATYPE: dict[str, np.dtype] = {
    "BOOL": np.dtype(bool),
    "UINT8": np.dtype(np.uint8),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),  # its bits: numpy has no such numbers
    "BYTES": np.dtype(object),  # Python bytes, of any length
}
BF16, BYTES = "BF16", "BYTES"

UNREADABLE_ARRAYS = (
    *(ValueError, TypeError, KeyError, AttributeError, EOFError, OverflowError, MemoryError),
    *(RuntimeError, zipfile.BadZipFile, zlib.error),  # RuntimeError: encrypted, or compressed in another way
)
"""What numpy raises, OSError apart, for a file that is no .npz of plain arrays, or a damaged one."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, type and shape of one input or output of one request item (the batch dimension left out).

    A dimension of -1 varies between requests. With a `pad_value`, requests of different shapes share a
    batch, each padded at its end with that value; without one, only requests of equal shapes do.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    pad_value: int | float | None = None
    max_size: int | None = None  # of a dimension of -1

    def __post_init__(self) -> None:
        if not all(_is_whole(size) and size >= -1 for size in self.shape):
            raise ValueError(
                f"tensor {self.name!r}: the shape must be whole numbers, -1 for any, got {list(self.shape)}"
            )
        if self.max_size is not None and not (_is_whole(self.max_size) and self.max_size >= 1):
            raise ValueError(
                f"tensor {self.name!r}: max_size must be a whole number from 1, got {self.max_size!r}"
            )
        if self.datatype not in NUMPY_OF_DATATYPE:
            raise ValueError(
                f"tensor {self.name!r}: datatype {self.datatype!r} is not supported; "
                f"known: {', '.join(NUMPY_OF_DATATYPE)}"
            )

        if self.pad_value is not None and not self._holds(self.pad_value):
            raise ValueError(
                f"tensor {self.name!r}: pad_value must be a number that {self.datatype} holds, "
                f"got {self.pad_value!r}"
            )

    def _holds(self, value: object) -> bool:
        if not isinstance(value, int | float) or self.datatype == BYTES:
            return False
        if self.dtype.kind == "f" or self.datatype == BF16:
            return True
        limits = (0, 1) if self.dtype.kind == "b" else (np.iinfo(self.dtype).min, np.iinfo(self.dtype).max)
        return value == value // 1 and limits[0] <= value <= limits[1]

    @property
    def dtype(self) -> np.dtype:
        return NUMPY_OF_DATATYPE[self.datatype]

    @property
    def filling(self) -> int | float | None:
        """`pad_value` as an array of `dtype` takes it."""
        if self.datatype == BF16 and self.pad_value is not None:
            return int(bfloat16_bits(np.array([self.pad_value], np.float32))[0])
        return self.pad_value

    def covers(self, size: Sequence[int]) -> bool:
        """Whether an item of this size is as described; -1 stands for any length."""
        return len(size) == len(self.shape) and all(map(_covers, self.shape, size))

    def widened(self, size: Sequence[int]) -> TensorSpec:
        """The same, with -1 where an item of this size is not as described; ValueError for other ranks."""
        pairs = zip(self.shape, size, strict=True)
        return replace(self, shape=tuple(told if _covers(told, seen) else -1 for told, seen in pairs))


def bfloat16_bits(numbers: np.ndarray) -> np.ndarray:
    """FP32 numbers as BF16, rounded to the nearest, halves to even: the upper 16 bits."""
    bits = numbers.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16)


def _covers(told: int, seen: int) -> bool:
    return told in (-1, seen)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
