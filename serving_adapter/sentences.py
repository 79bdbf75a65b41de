"""Sentences for clients, of a length that the status of a gRPC call can carry."""

from __future__ import annotations

MAX_SENTENCE_BYTES = 2000  # a status travels in headers of 8 KiB, in which a byte may take three


def bounded(sentence: str) -> str:
    """A sentence that fits into a status, whatever it repeats; half a character is told as `?`."""
    data = sentence.encode(errors="replace")
    if len(data) <= MAX_SENTENCE_BYTES:
        return data.decode()
    return data[:MAX_SENTENCE_BYTES].decode(errors="ignore") + " ..."
