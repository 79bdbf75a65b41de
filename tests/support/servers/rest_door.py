"""An application of a test behind the server's door for HTTP, in the event loop of the test."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from serving_adapter.server.rest.listening import RestServer, bind
from tests.support.servers.tls import TlsFiles
from tests.support.waiting import eventually


@asynccontextmanager
async def serving(application: ASGIApp, files: TlsFiles | None = None) -> AsyncIterator[tuple[str, int]]:
    """The host and port where it is served, encrypted if there are files for that."""
    listener = bind("127.0.0.1", 0)
    certificate, key = (None, None) if files is None else (files.certificate, files.key)
    server = RestServer(application, listener, certificate, key)
    server.start()
    try:
        await eventually(lambda: bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)))
        yield listener.getsockname()
    finally:
        await server.stop(0)
