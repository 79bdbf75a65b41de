"""Values as the bytes in which they travel, for the data types that a client can send."""

from __future__ import annotations

from typing import Any

import numpy as np

from serving_adapter import strings
from serving_adapter.tensors import BF16, BYTES, NUMPY_OF_DATATYPE, bfloat16_bits

KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "iuf"}
"""By the kind of a data type, the kinds of numbers that it is made from without loss of meaning."""


def wire_bytes(values: np.ndarray, datatype: str) -> bytes:
    """The values in row-major order; ValueError, in a part of a sentence, where they are no such values."""
    if datatype == BYTES:
        return strings.packed(values)
    dtype = np.dtype(np.float32) if datatype == BF16 else NUMPY_OF_DATATYPE[datatype]
    if values.size and values.dtype.kind not in KINDS[dtype.kind]:
        what = "true and false" if dtype.kind == "b" else "whole numbers" if dtype.kind in "iu" else "numbers"
        raise ValueError(f"{datatype} takes {what}, got {values.ravel()[0]!r}")
    if values.size and dtype.kind in "iu":
        limits: Any = np.iinfo(dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise ValueError(f"a value does not fit {datatype}")
    numbers = values.astype(dtype)
    return (bfloat16_bits(numbers) if datatype == BF16 else numbers).tobytes()


def numbers_of(data: bytes | memoryview, datatype: str) -> np.ndarray:
    """(values,) what travelled, as numbers; BF16 as FP32."""
    values = np.frombuffer(data, NUMPY_OF_DATATYPE[datatype])
    return (values.astype(np.uint32) << 16).view(np.float32) if datatype == BF16 else values
