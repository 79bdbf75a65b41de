"""What benchmarks read of a server's metrics page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from scripts.serving.metrics_page import summed

PAGE = """# TYPE rrl_worker_replacements unknown
rrl_worker_replacements{model="a",version="1"} 2.0
rrl_worker_replacements{model="b",version="1"} 3.0
rrl_worker_replacements_of_another_kind{model="a",version="1"} 7.0
"""


class PageHandler(BaseHTTPRequestHandler):
    """Knows one page, and logs nothing."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), PageHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_series_is_summed_over_models(address: str) -> None:
    assert summed(f"{address}/metrics", "rrl_worker_replacements") == 5
    assert summed(f"{address}/metrics", "rrl_backup_count") == 0


def test_what_is_no_page_is_not_read_as_nothing(address: str) -> None:
    with pytest.raises(RuntimeError, match="must answer with a page of metrics, got status 404"):
        summed(f"{address}/elsewhere", "rrl_worker_replacements")
