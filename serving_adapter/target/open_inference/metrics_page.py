"""A model's readings from a metrics page, over a connection kept open."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import SplitResult, urlencode

from serving_adapter.address import ServerAddress, bracketed
from serving_adapter.http_exchange import parts_of
from serving_adapter.target.error import TargetError, TargetLost
from serving_adapter.target.open_inference.readings import GLANCE, parse_metrics
from serving_adapter.target.reading import Reading

FETCHES = "metrics page"  # how the calls are counted
_MAX_PAGE_BYTES = 16 << 20
_Fetched = TypeVar("_Fetched")


class MetricsPage:
    """One URL. Reading raises OSError if nothing answers, ValueError (one sentence) if it is no such page."""

    def __init__(
        self,
        url: str,
        model: str,
        timeout_s: float,
        tls_ca: str | None = None,
        calls: Counter[str] | None = None,
    ) -> None:
        parts = parts_of(url)
        if parts is None:
            raise ValueError(f"the metrics URL must be like http://HOST:PORT/metrics, got {url!r}")
        self.url = url
        self.tells_all = False  # batches and processor time too: our own server's page, and none of a tap
        self._calls = Counter() if calls is None else calls
        self._model = model
        self._filter: tuple[str, ...] = ()
        self._timeout_s = timeout_s
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._connection: http.client.HTTPConnection
        host, port = _host(parts), parts.port  # no proxy of the environment is asked
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=tls_ca)
            self._connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)

    @property
    def is_filtered(self) -> bool:
        """True if a glance costs the server next to nothing."""
        return bool(self._filter)

    def read(self) -> Reading:
        at_s = time.monotonic()
        reading = parse_metrics(self._fetch(), self._model, at_s)
        self.tells_all = reading.cpu_busy_s is not None
        return reading

    def glance(self) -> Reading:
        """Arrivals, completions, failures and backlog only."""
        at_s = time.monotonic()
        return parse_metrics(self._fetch(self._filter), self._model, at_s, counters_only=True)

    def try_filter(self) -> None:
        """Glances at a filtered page from now on, if the server knows the filter `name[]`.

        Writing out all histograms costs a server milliseconds, which a glance every half second would waste.
        """
        self._filter = GLANCE
        try:
            self.glance()
        except ValueError:
            self._filter = ()

    def _fetch(self, names: Sequence[str] = ()) -> str:
        path = self._path
        if names:
            path += ("&" if "?" in path else "?") + urlencode([("name[]", name) for name in names])
        try:
            return self._get(path)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()  # the server may close a connection that was idle; a new one tells
            return self._get(path)

    def close(self) -> None:
        self._connection.close()

    def _get(self, path: str) -> str:
        self._calls[FETCHES] += 1
        try:
            response, body = self._answer(path)
        except http.client.RemoteDisconnected:
            raise
        except http.client.IncompleteRead:
            self.close()
            raise ConnectionAbortedError("the page ended before its end") from None
        except http.client.HTTPException as error:
            self.close()
            raise ValueError(
                f"{self.url} does not answer with HTTP ({type(error).__name__}); it may be a gRPC port: "
                "give the metrics port, 8002 by default for Triton"
            ) from None
        except ssl.SSLError as error:
            self.close()
            raise ValueError(
                f"{self.url} makes no TLS connection ({error.reason or error}); "
                "use http:// where the server has no TLS, or give its certificates"
            ) from None
        except OSError:
            self.close()
            raise
        if response.status != 200:
            answered = f"{self.url} answers {response.status} {response.reason}"
            if reason := _own_reason(response, body):
                raise ValueError(f"{answered}: {reason}")
            raise ValueError(
                f"{answered} instead of a metrics page, which Triton has at http://HOST:8002/metrics"
            )
        if len(body) > _MAX_PAGE_BYTES:
            self.close()  # the rest is still to come
            raise ValueError(
                f"{self.url} is longer than {_MAX_PAGE_BYTES >> 20} MiB, so it is no page of one server; "
                "give the page of the server itself"
            )
        return body.decode("utf-8", errors="replace")

    def _answer(self, path: str) -> tuple[http.client.HTTPResponse, bytes]:
        """The whole answer within the time, however slowly it trickles in: TimeoutError if it is not."""
        connection, is_late = self._connection, threading.Event()
        if connection.sock is None:
            connection.connect()
        sock = connection.sock  # which the answer may take over

        def give_up() -> None:
            is_late.set()
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(self._timeout_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            body = response.read(_MAX_PAGE_BYTES + 1)
            if response.length and len(body) <= _MAX_PAGE_BYTES:
                raise http.client.IncompleteRead(b"", response.length)
        except (OSError, http.client.HTTPException):
            if is_late.is_set():
                self.close()
                raise TimeoutError(f"no whole page within {self._timeout_s:g} s") from None
            raise
        finally:
            timer.cancel()
        if is_late.is_set():
            self.close()
            raise TimeoutError(f"no whole page within {self._timeout_s:g} s")
        return response, body


def _own_reason(response: http.client.HTTPResponse, body: bytes) -> str:
    """Why the right page cannot be told, in the words of who serves it; empty where it does not say."""
    if response.status < 500 or response.headers.get_content_type() != "text/plain":
        return ""
    return " ".join(body.decode("utf-8", errors="replace").split())[:300]


def _host(parts: SplitResult) -> str:
    """The host as a socket takes it: without brackets, and none that only listens."""
    try:
        return ServerAddress.parse(f"{bracketed(str(parts.hostname))}:1").host
    except ValueError:
        return str(parts.hostname)


def fetched(page: MetricsPage, fetch: Callable[[], _Fetched], known: bool) -> _Fetched:
    """What a page answers; TargetError where it does not, or TargetLost once it is `known`."""
    kind = TargetLost if known else TargetError
    try:
        return fetch()
    except ValueError as error:
        raise kind(str(error)) from None
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        reason = reason[:1].lower() + reason[1:]
        advice = "" if known else "; a Triton with --allow-metrics=false has none"
        raise kind(f"the metrics page {page.url} does not answer ({reason}){advice}") from None
