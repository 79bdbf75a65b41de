"""The body of a request as bytes, and that of an answer: bounded in bytes, in time and when unpacked."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from serving_adapter.server.rest.call import ClientLeft, HttpRefused

BODY_TIMEOUT_S = 60.0
SMALL_BYTES = 64 << 10  # to pack so many takes no time to speak of
SMALL_PACKED_BYTES = 4 << 10  # they unpack to a thousand times as many at most
LEAST_PACKED_BYTES = 1 << 10
PART_BYTES = 64 << 10  # of an answer, sent at once
PACKED = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""What zlib calls the two ways of packing that clients use."""


class Bodies:
    """Reads the bodies of all requests, which hold at most `budget_bytes` together until they are let go."""

    def __init__(self, most_bytes: int, budget_bytes: int) -> None:
        self._most_bytes, self._budget_bytes = most_bytes, budget_bytes
        self._held_bytes = 0

    @asynccontextmanager
    async def read(self, request: Request, most_bytes: int | None = None) -> AsyncIterator[bytes]:
        """The body, unpacked. HttpRefused where it is too large, too slow, or not packed as it says."""
        most_bytes = self._most_bytes if most_bytes is None else most_bytes
        packing = request.headers.get("content-encoding", "identity").strip().lower()
        if packing not in ("identity", *PACKED):
            raise HttpRefused(415, f"content-encoding must be gzip, deflate or identity, got {packing!r}")
        with self._holding() as hold:
            try:
                async with asyncio.timeout(BODY_TIMEOUT_S):
                    body = await self._received(request, most_bytes, hold)
            except TimeoutError:
                raise HttpRefused(408, f"the request did not come within {BODY_TIMEOUT_S:.0f} s") from None
            except ClientDisconnect:
                raise ClientLeft from None
            if packing != "identity":
                packed_bytes = len(body)
                body = await _unpacked_aside(body, packing, most_bytes)
                hold(len(body) - packed_bytes)  # What was packed is let go.
            yield body

    async def _received(self, request: Request, most_bytes: int, hold: Holds) -> bytes:
        parts, size_bytes = [], 0
        async for part in request.stream():
            size_bytes += len(part)
            if size_bytes > most_bytes:
                raise _too_large(most_bytes)
            hold(len(part))
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @contextmanager
    def _holding(self) -> Iterator[Holds]:
        held = Holds(self)
        try:
            yield held
        finally:
            self._held_bytes -= held.size_bytes

    def take(self, size_bytes: int) -> None:
        if self._held_bytes + size_bytes > self._budget_bytes:
            raise HttpRefused(429, "too many requests are on their way at once; send less, or later")
        self._held_bytes += size_bytes


class Holds:
    """What one request has taken of the budget."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.size_bytes = bodies, 0

    def __call__(self, size_bytes: int) -> None:
        self._bodies.take(size_bytes)
        self.size_bytes += size_bytes


async def _unpacked_aside(body: bytes, packing: str, most_bytes: int) -> bytes:
    if len(body) <= SMALL_PACKED_BYTES:
        return _unpacked(body, packing, most_bytes)
    return await asyncio.to_thread(_unpacked, body, packing, most_bytes)


def _unpacked(body: bytes, packing: str, most_bytes: int) -> bytes:
    unpacking = zlib.decompressobj(PACKED[packing])
    try:
        unpacked = unpacking.decompress(body, most_bytes + 1)
    except zlib.error as error:
        raise HttpRefused(400, f"the body is not packed by {packing} as it says: {error}") from None
    if len(unpacked) > most_bytes:
        raise _too_large(most_bytes)
    if not unpacking.eof:
        raise HttpRefused(400, f"the body, packed by {packing}, ends too soon")
    return unpacked


def _too_large(most_bytes: int) -> HttpRefused:
    return HttpRefused(
        413,
        f"the request has more than {most_bytes} bytes, the most that is taken here; send smaller requests "
        "or start the server with a larger --max-message-bytes",
    )


class AnswerInParts(Response):
    """An answer that has left when its client has read it, but for what the connection takes at once.

    Each part waits for room. A single one would stay in the connection as a whole, with the call over.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        rest = memoryview(self.body)
        while len(rest) > PART_BYTES:
            part, rest = rest[:PART_BYTES], rest[PART_BYTES:]
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": rest})


async def packed_for(request: Request, body: bytes) -> tuple[bytes, dict[str, str]]:
    """The body as the client takes it, and the header that says so."""
    if len(body) < LEAST_PACKED_BYTES:
        return body, {}
    taken = {part.split(";")[0].strip() for part in _accepted(request) if not _is_refused(part)}
    packing = next((name for name in PACKED if name in taken), None)
    if packing is None:
        return body, {}
    if len(body) <= SMALL_BYTES:
        return _packed(body, packing), {"content-encoding": packing}
    return await asyncio.to_thread(_packed, body, packing), {"content-encoding": packing}


def _accepted(request: Request) -> list[str]:
    return request.headers.get("accept-encoding", "").lower().split(",")


def _is_refused(part: str) -> bool:
    """E.g. `gzip;q=0`."""
    return part.replace(" ", "").partition(";q=")[2].strip("0.") == "" and ";q=" in part.replace(" ", "")


def _packed(body: bytes, packing: str) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, PACKED[packing])
    return packer.compress(body) + packer.flush()
