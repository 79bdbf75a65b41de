"""A default answer is of its outputs' types, as clients read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from serving_adapter.codecs import CODECS
from serving_adapter.server.redundancy.redundant_models import default_answer
from serving_adapter.server.requests import cut, cut_bytes
from serving_adapter.tensors import TensorSpec

NUMBERS = [name for name, codec in CODECS.items() if codec.kind in "iuf"]


def answered(given: Mapping[str, np.ndarray], datatype: str, rows: int = 2) -> list[Any]:
    """What a client reads in an answer of so many rows, whose output `y` has two values a row."""
    outputs = {"y": TensorSpec("y", datatype, (2,))}
    row = default_answer(given, outputs)["y"]
    of_request = {"y": np.broadcast_to(row, (rows, *row.shape[1:]))}
    (output,) = cut(of_request, outputs, 0, rows)
    assert output.shape == (rows, 2)
    assert cut_bytes(of_request, outputs, 0, rows) == len(output.data)
    return list(CODECS[datatype].told(output.data))


@pytest.mark.parametrize("datatype", NUMBERS)
def test_the_numbers_that_were_given_are_those_that_are_read(datatype: str) -> None:
    assert answered({"y": np.array([1, 3])}, datatype) == [1, 3, 1, 3]


@pytest.mark.parametrize("datatype", ["BF16", "FP16", "FP32", "FP64"])
def test_fractions_are_kept(datatype: str) -> None:
    assert answered({"y": np.array([0.5, -2.25])}, datatype) == [0.5, -2.25, 0.5, -2.25]


@pytest.mark.parametrize("given", [np.array(["ü", ""]), np.array(["ü".encode(), b""])])
def test_strings_are_kept(given: np.ndarray) -> None:
    assert answered({"y": given}, "BYTES") == ["ü", "", "ü", ""]


@pytest.mark.parametrize("datatype", CODECS)
def test_an_output_without_a_given_row_is_empty(datatype: str) -> None:
    empty = "" if datatype == "BYTES" else 0
    assert answered({}, datatype) == [empty] * 4


@pytest.mark.parametrize(
    ("datatype", "values", "sentence"),
    [
        ("BYTES", [1.0, 2.0], "answer of 'y' does not fit: BYTES takes strings, got float"),
        ("INT8", [0.5, 1.0], "answer of 'y' does not fit: INT8 takes whole numbers"),
        ("INT8", [1, 128], "answer of 'y' does not fit: a value does not fit INT8"),
        ("FP32", ["a", "b"], "answer of 'y' does not fit: FP32 takes numbers"),
        ("FP32", [1.0], r"answer of 'y' must have the shape \[2\], got \[1\]"),
    ],
)
def test_a_row_that_is_not_of_its_output_is_refused(datatype: str, values: list[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        answered({"y": np.array(values)}, datatype)
