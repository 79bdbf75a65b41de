"""The HTTP server of the metrics page: a thread a reader, but no more readers than it can bear.

Pages are made one at a time: the event loop that serves requests waits its turn behind one thread, not many.
A reader that says nothing for `READER_TIMEOUT_S` is left. When there are too many, the oldest makes room for
the newest, so that silent connections keep no scraper out.
"""

from __future__ import annotations

import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

READER_TIMEOUT_S = 5.0
MAX_READERS = 32


class PageServer(ThreadingMixIn, WSGIServer):
    """Serves every reader in a thread of its own, `MAX_READERS` at a time."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._readers: OrderedDict[int, socket.socket] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._readers[id(request)] = request
            oldest = self._readers.popitem(last=False)[1] if len(self._readers) > MAX_READERS else None
        if oldest is not None:
            _end(oldest)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._readers.pop(id(request), None)
        super().shutdown_request(request)


class PageHandler(WSGIRequestHandler):
    """Reads one request, and logs nothing."""

    timeout = READER_TIMEOUT_S

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def serve_page(registry: CollectorRegistry, host: str, port: int) -> int:
    """Serves a registry in a thread of its own; returns the port, chosen by the system when `port` is 0."""
    return serve_application(make_wsgi_app(registry), host, port)


def serve_application(application: Callable[..., Any], host: str, port: int) -> int:
    """The same for any WSGI application, which is asked for one page at a time."""
    return int(open_page(application, host, port).server_port)


def open_page(application: Callable[..., Any], host: str, port: int) -> WSGIServer:
    """The same; returns the server, for whoever shuts it down."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]

    class PageServerOfFamily(PageServer):
        address_family = family

    one_at_a_time = _one_at_a_time(application)
    server: WSGIServer = make_server(host, port, one_at_a_time, PageServerOfFamily, PageHandler)
    threading.Thread(target=server.serve_forever, name="metrics page", daemon=True).start()
    return server


def _one_at_a_time(application: Callable[..., Any]) -> Callable[..., Any]:
    making = threading.Lock()

    def make(*arguments: Any) -> Any:
        with making:
            return application(*arguments)

    return make


def _end(connection: socket.socket) -> None:
    """Has the thread that waits for it go on."""
    with suppress(OSError):  # its reader has ended it
        connection.shutdown(socket.SHUT_RDWR)
