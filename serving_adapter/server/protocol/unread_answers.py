"""Bounds the answers that clients asked for and do not read: they stay in memory as long as these like.

When there are too many, connections that hold their equal share get no further ones. So whoever reads what it
asked for is not refused it because others do not. Connections cost little, so twice the bytes are the end.
"""

from __future__ import annotations

from collections import Counter

import grpc

from serving_adapter.server.requests import Overloaded

SMALL_BYTES = 64 << 10  # the number of calls bounds smaller ones
COPIES = 2  # the message, and its bytes on their way


class UnreadAnswers:
    """Counts the large answers of all models, from when they are there until their calls are over."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()  # by connection

    def hold(self, context: grpc.aio.ServicerContext, answer_bytes: int) -> None:
        """Counts an answer to a call that is not over; Overloaded where there are too many."""
        if answer_bytes <= SMALL_BYTES:
            return
        peer, held_bytes = context.peer(), COPIES * answer_bytes
        share_bytes = self._most_bytes // max(1, len(self._bytes_of))
        over_bytes = self._bytes + held_bytes - self._most_bytes
        has_share = self._bytes_of[peer] >= share_bytes
        if over_bytes > 0 and (has_share or (self._bytes and over_bytes > self._most_bytes)):
            raise Overloaded(
                f"answers that clients have not read yet take {self._bytes} of {self._most_bytes} bytes, and "
                f"this one {held_bytes} more; read what you asked for before you ask for more",
            )
        self._bytes += held_bytes
        self._bytes_of[peer] += held_bytes

        def over(_: object) -> None:
            self._bytes -= held_bytes
            self._bytes_of[peer] -= held_bytes
            if not self._bytes_of[peer]:
                del self._bytes_of[peer]

        context.add_done_callback(over)
