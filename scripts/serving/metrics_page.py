"""What a benchmark reads of a server's metrics page."""

from __future__ import annotations

from http import HTTPStatus

from serving_adapter.http_exchange import exchanged

PATIENCE_S = 60.0


def page(url: str) -> str:
    """The text. RuntimeError where the server answers otherwise."""
    answer = exchanged(url, PATIENCE_S)
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(f"{url} must answer with a page of metrics, got status {answer.status}")
    return answer.body.decode()


def summed(url: str, series: str) -> int:
    """A series of counts, over all models."""
    lines = page(url).splitlines()
    return round(sum(float(line.split()[-1]) for line in lines if line.startswith(f"{series}{{")))
