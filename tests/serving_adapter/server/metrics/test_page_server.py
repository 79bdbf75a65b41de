"""The server of the metrics page bears readers that say nothing."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving_adapter.server.metrics import page_server
from serving_adapter.server.metrics.page_server import MAX_READERS, PageHandler, serve_page
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


class Counting(Collector):
    """Counts how many pages are being made, and is never quick about it."""

    def __init__(self) -> None:
        self.making = self.most = 0

    def describe(self) -> Iterator[Metric]:
        yield from ()

    def collect(self) -> Iterator[Metric]:
        self.making += 1
        self.most = max(self.most, self.making)
        threading.Event().wait(0.02)
        self.making -= 1
        yield from ()


def test_many_readers_keep_no_more_than_one_thread_from_letting_requests_through():
    registry, pages = CollectorRegistry(), Counting()
    registry.register(pages)
    url = f"http://127.0.0.1:{serve_page(registry, '127.0.0.1', 0)}/metrics"
    with ThreadPoolExecutor(8) as readers:
        for page in readers.map(lambda _: urllib.request.urlopen(url, timeout=30).status, range(16)):
            assert page == 200
    assert pages.most == 1


def test_a_silent_reader_is_left_after_a_while(monkeypatch):
    monkeypatch.setattr(PageHandler, "timeout", 0.05)
    port = serve_page(CollectorRegistry(), "127.0.0.1", 0)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as silent:
        assert silent.recv(1) == b""
    assert page_server.READER_TIMEOUT_S <= 10
