"""Sentences that hold others' words: of a length that a gRPC status can carry, and harmless to a screen."""

from __future__ import annotations

MAX_SENTENCE_BYTES = 2000  # a status travels in headers of 8 KiB, in which a byte may take three


def bounded(sentence: str) -> str:
    """A sentence that fits into a status, whatever it repeats; half a character is told as `?`."""
    data = sentence.encode(errors="replace")
    if len(data) <= MAX_SENTENCE_BYTES:
        return data.decode()
    return data[:MAX_SENTENCE_BYTES].decode(errors="ignore") + " ..."


def printable(text: str) -> str:
    """The text without characters that move the cursor or colour the screen: others may have written it."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
