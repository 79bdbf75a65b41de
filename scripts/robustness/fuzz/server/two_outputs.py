"""A model whose right answer can be told of every request, bit by bit: three inputs, two outputs.

| tensor | datatype, shape | meaning |
|---|---|---|
| x | FP32 [4] | numbers |
| n | INT32 [-1] | at most 64 whole numbers; zeros are padding |
| double | BOOL [1] | whether x counts twice |
| shifted | FP32 [4] | x or 2 x, plus the sum of n |
| length | INT64 [1] | how many of n are not zero |
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec

NAME = "two_outputs"
REFERENCE = f"scripts.robustness.fuzz.server.two_outputs:{NAME}"
INPUTS = (
    TensorSpec("x", "FP32", (4,)),
    TensorSpec("n", "INT32", (-1,), pad_value=0, max_size=64),
    TensorSpec("double", "BOOL", (1,)),
)
OUTPUTS = ("shifted", "length")


class TwoOutputs(nn.Module):
    def forward(self, x: Tensor, n: Tensor, double: Tensor) -> tuple[Tensor, Tensor]:
        total = n.sum(dim=1, keepdim=True).to(torch.float32)
        return torch.where(double, 2 * x, x) + total, (n != 0).sum(dim=1, keepdim=True)


def two_outputs() -> Model:
    return Model(TwoOutputs(), INPUTS, OUTPUTS)
