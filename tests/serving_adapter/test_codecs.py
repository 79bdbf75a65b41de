"""One contract for all data types: what a client sends, a batch holds and a model takes is the same."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from serving_adapter.codecs import BYTES, CODECS, Codec, Part

EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


def values_of(codec: Codec, shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    if codec.name == BYTES:
        values = np.array([b"x" * i for i in range(count)], object)
    else:
        values = np.arange(count) % 2 == 1 if codec.kind == "b" else np.arange(count)
    return values.reshape(shape)


def stacked(codec: Codec, parts: Sequence[Part], shape: tuple[int, ...], pad: Any) -> memoryview:
    memory = memoryview(bytearray(codec.batch_bytes(shape, parts)))
    codec.stack(parts, memory, shape, codec.filling(pad))
    return memory


@EACH
def test_a_request_goes_through_a_batch_and_a_model_unchanged(codec: Codec) -> None:
    shapes = [(1, 3), (2, 3)]
    parts = [(codec.packed(values_of(codec, shape)), shape) for shape in shapes]
    for data, shape in parts:
        codec.check(data, shape)
    memory = stacked(codec, parts, (3, 3), pad=None)
    array = codec.array(memory, (3, 3))
    model_takes = codec.tensor(array)
    written = memoryview(bytearray(codec.output_bytes(model_takes)))
    codec.put(model_takes, written)
    outputs = codec.array(written, (3, 3))
    assert codec.cut_bytes(outputs[1:]) == len(parts[1][0])
    assert bytes(codec.cut(outputs, 0, 1)) == parts[0][0]
    assert bytes(codec.cut(outputs, 1, 2)) == parts[1][0]


@EACH
def test_what_a_document_says_is_what_an_answer_tells(codec: Codec) -> None:
    given = ["a", "", "Grüße"] if codec.name == BYTES else [True, False] if codec.kind == "b" else [0, 1, 2]
    told = codec.told(codec.packed(codec.listed(given)))
    assert list(told) == given


@EACH
def test_bytes_that_are_no_tensor_of_the_shape_are_refused(codec: Codec) -> None:
    data = codec.packed(values_of(codec, (2, 2)))
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(ValueError, match="bytes"):
            codec.check(wrong, (2, 2))


@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.holds(1)])
def test_rows_of_other_lengths_are_padded_at_their_ends(name: str) -> None:
    codec = CODECS[name]
    parts = [(codec.packed(values_of(codec, shape)), shape) for shape in [(1, 1), (1, 3)]]
    told = codec.told(stacked(codec, parts, (2, 3), pad=1))
    assert told.tolist() == [0, 1, 1, *codec.told(parts[1][0]).tolist()]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("INT8", [128], "a value does not fit INT8"),
        ("FP16", [1e5], "a value does not fit FP16"),
        ("FP32", [-1e39], "a value does not fit FP32"),
        ("BF16", [1e39], "a value does not fit BF16"),
        ("INT64", [0.5], "INT64 takes whole numbers"),
        ("BOOL", [1], "BOOL takes true and false"),
        ("BF16", ["a"], "BF16 takes numbers"),
        ("BYTES", [3], "BYTES takes strings"),
    ],
)
def test_values_of_another_type_are_refused(name: str, values: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        CODECS[name].packed(CODECS[name].listed(values))


def test_a_long_string_among_numbers_takes_no_room_for_each_of_them() -> None:
    values = [*range(1000), "x" * (1 << 16)]
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="FP32 takes numbers, got str"):
            CODECS["FP32"].listed([values, values])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_any_byte_but_zero_is_true() -> None:
    assert CODECS["BOOL"].received(b"\x00\x01\xff", (3,)).tolist() == [False, True, True]


def test_the_greatest_numbers_of_each_kind_can_be_padded_with() -> None:
    assert CODECS["INT8"].holds(127)
    assert not CODECS["INT8"].holds(128)
    assert CODECS["BF16"].filling(-1.0) == 0xBF80
    assert not CODECS["BYTES"].holds(0)
