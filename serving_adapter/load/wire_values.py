"""Values as the bytes in which they travel, for the data types that a client can send."""

from __future__ import annotations

import struct

import numpy as np

from serving_adapter.tensors import NUMPY_OF_DATATYPE

DATATYPES = {name: dtype.itemsize for name, dtype in NUMPY_OF_DATATYPE.items()} | {"BF16": 2, "BYTES": 1}
"""Bytes of one value; those of BYTES differ."""

LENGTH = struct.Struct("<I")  # before each string
KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""By the kind of a data type, the kinds of numbers that it is made from without loss of meaning."""


def wire_bytes(values: np.ndarray, datatype: str) -> bytes:
    """The values in row-major order; ValueError, in a part of a sentence, where they are no such values."""
    if datatype == "BYTES":
        return b"".join(_string(value) for value in values.ravel())
    dtype = np.dtype(np.float32) if datatype == "BF16" else NUMPY_OF_DATATYPE[datatype]
    if values.size and values.dtype.kind not in KINDS[dtype.kind]:
        what = "true and false" if dtype.kind == "b" else "whole numbers" if dtype.kind in "iu" else "numbers"
        raise ValueError(f"{datatype} takes {what}, got {values.ravel()[0]!r}")
    if values.size and dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise ValueError(f"a value does not fit {datatype}")
    numbers = values.astype(dtype)
    return _bfloat16(numbers) if datatype == "BF16" else numbers.tobytes()


def _string(value: object) -> bytes:
    if isinstance(value, str):
        value = value.encode()
    if not isinstance(value, bytes):
        raise ValueError(f"BYTES takes strings, got {value!r}")
    return LENGTH.pack(len(value)) + value


def _bfloat16(numbers: np.ndarray) -> bytes:
    """Rounded to the nearest, halves to even: the upper 16 bits of FP32."""
    bits = numbers.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16).tobytes()
