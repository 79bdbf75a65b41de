"""A server that is ready to be sent requests, and the requests for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from serving_adapter.load.connection import ModelSignature, open_channels, wait_for_model
from serving_adapter.load.generator import Send, grpc_send
from serving_adapter.load.options import LoadOptions
from serving_adapter.load.own_requests import OwnRequests
from serving_adapter.load.payloads import Payloads, RequestSource
from serving_adapter.load.sizes import Sizes
from serving_adapter.standard_streams import say


@dataclass(frozen=True)
class ReadyServer:
    """What a load needs of a server."""

    model: str
    send: Send
    payloads: RequestSource


@asynccontextmanager
async def ready(options: LoadOptions, sizes: Sizes, stop: asyncio.Event) -> AsyncIterator[ReadyServer | None]:
    """The server once its model can be called; None where `stop` came first."""
    channels = open_channels(options.target, options.connections, options.tls_ca)
    try:
        waiting = asyncio.create_task(
            wait_for_model(channels[0], options.target, options.model, options.wait_s)
        )
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not waiting.done():
            waiting.cancel()
            yield None
            return
        model = waiting.result()
        payloads = _requests(options, model)
        payloads.prepare(sizes)
        yield ReadyServer(model.name, grpc_send(channels, options.timeout_s), payloads)
    finally:
        for channel in channels:
            await channel.close()


def _requests(options: LoadOptions, model: ModelSignature) -> RequestSource:
    """The user's own requests, or made-up ones."""
    if options.input_data is not None:
        own = OwnRequests(options.input_data, model)
        say(f"{own.count} requests of {options.input_data}, in turn")
        return own
    return Payloads(model, np.random.default_rng([options.seed, 2]), shapes=options.shapes())
