"""The metrics page of a tap: the server's own page, and behind it what the tap has counted."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from serving_adapter.http_exchange import exchanged
from serving_adapter.tap.tally import ClientTally

SERVER_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 16 << 20
COUNTED_HERE = re.compile(rb"(# (HELP|TYPE) )?(rrl_request_latency_seconds|rrl_in_flight_request_count)")
"""Series that our own server has as well: the page has each once, as clients see it."""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def page_of(tally: ClientTally, server_url: str | None) -> Callable[..., Iterable[bytes]]:
    """A WSGI application that answers every GET with the page."""
    registry = CollectorRegistry()
    registry.register(tally)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            of_server = b"" if server_url is None else _of_server(server_url, environ.get("QUERY_STRING", ""))
        except (OSError, ValueError, http.client.HTTPException) as error:
            start_response("502 Bad Gateway", [("content-type", "text/plain")])
            return [f"the server's metrics page {server_url} cannot be read: {error}\n".encode()]
        start_response("200 OK", [("content-type", CONTENT_TYPE)])
        return [of_server, b"\n", generate_latest(registry)]

    return answer


def _of_server(url: str, query: str) -> bytes:
    answer = exchanged(f"{url}?{query}" if query else url, SERVER_TIMEOUT_S)
    if answer.status != http.client.OK:
        raise ValueError(f"it answers with status {answer.status}")
    if len(answer.body) > MAX_PAGE_BYTES:
        raise ValueError(f"it has more than {MAX_PAGE_BYTES >> 20} MiB")
    return b"".join(line for line in answer.body.splitlines(keepends=True) if not COUNTED_HERE.match(line))
