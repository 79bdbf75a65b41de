"""The load of a profile: a fixed number of requests is always outstanding."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from serving_adapter.load.connection import open_channels, wait_for_model
from serving_adapter.load.payloads import Payloads
from serving_adapter.target import TargetError

REQUEST_TIMEOUT_S = 120.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"


class ProfileLoad:
    """Sends requests to the model, a fixed number outstanding at a time."""

    def __init__(
        self, address: str, model: str, size: int, seed: int = 0, tls_ca: Path | None = None
    ) -> None:
        self._address, self._model, self._size, self._tls_ca = address, model, size, tls_ca
        self._runner = asyncio.Runner()
        self._rng = np.random.default_rng(seed)

    def drive(self, requests: int, outstanding: int) -> None:
        """Keeps the target busy."""
        self._run(self._always(requests, outstanding))

    def drive_rounds(self, rounds: int, outstanding: int, pause_s: float) -> None:
        """So many requests at once, and a pause after their answers, in turns: the target rests too."""
        self._run(self._in_rounds(rounds, outstanding, pause_s))

    def close(self) -> None:
        self._runner.close()

    def _run(self, sending: Coroutine[Any, Any, None]) -> None:
        try:
            self._runner.run(sending)
        except grpc.aio.AioRpcError as error:
            raise TargetError(f"a request of the profile failed: {error.details()}") from None
        finally:
            if inspect.getcoroutinestate(sending) == inspect.CORO_CREATED:  # a signal came before its begin
                sending.close()

    async def _always(self, requests: int, outstanding: int) -> None:
        left = iter(range(requests))
        async with self._sending() as send:

            async def send_while_any_left() -> None:
                for _ in left:
                    await send()

            await asyncio.gather(*(send_while_any_left() for _ in range(outstanding)))

    async def _in_rounds(self, rounds: int, outstanding: int, pause_s: float) -> None:
        async with self._sending() as send:
            for _ in range(rounds):
                await asyncio.gather(*(send() for _ in range(outstanding)))
                await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[Callable[[], Awaitable[bytes]]]:
        """What sends a request and waits for its answer."""
        (channel,) = open_channels(self._address, 1, self._tls_ca)
        async with channel:
            model = await wait_for_model(channel, self._address, self._model, REQUEST_TIMEOUT_S)
            payload = Payloads(model, self._rng).of_size(self._size)
            infer = channel.unary_unary(_INFER)
            yield lambda: infer(payload, timeout=REQUEST_TIMEOUT_S)
