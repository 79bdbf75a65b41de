"""Models that take and answer strings, or BF16 numbers."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec


class Upper(nn.Module):
    def forward(self, texts):
        upper = np.array([[text.upper() for text in row] for row in texts.tolist()], object)
        return {
            "upper": upper,
            "length": torch.tensor([[len(text) for text in row] for row in texts.tolist()]),
        }


def upper():
    """Answers texts in capitals, and how long they are."""
    return Model(Upper(), (TensorSpec("text", "BYTES", (-1,)),))


class Joined(nn.Module):
    def forward(self, texts):
        return [b" ".join(row) for row in texts.tolist()]


def joined():
    """Answers a string a row, as a list."""
    return Model(Joined(), (TensorSpec("text", "BYTES", (2,)),), ("joined",))


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def doubled():
    """BF16 in and out; requests of different lengths share a batch."""
    return Model(Doubled(), (TensorSpec("x", "BF16", (-1,), pad_value=1.5),), ("y",))


def doubled_rows():
    """The same, of one size."""
    return Model(Doubled(), (TensorSpec("x", "BF16", (16,)),), ("y",))
