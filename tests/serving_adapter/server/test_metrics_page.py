"""The server of the metrics page bears readers that say nothing."""

from __future__ import annotations

import socket
import threading
import urllib.request
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, Gauge

from serving_adapter.server import metrics_page
from serving_adapter.server.metrics_page import MAX_READERS, PageHandler, serve_page
from tests.support.waiting import until


def readers() -> int:
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_readers_are_bounded_and_keep_nobody_out(monkeypatch):
    monkeypatch.setattr(PageHandler, "timeout", 60.0)
    registry = CollectorRegistry()
    Gauge("answer", "", registry=registry).set(42)
    port = serve_page(registry, "127.0.0.1", 0)
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            for _ in range(2 * MAX_READERS)
        ]
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()
        assert b"answer 42.0" in page
        until(lambda: readers() <= MAX_READERS)
        assert silent[0].recv(1) == b""  # the oldest made room
    until(lambda: readers() == 0)


def test_a_silent_reader_is_left_after_a_while(monkeypatch):
    monkeypatch.setattr(PageHandler, "timeout", 0.05)
    port = serve_page(CollectorRegistry(), "127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
        assert silent.recv(1) == b""
    assert metrics_page.READER_TIMEOUT_S <= 10
