"""Weights, and the files and repositories that hold them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


def some_weights(seed: int = 0, layers: int = 3, width: int = 128) -> dict[str, torch.Tensor]:
    """Large tensors, small ones, a scalar and an empty one, of several types."""
    random = torch.Generator().manual_seed(seed)
    weights = {f"{i}.weight": torch.randn(width, width, generator=random) for i in range(layers)}
    weights |= {f"{i}.bias": torch.randn(width, generator=random) for i in range(layers)}
    weights["half"] = torch.randn(5, 3, generator=random).to(torch.bfloat16)
    weights["steps"] = torch.tensor(7)
    weights["empty"] = torch.empty(0, 3)
    return weights


def saved(weights: dict[str, torch.Tensor], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path)
    return path


def in_repository(root: Path, name: str, version: str, weights: dict[str, torch.Tensor]) -> Path:
    return saved(weights, root / name / version / "model.safetensors")


def with_header(path: Path, header: Any, data_bytes: int = 0) -> Path:
    """A file with the given header, and a hole for the tensors' bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + data_bytes)
    return path
