from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.tap.frames import (
    CONTINUATION,
    DATA,
    HEADERS,
    KEPT_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    Frame,
    FrameReader,
    NotHttp2,
    content,
)


def wire(frame: Frame) -> bytes:
    head = len(frame.payload).to_bytes(3) + bytes([frame.kind, frame.flags]) + frame.stream.to_bytes(4)
    return head + frame.payload


frames = st.builds(
    Frame,
    st.sampled_from([DATA, HEADERS, CONTINUATION, 4, 6, 8]),
    st.integers(0, 255),
    st.integers(0, 2**31 - 1),
    st.one_of(st.binary(max_size=40), st.just(b"x" * (KEPT_BYTES + 7))),
)


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_frames_are_found_however_their_bytes_are_cut(sent: list[Frame], sizes: list[int]) -> None:
    data = PREFACE + b"".join(map(wire, sent))
    reader, at, turn = FrameReader(PREFACE), 0, 0
    found: list[Frame] = []
    while at < len(data):
        size = sizes[turn % len(sizes)] * (1 if turn % 3 else 500)
        found += reader.read(data[at : at + size])
        at, turn = at + size, turn + 1
    kept = [
        f if f.kind in (HEADERS, CONTINUATION) else f._replace(payload=f.payload[:KEPT_BYTES]) for f in sent
    ]
    assert found == kept


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\0\x01", b"PRI * HTTP/1"])
def test_what_is_no_http2_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(NotHttp2):
        list(FrameReader(PREFACE).read(data))


@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_a_refusal(data: bytes) -> None:
    try:
        for frame in FrameReader().read(data):
            content(frame)
    except NotHttp2:
        pass


def test_padding_and_priority_are_left_out() -> None:
    payload = b"\x02" + b"\0\0\0\0\x01" + b"block" + b"\0\0"
    assert content(Frame(HEADERS, PADDED | PRIORITY, 1, payload)) == b"block"
    assert content(Frame(DATA, PADDED, 1, b"\x01data\0"))[:4] == b"data"
