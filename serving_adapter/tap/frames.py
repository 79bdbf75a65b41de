"""The frames of HTTP/2 (RFC 9113, section 4) in a stream of bytes that is read along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
KEPT_BYTES = 1 << 14
"""Of a frame's payload. What is longer is data, of which the beginning is enough."""

DATA, HEADERS, RST_STREAM, SETTINGS, CONTINUATION = 0x0, 0x1, 0x3, 0x4, 0x9
END_STREAM, END_HEADERS, PADDED, PRIORITY = 0x1, 0x4, 0x8, 0x20
MAX_BLOCK_BYTES = 1 << 18


class NotHttp2(Exception):
    """The bytes are no frames; the text says why."""


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes  # its first `KEPT_BYTES`; of headers all of it


class FrameReader:
    """Finds the frames in bytes that come in any parts; it holds one frame's beginning at most."""

    def __init__(self, preface: bytes = b"") -> None:
        self._preface = preface  # that a client begins with
        self._held = bytearray()
        self._skip = 0  # bytes of the present frame that are not kept

    def read(self, data: bytes) -> Iterator[Frame]:
        """The frames that these bytes complete; NotHttp2 where they cannot be such."""
        if self._skip:
            passed = min(self._skip, len(data))
            self._skip -= passed
            data = data[passed:]
        self._held += data
        if self._preface and not self._has_preface():
            return
        at = 0
        held = self._held
        while len(held) - at >= HEAD_BYTES:
            length = int.from_bytes(held[at : at + 3])
            kind, flags = held[at + 3], held[at + 4]
            stream = int.from_bytes(held[at + 5 : at + HEAD_BYTES]) & 0x7FFF_FFFF
            kept = length if kind in (HEADERS, CONTINUATION) else min(length, KEPT_BYTES)
            if kept > MAX_BLOCK_BYTES:
                raise NotHttp2(f"a frame of {length} bytes")
            start = at + HEAD_BYTES
            if len(held) < start + kept:
                break
            yield Frame(kind, flags, stream, bytes(held[start : start + kept]))
            at = start + length
        self._skip = max(0, at - len(held))
        del held[: min(at, len(held))]

    def _has_preface(self) -> bool:
        if len(self._held) < len(self._preface):
            if not self._preface.startswith(self._held):
                raise NotHttp2(f"it begins {bytes(self._held[:24])!r}")
            return False
        if not self._held.startswith(self._preface):
            raise NotHttp2(f"it begins {bytes(self._held[:24])!r}")
        del self._held[: len(self._preface)]
        self._preface = b""
        return True


def content(frame: Frame) -> bytes:
    """The payload of data or headers without padding and priority (sections 6.1 and 6.2)."""
    payload = frame.payload
    if frame.flags & PADDED:
        if not payload:
            raise NotHttp2("a padded frame without padding")
        payload = payload[1 : len(payload) - payload[0]] if frame.kind == HEADERS else payload[1:]
    if frame.kind == HEADERS and frame.flags & PRIORITY:
        payload = payload[5:]
    return payload
