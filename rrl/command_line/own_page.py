"""The page that a run serves of itself: /metrics for Prometheus, /health for whoever restarts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from rich.console import Console

from rrl.command_line.options.options import TuneOptions
from rrl.tuning.pacing import MAX_INTERVAL_LENGTHS
from rrl.views.run_metrics import RunMetrics
from serving_adapter.address import bracketed

LONGEST_CHANGE_S = 600.0  # a reload of a large model, and what was before it again


@contextmanager
def watched_by_others(options: TuneOptions, console: Console) -> Iterator[RunMetrics]:
    """What a run tells of itself, and its page where the options ask for one.

    The page is there before the target is, so that whoever watches the run sees it wait.
    """
    metrics = RunMetrics()
    if options.metrics_port is None:
        yield metrics
        return
    with own_page(metrics, options.interval_s, options.metrics_host, options.metrics_port) as page:
        console.print(f"this run tells of itself on {page}/metrics and {page}/health")
        yield metrics


@contextmanager
def own_page(metrics: RunMetrics, interval_s: float, host: str, port: int) -> Iterator[str]:
    """Serves the page until the run is over; yields its address. ValueError where the port cannot be had."""
    from serving_adapter.server.metrics.page_server import open_page  # Linux alone has the server.
    from serving_adapter.server.protocol.listening import check_free

    stuck_after_s = MAX_INTERVAL_LENGTHS * interval_s + LONGEST_CHANGE_S
    try:
        check_free(host, port)
        page = open_page(page_of(metrics, stuck_after_s), host.strip("[]"), port)
    except OSError as error:
        raise ValueError(
            f"cannot serve the run's own metrics on {bracketed(host)}:{port} ({error.strerror}); "
            "choose another --metrics-port, or 0 for any free one"
        ) from None
    try:
        yield f"http://{bracketed(host)}:{page.server_port}"
    finally:
        page.shutdown()
        page.server_close()


def page_of(metrics: RunMetrics, stuck_after_s: float) -> Callable[..., Iterable[bytes]]:
    """A WSGI application of both."""
    registry = CollectorRegistry()
    registry.register(metrics)
    page = make_wsgi_app(registry)

    def answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/health":
            return _health(metrics, stuck_after_s, start_response)
        if path in ("/", "/metrics"):
            found: Iterable[bytes] = page(environ, start_response)
            return found
        start_response("404 Not Found", [("content-type", "text/plain")])
        return [b"there is /metrics, and /health\n"]

    return answer


def _health(metrics: RunMetrics, stuck_after_s: float, start_response: Callable[..., Any]) -> Iterable[bytes]:
    """200 while the run goes on, also while it waits for its target; 503 where it has been stuck for long."""
    is_alive = metrics.quiet_s < stuck_after_s
    status = "200 OK" if is_alive else "503 Service Unavailable"
    start_response(status, [("content-type", "application/json")])
    told = {
        "status": "ok" if is_alive else "stuck",
        "target": "up" if metrics.target_is_up else "away",
        "intervals": metrics.intervals,
        "seconds_since_last_sign": round(metrics.quiet_s, 1),
    }
    return [json.dumps(told).encode() + b"\n"]
