"""What a tap makes of a call that its client gives up: too late, or for a reason of its own."""

from __future__ import annotations

import struct

import pytest
from hpack import Encoder

from serving_adapter.tap.calls import MODEL_INFER, Calls
from serving_adapter.tap.frames import END_HEADERS, HEADERS, PREFACE, RST_STREAM
from serving_adapter.tap.tally import UNKNOWN, ClientTally


def wire(kind: int, flags: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, 1) + payload


@pytest.mark.parametrize(
    ("timeout", "waited_s", "status"),
    [
        ("100m", 0.1, "DEADLINE_EXCEEDED"),
        ("100m", 0.095, "DEADLINE_EXCEEDED"),  # its first byte took a while to come here
        ("100m", 0.05, "CANCELLED"),
        ("2S", 0.1, "CANCELLED"),
        (None, 60.0, "CANCELLED"),
    ],
)
def test_a_client_that_gives_up_is_late_if_its_time_is_nearly_over(
    timeout: str | None, waited_s: float, status: str
) -> None:
    now_s = 0.0
    tally = ClientTally()
    calls = Calls(tally, lambda: now_s)
    headers = [(":path", MODEL_INFER.decode())]
    headers += [] if timeout is None else [("grpc-timeout", timeout)]
    calls.asked(PREFACE + wire(HEADERS, END_HEADERS, Encoder().encode(headers)))
    now_s = waited_s
    calls.asked(wire(RST_STREAM, 0, bytes(4)))
    assert tally.ended[UNKNOWN] == {status: 1}
