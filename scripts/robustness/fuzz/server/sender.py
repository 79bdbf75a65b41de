"""Sends calls as raw bytes, many at once, and judges each answer."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc

from scripts.robustness.fuzz.calls import (
    BOUND_S,
    CODES_OF_IMPATIENCE,
    CODES_OF_REFUSALS,
    INFER,
    Fate,
    FuzzCall,
    RestCall,
)
from scripts.robustness.fuzz.findings import Findings, no_sentence
from scripts.robustness.fuzz.server.oracle import AnswerOracle
from scripts.robustness.fuzz.server.rest_sender import RestSender

CHANNELS = 4
AT_ONCE = 64
REMEMBERED = 20_000  # calls, to tell which of them a slow callback belonged to
NO_ANSWER = "hangs: no answer within the bound"


class Sent(NamedTuple):
    number: int
    call: FuzzCall
    began_ns: int
    ended_ns: int


class Sender:
    """A few connections to both doors of one server; made within an event loop."""

    def __init__(self, address: str, rest_url: str, oracle: AnswerOracle, findings: Findings) -> None:
        self._oracle, self._findings = oracle, findings
        self._rest = RestSender(rest_url)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self._channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(CHANNELS)]
        self._methods: dict[tuple[int, str], Any] = {}
        self.codes: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.right_answers = 0
        self.slowest_s = 0.0
        self.sent: deque[Sent] = deque(maxlen=REMEMBERED)

    async def send_all(self, numbered: Iterator[tuple[int, FuzzCall]], at_once: int = AT_ONCE) -> None:
        """Sends calls until there are no more, so many at once."""

        async def line(i: int) -> None:
            for number, call in numbered:
                await self.send(number, call, i % CHANNELS)

        await asyncio.gather(*(line(i) for i in range(at_once)))

    async def send(self, number: int, call: FuzzCall, channel: int = 0) -> None:
        began_ns = time.monotonic_ns()
        code, details, answer = await self._answer(call, channel)
        ended_ns = time.monotonic_ns()
        self.sent.append(Sent(number, call, began_ns, ended_ns))
        self.codes[code.name] += 1
        self.kinds[call.kind] += 1
        self.slowest_s = max(self.slowest_s, (ended_ns - began_ns) * 1e-9)
        hung = code is grpc.StatusCode.DEADLINE_EXCEEDED and (ended_ns - began_ns) * 1e-9 > 0.9 * BOUND_S
        what = NO_ANSWER if hung else self._objection(call, code, details, answer)
        if what is not None:
            self._findings.add(what, f"{code.name} {details or ''}", call, number)

    async def raw(self, method: str, data: bytes, metadata: Any = ()) -> bytes:
        """One answer that must come; AioRpcError otherwise."""
        return bytes(await self._method(0, method)(data, timeout=BOUND_S, metadata=metadata or None))

    async def close(self) -> None:
        await self._rest.close()
        for channel in self._channels:
            await channel.close()

    def _method(self, channel: int, method: str) -> Any:
        key = (channel, method)
        if key not in self._methods:
            self._methods[key] = self._channels[channel].unary_unary(method)
        return self._methods[key]

    async def _answer(self, call: FuzzCall, channel: int) -> tuple[grpc.StatusCode, str | None, bytes]:
        if isinstance(call, RestCall):
            return await self._rest.answer(call)
        sending = self._method(channel, call.method)(
            call.data,
            timeout=call.deadline_s or BOUND_S,
            metadata=call.metadata or None,
            compression=grpc.Compression.Gzip if call.compressed else None,
        )
        if call.cancelled_after_s is not None:
            asyncio.get_running_loop().call_later(call.cancelled_after_s, sending.cancel)
        try:
            return grpc.StatusCode.OK, None, await sending
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details(), b""
        except asyncio.CancelledError:
            if not sending.cancelled():
                raise
            return grpc.StatusCode.CANCELLED, "the client gave up", b""

    def _objection(
        self, call: FuzzCall, code: grpc.StatusCode, details: str | None, answer: bytes
    ) -> str | None:
        if code is grpc.StatusCode.OK:
            return self._wrong_answer(call, answer)
        if code in CODES_OF_IMPATIENCE:
            impatient = call.deadline_s is not None or call.cancelled_after_s is not None
            return None if impatient else no_sentence(details)  # a request may have a time-out of its own
        if call.fate is Fate.ANSWERED:
            return "refused although it is well-formed"
        if code not in CODES_OF_REFUSALS:
            return f"fails with {code.name}"
        return no_sentence(details)

    def _wrong_answer(self, call: FuzzCall, answer: bytes) -> str | None:
        if call.fate is Fate.REFUSED:
            return "answered although it must be refused"
        if call.method != INFER:
            return None
        objection = self._oracle.objection(call.data, answer)
        self.right_answers += objection is None
        return objection


def numbered_calls(make: Callable[[int], FuzzCall], first: int, end: int) -> Iterator[tuple[int, FuzzCall]]:
    for number in range(first, end):
        yield number, make(number)
