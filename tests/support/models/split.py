"""A model with a plan for tensor parallelism that tells its part's size, and fails as it is told."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from serving_adapter.models.model import Model
from serving_adapter.models.tensor_parallelism import TensorParallelism
from serving_adapter.tensors import TensorSpec

UNITS = 6
FAILS_EVERYWHERE, FAILS_AT_THE_SECOND, STOPS_THE_SECOND = 201.0, 202.0, 203.0  # an item that begins with it
SECOND = 1


class Told(nn.Module):
    """Answers `sum`, as many times its input as there are units, and `units`, how many of them are here."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, UNITS, bias=False)
        self.outer = nn.Linear(UNITS, 16, bias=False)
        nn.init.ones_(self.inner.weight)
        nn.init.ones_(self.outer.weight)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        firsts = x[:, 0].tolist()
        if FAILS_EVERYWHERE in firsts:
            raise ValueError("no node can do this")
        is_second = dist.is_initialized() and dist.get_rank() == SECOND
        if FAILS_AT_THE_SECOND in firsts and is_second:
            raise MemoryError("there is no room for it here")
        if STOPS_THE_SECOND in firsts and is_second:
            os.kill(os.getpid(), signal.SIGSTOP)
        inner = self.inner(x / 16)
        return {"sum": self.outer(inner), "units": torch.full((len(x), 1), float(inner.shape[1]))}


def told() -> Model:
    return Model(
        Told(), (TensorSpec("x", "FP32", (16,)),), tensor_parallelism=TensorParallelism(_styles, parts=UNITS)
    )


def _styles():
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {"inner": ColwiseParallel(), "outer": RowwiseParallel()}
