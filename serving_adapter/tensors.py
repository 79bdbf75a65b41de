"""Tensors as the Open Inference Protocol describes them."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from serving_adapter.codecs import CODECS, Codec

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
        if self.datatype not in CODECS:
            raise ValueError(
                f"tensor {self.name!r}: datatype {self.datatype!r} is not supported; "
                f"known: {', '.join(CODECS)}"
            )
        if self.pad_value is not None and not self.codec.holds(self.pad_value):
            raise ValueError(
                f"tensor {self.name!r}: pad_value must be a number that {self.datatype} holds, "
                f"got {self.pad_value!r}"
            )

    @property
    def codec(self) -> Codec:
        return CODECS[self.datatype]

    @property
    def dtype(self) -> np.dtype:
        return self.codec.dtype

    @property
    def filling(self) -> int | float | None:
        """`pad_value` as an array of `dtype` takes it."""
        return self.codec.filling(self.pad_value)

    def covers(self, size: Sequence[int]) -> bool:
        """Whether an item of this size is as described; -1 stands for any length."""
        return len(size) == len(self.shape) and all(map(_covers, self.shape, size))

    def may_be_one_with(self, other: TensorSpec) -> bool:
        """Whether they are one tensor, of which some sizes vary in the one alone."""
        pairs = zip(self.shape, other.shape, strict=False)
        return replace(self, shape=other.shape) == other and (
            len(self.shape) == len(other.shape) and all(a == b or -1 in (a, b) for a, b in pairs)
        )

    def widened(self, size: Sequence[int]) -> TensorSpec:
        """The same, with -1 where an item of this size is not as described; ValueError for other ranks."""
        pairs = zip(self.shape, size, strict=True)
        return replace(self, shape=tuple(told if _covers(told, seen) else -1 for told, seen in pairs))


def _covers(told: int, seen: int) -> bool:
    return told in (-1, seen)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
