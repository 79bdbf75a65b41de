"""What a worker prints of a batch that failed may hold what a client sent."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from serving_adapter.models.model import Model
from serving_adapter.server.workers.arena import Arena, place
from serving_adapter.server.workers.messages import BatchError, RunBatch
from serving_adapter.server.workers.worker import BatchRunner
from serving_adapter.tensors import TensorSpec

RULES_THE_SCREEN = "\x1b[2J\x1b]0;owned\x07"


class Repeats(nn.Module):
    """Fails, and says by what, as a model does that names a word it does not know."""

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"unknown: {RULES_THE_SCREEN}")


def test_a_traceback_does_not_rule_the_screen_of_who_reads_the_log(capsys: pytest.CaptureFixture[str]):
    model = Model(Repeats(), (TensorSpec("x", "FP32", (1,)),))
    inputs, outputs = Arena.create("inputs"), Arena.create("outputs")
    runner = BatchRunner([model], (), inputs, outputs, "cpu")
    placed, needed_bytes = place([("x", "FP32", (1, 1), 4)])
    inputs.ensure_for_batch(needed_bytes)
    order = RunBatch(0, placed, inputs.capacity_bytes, torch.get_num_threads())
    assert isinstance(runner.run(order), BatchError)
    printed = capsys.readouterr().err
    assert "ValueError: unknown: \ufffd[2J" in printed
    assert not set(RULES_THE_SCREEN[0] + RULES_THE_SCREEN[-1]) & set(printed)
    inputs.close()
    outputs.close()
