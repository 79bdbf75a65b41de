"""A tap's page begins with the server's own, or says within a time why it cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from serving_adapter.tap import page
from serving_adapter.tap.page import page_of
from serving_adapter.tap.tally import ClientTally

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def server_that() -> Iterator[Callable[[Answer], str]]:
    """The URL of a server that answers so."""
    servers: list[ThreadingHTTPServer] = []

    def serve(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None: ...

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/metrics"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def read(url: str, query: str = "") -> tuple[str, str]:
    """Status and text of the tap's page."""
    told: list[str] = []
    parts = page_of(ClientTally(), url)({"QUERY_STRING": query}, lambda status, _: told.append(status))
    return told[0], b"".join(parts).decode()


def its_path(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(f"asked {handler.path}\n".encode())


def test_a_proxy_of_the_environment_is_not_asked_for_the_servers_page(server_that, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setattr("urllib.request._opener", None)  # as in a process that has asked nothing yet
    status, text = read(server_that(its_path), "name[]=a")
    assert status == "200 OK"
    assert text.startswith("asked /metrics?name[]=a\n")


def test_a_page_that_trickles_in_is_given_up_after_the_time_for_all_of_it(server_that, monkeypatch):
    monkeypatch.setattr(page, "SERVER_TIMEOUT_S", 0.5)
    given_up = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):
            while not given_up.wait(0.01):
                handler.wfile.write(b"#\n")

    status, text = read(server_that(trickle))
    given_up.set()
    assert status == "502 Bad Gateway"
    assert "cannot be read: no whole answer within 0.5 s" in text


@pytest.mark.parametrize("status", [204, 301, 404, 500])
def test_an_answer_that_is_no_page_is_told(server_that, status):
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.end_headers()

    assert read(server_that(refuse))[0] == "502 Bad Gateway"
    assert f"it answers with status {status}" in read(server_that(refuse))[1]


def test_what_speaks_no_http_is_told(server_that):
    status, text = read(server_that(lambda handler: handler.wfile.write(b"\x00\x00\n\n")))
    assert status == "502 Bad Gateway"
    assert "cannot be read: " in text
