"""The model of the chaos: a product with a matrix that has an inverse, so that no two rows have one answer.

It is linear and its numbers are whole. So it is its own parity model for every coding group, and what is
reconstructed is exact up to a rounding.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor, nn

from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec

WIDTH = 16
REFERENCE = "scripts.robustness.chaos.checked_model:checked"
NAME = "checked"


def mixing() -> np.ndarray:
    """Lower triangular with ones on its diagonal: whole numbers, and an inverse."""
    rows, columns = np.indices((WIDTH, WIDTH))
    return np.tril((7 * rows + 3 * columns) % 11, -1) + np.eye(WIDTH)


class Mixed(nn.Module):
    """Takes some time, so that kills meet batches that run."""

    def __init__(self, ms: float) -> None:
        super().__init__()
        self.ms = ms
        self.mixing = nn.Parameter(torch.from_numpy(mixing()), requires_grad=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        time.sleep(1e-3 * self.ms)
        return x @ self.mixing, x.sum(dim=1, keepdim=True)


def checked(ms: float = 4.0) -> Model:
    """Its threads count as those of the inter-op pool too, so that every knob is one of this model."""
    inputs = (TensorSpec("x", "FP64", (WIDTH,)),)
    return Model(Mixed(ms), inputs, ("y", "sum"), has_parallel_branches=True)


def expected(x: np.ndarray) -> dict[str, np.ndarray]:
    return {"y": x @ mixing(), "sum": x.sum(axis=1, keepdims=True)}
