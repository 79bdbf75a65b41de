"""One HTTP request and its whole answer, within a time, by the standard library."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

MAX_ANSWER_BYTES = 64 << 20
_PART_BYTES = 1 << 16


class HttpAnswer(NamedTuple):
    """What came back."""

    status: int
    body: bytes


def parts_of(url: str) -> SplitResult | None:
    """The parts of an address that HTTP can ask; None for what is none."""
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # brackets that are no address's, or a port that is no number
        return None
    return parts if is_one else None


def exchanged(
    url: str,
    timeout_s: float,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    tls_ca: str | None = None,
) -> HttpAnswer:
    """The answer to one request. No proxy of the environment is asked.

    OSError where nothing answers (TimeoutError: not in time), http.client.HTTPException where what answers
    speaks no HTTP, ValueError for an answer beyond all measure.
    """
    parts = urlsplit(url)
    host, port = unquote(str(parts.hostname)), parts.port  # A URL has %25 before an address's zone.
    connection: http.client.HTTPConnection
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=tls_ca)
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    end_s = time.monotonic() + timeout_s
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request(method, path, body, dict(headers or {}))
        response = connection.getresponse()
        return HttpAnswer(response.status, _whole(response, url, timeout_s, end_s))
    finally:
        connection.close()


def _whole(response: http.client.HTTPResponse, url: str, timeout_s: float, end_s: float) -> bytes:
    parts, length = [], 0
    while part := response.read1(_PART_BYTES):
        parts.append(part)
        length += len(part)
        if length > MAX_ANSWER_BYTES:
            raise ValueError(f"{url} answers more than {MAX_ANSWER_BYTES >> 20} MiB")
        if time.monotonic() > end_s:  # however slowly it trickles in
            raise TimeoutError(f"no whole answer within {timeout_s:g} s")
    if response.length:
        raise ConnectionAbortedError("the answer ended before its end")
    return b"".join(parts)
