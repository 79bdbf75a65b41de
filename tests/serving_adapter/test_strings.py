from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from serving_adapter.strings import MAX_STRINGS, check, packed, packed_bytes, unpacked


def array_of(strings: list[bytes]) -> np.ndarray:
    array = np.empty(len(strings), object)
    array[:] = strings
    return array


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_strings_travel_as_stock_clients_send_them(strings: list[bytes]) -> None:
    array = array_of(strings)
    data = packed(array)
    assert len(data) == packed_bytes(array)
    check(data, len(strings))
    assert unpacked(data, [len(strings)]).tolist() == strings
    if strings:
        assert data == serialize_byte_tensor(array).item()
        assert deserialize_bytes_tensor(data).tolist() == strings


@given(st.binary(max_size=40), st.integers(0, 6))
def test_other_bytes_are_refused_and_never_read_beyond(data: bytes, count: int) -> None:
    try:
        check(data, count)
    except ValueError:
        return
    assert packed(unpacked(data, [count])) == data


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_STRINGS} strings"):
        check(b"", MAX_STRINGS + 1)
    with pytest.raises(ValueError, match="are not 1 strings"):
        check(struct.pack("<I", 1 << 31), 1)
    with pytest.raises(ValueError, match="BYTES takes strings, got int"):
        packed(array_of([3]))  # type: ignore[list-item]
