"""A model whose answers are as large as a request says."""

from torch import nn

from serving_adapter.models.model import Model
from serving_adapter.tensors import TensorSpec

PER_MIB = 1 << 18  # FP32 numbers


class Large(nn.Module):
    """For rows of (MiB, filling): `filled` with so many of it, but one for 0 MiB, and `mib`."""

    def forward(self, x):
        numbers = max(1, int(x[:, 0].max()) * PER_MIB)
        return {"filled": x[:, 1:].expand(-1, numbers), "mib": x[:, :1]}


def large():
    return Model(Large(), (TensorSpec("x", "FP32", (2,)),))


WIDE = 4 * PER_MIB


def wide():
    """Linear, so that it is its own parity model: it answers the 4 MiB that it is given."""
    return Model(nn.Identity(), (TensorSpec("x", "FP32", (WIDE,)),))
