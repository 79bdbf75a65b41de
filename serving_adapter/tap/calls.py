"""The calls of one connection, read along from the frames of both directions.

A call is timed from the first frame of its request to the frame that ends its answer. What a client gives up
is told from what it waited too long for by the time that the request itself allowed (`grpc-timeout`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from hpack import Decoder, HPACKError

from serving_adapter.tap.frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_BLOCK_BYTES,
    PREFACE,
    RST_STREAM,
    Frame,
    FrameReader,
    NotHttp2,
    content,
)
from serving_adapter.tap.tally import OK, UNKNOWN, ClientTally

MODEL_INFER = b"/inference.GRPCInferenceService/ModelInfer"
STATUS_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}
UNITS_S = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
MAX_TABLE_BYTES = 1 << 16  # of compressed headers
MESSAGE_HEAD_BYTES = 5  # before each gRPC message: whether it is compressed, and its length
MAX_NAME_BYTES = 256
NEARLY = 0.8
"""The share of its time after which a client that gives up is late. A client with 10 ms whose request takes
1 or 2 ms to come here has waited for 8 or 9 of them here; one that leaves earlier had another reason."""


@dataclass
class _Call:
    begun_s: float
    timeout_s: float | None
    model: str | None = None  # once its message has begun
    head: bytearray = field(default_factory=bytearray)


class _Direction:
    """The frames of one direction, and the state of its compressed headers."""

    def __init__(self, preface: bytes = b"") -> None:
        self.frames = FrameReader(preface)
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = MAX_TABLE_BYTES
        self._block = bytearray()
        self._ends_stream = False

    def headers(self, frame: Frame) -> tuple[dict[bytes, bytes], bool] | None:
        """The headers that a frame completes, and whether they end their stream."""
        if frame.kind == HEADERS:
            self._block, self._ends_stream = bytearray(content(frame)), bool(frame.flags & END_STREAM)
        else:
            self._block += frame.payload
        if len(self._block) > MAX_BLOCK_BYTES:
            raise NotHttp2("headers without end")
        if not frame.flags & END_HEADERS:
            return None
        try:
            found = self._decoder.decode(bytes(self._block), raw=True)
        except (HPACKError, IndexError, ValueError) as error:
            raise NotHttp2(f"headers that cannot be read: {error}") from None
        return dict(found), self._ends_stream


class Calls:
    """What a connection asks and is answered. NotHttp2 where its bytes cannot be read along any more."""

    def __init__(self, tally: ClientTally, now_s: Callable[[], float]) -> None:
        self._tally, self._now_s = tally, now_s
        self._asking, self._answering = _Direction(PREFACE), _Direction()
        self._calls: dict[int, _Call] = {}

    def asked(self, data: bytes) -> None:
        """Bytes from the client."""
        for frame in self._asking.frames.read(data):
            if frame.kind in (HEADERS, CONTINUATION):
                found = self._asking.headers(frame)
                if found is not None and found[0].get(b":path") == MODEL_INFER:
                    timeout_s = _timeout_s(found[0].get(b"grpc-timeout"))
                    self._calls[frame.stream] = _Call(self._now_s(), timeout_s)
            elif frame.stream not in self._calls:
                continue
            elif frame.kind == DATA:
                self._take_name(self._calls[frame.stream], content(frame))
            elif frame.kind == RST_STREAM:
                self._given_up(frame.stream)

    def answered(self, data: bytes) -> None:
        """Bytes from the server."""
        for frame in self._answering.frames.read(data):
            if frame.kind in (HEADERS, CONTINUATION):
                found = self._answering.headers(frame)
                if found is not None and found[1]:
                    self._end(frame.stream, _status(found[0]))
            elif frame.kind == RST_STREAM:
                self._end(frame.stream, grpc.StatusCode.UNAVAILABLE.name)
            elif frame.kind == DATA and frame.flags & END_STREAM:
                self._end(frame.stream, grpc.StatusCode.UNKNOWN.name)  # an answer without a status

    def lost(self, status: grpc.StatusCode) -> None:
        """The connection is gone, and what it waited for with it: ended by the status that clients see."""
        for stream in list(self._calls):
            self._end(stream, status.name)

    def _take_name(self, call: _Call, data: bytes) -> None:
        if call.model is not None:
            return
        call.head += data[: MESSAGE_HEAD_BYTES + 2 + MAX_NAME_BYTES]
        name = _model_name(call.head)
        if name is not None:
            call.model = self._tally.known(name)
            self._tally.begun(call.model)

    def _given_up(self, stream: int) -> None:
        call = self._calls[stream]
        waited_s = self._now_s() - call.begun_s
        is_late = call.timeout_s is not None and waited_s >= NEARLY * call.timeout_s
        status = grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED
        self._end(stream, status.name)

    def _end(self, stream: int, status: str) -> None:
        call = self._calls.pop(stream, None)
        if call is None:
            return
        if call.model is None:
            call.model = UNKNOWN
            self._tally.begun(UNKNOWN)
        self._tally.answered(call.model, status, self._now_s() - call.begun_s, call.timeout_s)


def _status(headers: dict[bytes, bytes]) -> str:
    text = headers.get(b"grpc-status", b"")
    if text == b"0":
        return OK
    return STATUS_NAMES.get(int(text), "UNKNOWN") if text.isdigit() else "UNKNOWN"


def _timeout_s(text: bytes | None) -> float | None:
    found = None if text is None else re.fullmatch(rb"(\d{1,8})([HMSmun])", text)
    return None if found is None else int(found[1]) * UNITS_S[found[2]]


def _model_name(head: bytearray) -> str | None:
    """The first field of the message, which names the model; None where more of it must come."""
    if len(head) < MESSAGE_HEAD_BYTES + 2:
        return None
    if head[0] or head[MESSAGE_HEAD_BYTES] != 0x0A or head[MESSAGE_HEAD_BYTES + 1] > 127:
        return UNKNOWN  # compressed, or of another order of fields, or a name beyond all use
    start, length = MESSAGE_HEAD_BYTES + 2, head[MESSAGE_HEAD_BYTES + 1]
    if len(head) < start + length:
        return None
    return head[start : start + length].decode("utf-8", "replace")
