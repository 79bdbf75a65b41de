"""The header of a safetensors file is read as the library wrote it, or refused with one sentence."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_adapter.model_store.weights_file import (
    FORMATS,
    ITEM_BITS,
    MAX_HEADER_BYTES,
    header_reader,
    read_safetensors_header,
)

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}
OF_PARTS_OF_BYTES = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype = draw(st.sampled_from(list(DTYPES)))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    values = np.random.default_rng(draw(st.integers(0, 9))).integers(0, 2, int(np.prod(shape, dtype=int)))
    return torch.tensor(values).reshape(shape).to(dtype)


models = st.dictionaries(st.text(min_size=1, max_size=8).filter(lambda n: n != "__metadata__"), tensors())
metadata = st.none() | st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)


class OneByteAtATime(io.BytesIO):
    """A stream that gives less than it is asked for, as sockets do."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(1, size or 0))


@settings(deadline=None, max_examples=200)
@given(models, metadata, st.booleans())
def test_what_the_library_saves_is_found_where_it_lies(model, about, short_reads):
    data = safetensors.torch.save(model, about if model else None)  # the library writes no JSON of neither
    stream = OneByteAtATime(data) if short_reads else io.BytesIO(data)
    header = read_safetensors_header(stream)
    assert {t.name: (t.dtype, t.shape) for t in header.tensors} == {
        name: (DTYPES[tensor.dtype], tuple(tensor.shape)) for name, tensor in model.items()
    }
    assert data.startswith(header.raw)
    assert len(header.raw) + header.data_bytes == len(data)
    assert stream.tell() == len(header.raw)
    for tensor in header.tensors:
        start = len(header.raw) + tensor.offset_bytes
        expected = bytes(model[tensor.name].untyped_storage())
        assert data[start : start + tensor.size_bytes] == expected


def test_every_size_is_the_librarys():
    sizes = {name: 8 * dtype.itemsize for dtype, name in DTYPES.items()}
    assert sizes | OF_PARTS_OF_BYTES == ITEM_BITS


def test_a_type_of_parts_of_bytes_fits_whole_bytes():
    for dtype, count, size_bytes in (("F4", 8, 4), ("F6_E2M3", 4, 3)):
        header = read_safetensors_header(
            file_of({"x": entry(dtype=dtype, shape=[count], data_offsets=[0, size_bytes])})
        )
        assert header.data_bytes == size_bytes
        too_many = entry(dtype=dtype, shape=[count + 1], data_offsets=[0, size_bytes])
        assert "tensor 'x'" in sentence_about(file_of({"x": too_many}))


def test_a_type_that_nobody_knows_yet_is_as_long_as_its_entry_says():
    header = read_safetensors_header(
        file_of({"x": entry(dtype="F2_NEW", shape=[4], data_offsets=[0, 1]), "y": entry(data_offsets=[1, 9])})
    )
    assert [(t.dtype, t.size_bytes) for t in header.tensors] == [("F2_NEW", 1), ("F32", 8)]
    assert "tensor 'x'" in sentence_about(file_of({"x": entry(dtype="F2_NEW", data_offsets=[8, 0])}))


def test_a_file_must_be_as_long_as_its_header_tells():
    header = read_safetensors_header(file_of({"x": entry()}))
    whole = len(header.raw) + 8
    header.check_size(whole)
    for size_bytes, said in ((whole - 1, "ends within its tensors"), (whole + 1, "goes on behind")):
        with pytest.raises(ValueError, match=said):
            header.check_size(size_bytes)


def file_of(header: object) -> io.BytesIO:
    """A file without tensors' bytes, which the header's reader does not look at."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return io.BytesIO(len(text).to_bytes(8, "little") + text)


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in entry().items() if k != key}


def sentence_about(stream: Any) -> str:
    """What is said of a malformed file; never a subclass of ValueError with a text of its own."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the callers look at the text
        read_safetensors_header(stream)
    assert type(refused.value) is ValueError
    sentence = str(refused.value)
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ends after 0 of 8 bytes"),
        (b"\x10\x00\x00", "ends after 3 of 8 bytes"),
        ((100).to_bytes(8, "little") + b'{"x":', "ends after 5 of 100 bytes"),
        ((0).to_bytes(8, "little"), "its header would have 0 bytes"),
        ((1).to_bytes(8, "little") + b"1", "its header would have 1 bytes"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", f"would have {MAX_HEADER_BYTES + 1} bytes"),
        (b"\xff" * 8, f"would have {2**64 - 1} bytes"),
        (b"\x80\x04\x95PK\x03\x04" + b"\x00" * 100, "it is no safetensors file"),  # a pickle
    ],
)
def test_a_file_that_is_cut_off_or_no_safetensors_is_refused(data, said):
    assert said in sentence_about(io.BytesIO(data))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"not JSON at all", "its header is no JSON"),
        (b'{"x": ', "its header is no JSON"),
        (b'{"\xff\xfe": 1}', "its header is no JSON"),
        (b"9" * 5000, "its header is no JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"x":' * 100_000, "nested too deeply"),
        ([], "no JSON object"),
        (17, "no JSON object"),
        (b'"text"', "no JSON object"),
        (b"null", "no JSON object"),
    ],
)
def test_a_header_that_is_no_json_object_is_refused(header, said):
    assert said in sentence_about(file_of(header))


def test_a_name_that_stands_there_twice_is_refused():
    once = json.dumps(entry())
    assert "'x' stands there twice" in sentence_about(file_of(f'{{"x": {once}, "x": {once}}}'.encode()))
    twice = b'{"x": {"dtype": "F32", "dtype": "I32", "shape": [2], "data_offsets": [0, 8]}}'
    assert "'dtype' stands there twice" in sentence_about(file_of(twice))


@pytest.mark.parametrize(
    "of_x",
    [
        None,
        7,
        "F32",
        [],
        {},
        without("dtype"),
        without("shape"),
        without("data_offsets"),
        entry(dtype=""),
        entry(dtype="f32"),
        entry(dtype="F" * 100),
        entry(dtype=None),
        entry(dtype=["F32"]),
        entry(data_offsets=None),
        entry(data_offsets=[0]),
        entry(data_offsets=[0, 8, 16]),
        entry(data_offsets=8),
    ],
    ids=json.dumps,
)
def test_an_entry_that_cannot_be_read_is_refused_by_the_tensors_name(of_x):
    assert "the header's entry for tensor 'x' cannot be read" in sentence_about(file_of({"x": of_x}))


@pytest.mark.parametrize(
    "of_x",
    [
        entry(shape=None),
        entry(shape=2),
        entry(shape=[None]),
        entry(shape=[-2]),
        entry(shape=[-2, -1]),
        entry(shape=[2.0]),
        entry(shape=["2"]),
        entry(shape=[[2]]),
        entry(shape=[True, 2]),
        entry(shape=[3]),
        entry(shape=[2, 2]),
        entry(shape=[]),
        entry(shape=[2**70]),
        entry(shape=[2**40, 2**40]),
        entry(dtype="F64"),
        entry(data_offsets=[-8, 0]),
        entry(data_offsets=[8, 0]),
        entry(data_offsets=[0.0, 8.0]),
        entry(data_offsets=["0", "8"]),
        entry(data_offsets=[False, 8]),
        entry(shape=[0], data_offsets=[0, 8]),
    ],
    ids=json.dumps,
)
def test_a_shape_that_does_not_fit_its_bytes_is_refused_by_the_tensors_name(of_x):
    assert "tensor 'x'" in sentence_about(file_of({"x": of_x}))


@pytest.mark.parametrize("shape", ["", {}], ids=json.dumps)
def test_a_shape_that_is_no_list_is_refused(shape):
    assert "tensor 'x'" in sentence_about(file_of({"x": entry(shape=shape, data_offsets=[0, 4])}))


@pytest.mark.parametrize(
    "shape",
    [
        [1.5, 10**400],  # no float is that large
        ["a", 10**15],  # a text repeated so often would fill the memory
        [[0], 10**15],
    ],
    ids=["float", "text", "list"],
)
def test_sizes_of_the_wrong_type_are_never_multiplied(shape):
    assert "tensor 'x'" in sentence_about(file_of({"x": entry(shape=shape)}))


def test_the_sentence_stays_short_however_much_the_header_says():
    many = sentence_about(file_of({"x": entry(shape=[2] * 10_000)}))
    long_name = sentence_about(file_of({"x" * 10_000: entry(dtype="f31")}))
    assert max(len(many), len(long_name)) < 1000


def test_tensors_whose_bytes_overlap_or_leave_a_gap_are_refused():
    a = entry()
    for begin in (0, 4, 7, 9, 16):
        b = entry(data_offsets=[begin, begin + 8])
        assert "'b' overlap others or leave a gap" in sentence_about(file_of({"a": a, "b": b}))
    assert "overlap others or leave a gap" in sentence_about(file_of({"a": entry(data_offsets=[8, 16])}))


def test_empty_tensors_may_lie_anywhere_between_others():
    empty = entry(shape=[0, 3], data_offsets=[8, 8])
    header = read_safetensors_header(
        file_of({"b": entry(data_offsets=[8, 16]), "empty": empty, "a": entry()})
    )
    assert [tensor.name for tensor in header.tensors] == ["a", "empty", "b"]
    assert header.data_bytes == 16
    assert "leave a gap" in sentence_about(
        file_of({"a": entry(), "empty": entry(shape=[0], data_offsets=[4, 4])})
    )


def test_metadata_is_no_tensor():
    header = read_safetensors_header(file_of({"__metadata__": {"format": "pt"}, "x": entry()}))
    assert [tensor.name for tensor in header.tensors] == ["x"]


def test_a_model_without_tensors_is_a_model():
    assert read_safetensors_header(file_of({})).tensors == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=60).map(file_of)
    | st.dictionaries(
        st.text(max_size=2),
        st.fixed_dictionaries(
            {"dtype": st.sampled_from(["F32", "U8"]) | json_values, "shape": json_values}
        ).flatmap(lambda e: json_values.map(lambda offsets: e | {"data_offsets": offsets})),
        max_size=2,
    ).map(file_of)
)
def test_whatever_stands_there_the_reader_says_value_error_or_what_adds_up(stream):
    try:
        header = read_safetensors_header(stream)
    except ValueError:
        return
    assert header.data_bytes == sum(tensor.size_bytes for tensor in header.tensors)
    assert all(type(size) is int and size >= 0 for tensor in header.tensors for size in tensor.shape)


def test_a_namespace_is_a_format_and_pickle_is_none():
    assert header_reader("safetensors") is read_safetensors_header
    assert set(FORMATS) == {"safetensors"}
    for unknown in ("pickle", "torch", ""):
        with pytest.raises(ValueError, match="unknown namespace"):
            header_reader(unknown)
