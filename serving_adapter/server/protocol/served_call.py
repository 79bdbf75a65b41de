"""A call that gRPC does not end by itself, as the service sees it: over HTTP, or one request of a stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import grpc

from serving_adapter.server.protocol.refusals import Refused


class ServedCall:
    """What the service asks of a call beside where it came from: to be refused, and to tell of its end."""

    def __init__(self) -> None:
        self._ended: list[Callable[[object], None]] = []

    def add_done_callback(self, hear: Callable[[object], None]) -> None:
        """`hear` is told when the answer has left, or nobody waits for it."""
        self._ended.append(hear)

    async def abort(self, code: grpc.StatusCode, sentence: str) -> NoReturn:
        raise Refused(code, sentence)

    def end(self) -> None:
        for hear in self._ended:
            hear(self)
