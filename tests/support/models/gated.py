"""Models that wait until a file is there: one while it is built, one while it runs."""

from __future__ import annotations

import time
from pathlib import Path

from torch import Tensor, nn

from serving_adapter.models.model import Model
from serving_adapter.models.synthetic import noop
from serving_adapter.tensors import TensorSpec

POLL_S = 0.01
WAITS = 7.0  # an item that begins with it is held


def gated(gate: str) -> Model:
    _wait_for(gate)
    return noop()


class Held(nn.Module):
    def __init__(self, gate: str) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        if (x[:, 0] == WAITS).any():
            _wait_for(self.gate)
        return x


def held(gate: str) -> Model:
    """Answers its input."""
    return Model(Held(gate), (TensorSpec("x", "FP32", (16,)),), ("y",))


class Numbered(Held):
    def __init__(self, gate: str) -> None:
        super().__init__(gate)
        self.batches = 0

    def forward(self, x: Tensor) -> Tensor:
        self.batches += 1
        return super().forward(x).new_full((len(x), 1), self.batches)


def numbered(gate: str) -> Model:
    """Answers how many batches its worker has run."""
    return Model(Numbered(gate), (TensorSpec("x", "FP32", (16,)),), ("number",))


def _wait_for(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(POLL_S)
