"""The types of tensors, as safetensors calls them and as this torch has them.

A type may be younger than the torch that is installed, so what it lacks is left out rather than named.
"""

from __future__ import annotations

import torch

from serving_adapter.model_store.errors import StoreError

_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
    "C64": "complex64",
}
_TORCH_NAMES_OF_PAIRS = {"F4": "float4_e2m1fn_x2"}  # torch has two of them as one item


def _of_this_torch(names: dict[str, str]) -> dict[str, torch.dtype]:
    return {ours: getattr(torch, theirs) for ours, theirs in names.items() if hasattr(torch, theirs)}


ITEMS = _of_this_torch(_TORCH_NAMES)
PAIRS = _of_this_torch(_TORCH_NAMES_OF_PAIRS)
NAMES = {dtype: name for name, dtype in ITEMS.items()}


def torch_dtype(name: str) -> torch.dtype:
    """StoreError where this torch has no such type."""
    dtype = ITEMS.get(name) or PAIRS.get(name)
    if dtype is None:
        raise StoreError(f"torch {torch.__version__} has no type for {name[:32]} tensors; update torch")
    return dtype


def torch_shape(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that torch gives a tensor; StoreError where torch cannot hold it."""
    if name not in PAIRS:
        return shape
    if not shape or shape[-1] % 2:
        raise StoreError(f"torch holds {name} tensors as pairs along their last dimension, got {list(shape)}")
    return (*shape[:-1], shape[-1] // 2)
