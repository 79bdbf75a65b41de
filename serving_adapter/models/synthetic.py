"""Models for tests and for measuring the server itself: `noop`, `sleep` and `burn`.

All three answer their input. `crash_on` and `hang_on` are for tests of what the server does with a bad
worker. A batch in which an item's first element is that value ends its process, or never ends.
"""

# No `from __future__ import annotations`: TorchScript reads the annotations themselves.
import os
import time

import torch
from torch import Tensor, nn

from serving_adapter.models.branches import parallel, torchscript
from serving_adapter.models.model import Model, ModelError
from serving_adapter.tensors import TensorSpec

ITEM_SIZE = 16
CRASH_EXIT_CODE = 70


def noop(crash_on: float | None = None, hang_on: float | None = None) -> Model:
    """Does nothing."""
    return _model(nn.Identity(), crash_on, hang_on)


def sleep(
    ms: float = 10.0,
    per_item_ms: float = 0.0,
    crash_on: float | None = None,
    hang_on: float | None = None,
) -> Model:
    """Takes time but no processor: `ms` a batch and `per_item_ms` for each of its items."""
    if ms < 0 or per_item_ms < 0:
        raise ModelError(f"sleep: ms and per_item_ms must not be negative, got {ms:g} and {per_item_ms:g}")
    return _model(Sleep(ms, per_item_ms), crash_on, hang_on)


def burn(
    size: int = 256,
    rounds: int = 20,
    rounds_per_item: int = 0,
    branches: int = 1,
    crash_on: float | None = None,
    hang_on: float | None = None,
) -> Model:
    """Multiplies size x size matrices: in each branch, `rounds` a batch and `rounds_per_item` an item.

    With more than one branch they run on the inter-op pool, so that `inter_op_threads` has an effect.
    """
    if min(size, branches) < 1 or min(rounds, rounds_per_item) < 0:
        raise ModelError(
            f"burn: size and branches must be at least 1, rounds and rounds_per_item at least 0, "
            f"got size={size}, branches={branches}, rounds={rounds}, rounds_per_item={rounds_per_item}"
        )
    with torchscript():
        works = [torch.jit.script(Burn(size, rounds, rounds_per_item)) for _ in range(branches)]
    module = works[0] if branches == 1 else First(parallel(works, torch.ones(1, ITEM_SIZE)))
    return _model(module, crash_on, hang_on, has_parallel_branches=branches > 1)


class Sleep(nn.Module):
    def __init__(self, ms: float, per_item_ms: float) -> None:
        super().__init__()
        self.ms, self.per_item_ms = ms, per_item_ms

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(1e-3 * (self.ms + self.per_item_ms * x.shape[0]))
        return x


class Burn(nn.Module):
    """A fixed number of products with a reflection, whose powers neither grow nor vanish."""

    reflection: Tensor

    def __init__(self, size: int, rounds: int, rounds_per_item: int) -> None:
        super().__init__()
        self.rounds, self.rounds_per_item = rounds, rounds_per_item
        self.register_buffer("reflection", torch.eye(size) - 2.0 / size)

    def forward(self, x: Tensor) -> Tensor:
        state = self.reflection
        for _ in range(self.rounds + self.rounds_per_item * x.shape[0]):
            state = torch.mm(self.reflection, state)
        return x + 0.0 * state[0, 0]  # the answer needs the work but is the input


class First(nn.Module):
    """Keeps the first answer of branches that all answer the item."""

    def __init__(self, branches: nn.Module) -> None:
        super().__init__()
        self.branches = branches

    def forward(self, x: Tensor) -> Tensor:
        return self.branches(x)[:, :ITEM_SIZE]


class Faulty(nn.Module):
    """Ends or hangs its process when an item begins with a chosen value."""

    def __init__(self, module: nn.Module, crash_on: float | None, hang_on: float | None) -> None:
        super().__init__()
        self.module, self.crash_on, self.hang_on = module, crash_on, hang_on

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, 0].tolist()
        if self.crash_on in first:
            os._exit(CRASH_EXIT_CODE)
        while self.hang_on in first:
            time.sleep(1.0)
        return self.module(x)


def _model(
    module: nn.Module, crash_on: float | None, hang_on: float | None, has_parallel_branches: bool = False
) -> Model:
    if crash_on is not None or hang_on is not None:
        module = Faulty(module, crash_on, hang_on)
    inputs = (TensorSpec("x", "FP32", (ITEM_SIZE,)),)
    return Model(module, inputs, ("y",), has_parallel_branches)
