"""Calls read along from their frames, as no stock server sends them."""

from __future__ import annotations

from hpack import Encoder
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.tap.calls import MODEL_INFER, Calls
from serving_adapter.tap.frames import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE
from serving_adapter.tap.tally import ClientTally


def frame(kind: int, flags: int, payload: bytes, stream: int = 1) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def asking(model: str) -> bytes:
    """The bytes of a client that asks a model on its first stream."""
    message = pb.ModelInferRequest(model_name=model).SerializeToString()
    path = Encoder().encode([(b":path", MODEL_INFER)])
    body = b"\0" + len(message).to_bytes(4) + message
    return PREFACE + frame(HEADERS, END_HEADERS, path) + frame(DATA, END_STREAM, body)


def test_an_answer_that_ends_without_a_status_is_over() -> None:
    tally = ClientTally()
    calls = Calls(tally, lambda: 0.0)
    calls.asked(asking("noop"))
    assert tally.under_way["noop"] == 1
    calls.answered(frame(HEADERS, END_HEADERS, Encoder().encode([(b":status", b"200")])))
    calls.answered(frame(DATA, 0, b"half"))
    assert tally.under_way["noop"] == 1
    calls.answered(frame(DATA, END_STREAM, b"half"))
    assert tally.under_way["noop"] == 0
    assert tally.ended["noop"] == {"UNKNOWN": 1}
