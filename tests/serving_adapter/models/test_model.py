"""What a model may answer, and what is said about the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from serving_adapter.models.model import MAX_COMPLAINT_BYTES, Model, ModelError, as_described, complaint
from serving_adapter.models.tensor_parallelism import TensorParallelism
from serving_adapter.tensors import TensorSpec

X = TensorSpec("x", "FP32", (4,))


class Numbered(nn.Module):
    def forward(self, x: Tensor) -> dict[int, Tensor]:
        return {1: x}


def test_the_names_of_outputs_are_text():
    with pytest.raises(ModelError, match="the names of outputs must be text, got 1"):
        Model(Numbered(), (X,)).run({"x": torch.ones(1, 4)})


def test_an_input_of_a_size_that_no_request_has_is_refused():
    with pytest.raises(ModelError, match="which no request could have"):
        Model(nn.Identity(), (TensorSpec("x", "FP32", (0, 2)),))


def test_a_plan_that_splits_nothing_is_refused():
    with pytest.raises(ModelError, match="needs 2 or more parts, got 1; give what the number of nodes must"):
        Model(nn.Identity(), (TensorSpec("x", "FP32", (1,)),), tensor_parallelism=TensorParallelism(dict, 1))


def test_outputs_come_in_the_order_of_their_description_and_may_differ_in_size():
    specs = [TensorSpec("a", "FP32", (4,)), TensorSpec("b", "INT64", (-1,))]
    outputs = as_described({"b": torch.ones(2, 9, dtype=torch.int64), "a": torch.ones(2, 5)}, specs)
    assert list(outputs) == ["a", "b"]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ModelError("the module is none"), "the module is none"),
        (KeyError("word"), "KeyError: 'word'"),
        (ValueError("one\n  two\tthree"), "ValueError: one two three"),
        (MemoryError(), "MemoryError"),
    ],
)
def test_a_complaint_is_one_line(error, text):
    assert complaint(error) == text


def test_a_long_complaint_keeps_its_beginning_and_its_end():
    text = complaint(RuntimeError("begin" + "é\ud800" * 5000 + "end"))
    assert text.startswith("RuntimeError: begin")
    assert text.endswith("end")
    assert len(text.encode()) <= MAX_COMPLAINT_BYTES + len(" ... ")
