"""Where a target's counters are found: which metrics page is its own, and what it tells beside one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from serving_adapter.address import ServerAddress, bracketed
from serving_adapter.recent_arrivals import EXTENSION
from serving_adapter.target.error import TargetError
from serving_adapter.target.open_inference.arrival_log import ArrivalLog
from serving_adapter.target.open_inference.checks import notes_on_counters
from serving_adapter.target.open_inference.counters import TargetCounters
from serving_adapter.target.open_inference.inference_server import InferenceServer
from serving_adapter.target.open_inference.metrics_page import MetricsPage, fetched

TRITON, TRITON_PORT, TRITON_METRICS_PORT = "triton", 8001, 8002  # its name, and the ports it has by default
_METRICS_PORT = re.compile(r"metrics\((\d{1,5})\)", re.ASCII)  # anything else is no port, but part of a URL


class PageLocation(NamedTuple):
    """Where a metrics page is: where the user says, or else the server, or else where a Triton has it."""

    url: str | None
    is_needed: bool
    is_advertised: bool

    @classmethod
    def of(
        cls,
        named_url: str | None,
        address: ServerAddress,
        server: str,
        extensions: Iterable[str],
        is_missed: bool = False,
    ) -> PageLocation:
        """`server` begins with its name. `is_missed`: a page has told of it before, and must again."""
        advertised_url = _advertised_url(address.host, extensions)
        usual_url = None
        if server.startswith(TRITON) and address.port == TRITON_PORT:
            usual_url = f"http://{bracketed(address.host)}:{TRITON_METRICS_PORT}/metrics"
        url = named_url or advertised_url or usual_url
        if is_missed and url is None:
            raise TargetError(
                f"the server at {address.host} tells no metrics page any more, which it did before"
            )
        return cls(url, is_missed or named_url is not None, advertised_url is not None)


def find_counters(
    server: InferenceServer,
    model: str,
    location: PageLocation,
    is_local: bool,
    timeout_s: float,
    tls_ca: str | None,
    calls: Counter[str],
) -> tuple[TargetCounters, list[str]]:
    """The counters of a model, and what they leave out, one sentence each.

    A metrics page that is needed must be one. One that is only advertised may be out of reach, and where a
    Triton usually has one there may be none, or another's.
    """
    notes = []
    statistics = partial(server.reading_of, model) if "statistics" in server.extensions else None
    page = None
    try:
        if location.url is not None:
            page = _open_page(location.url, model, timeout_s, tls_ca, calls, location.is_advertised)
    except TargetError as error:
        if location.is_needed or statistics is None:
            raise
        if location.is_advertised:
            notes.append(f"the advertised metrics page is left out: {error}")
    arrivals = None
    if EXTENSION in server.extensions:
        arrivals = ArrivalLog(partial(server.arrivals_of, model))
        try:
            arrivals.read()
        except TargetError as error:
            notes.append(f"the moments of arrivals are left out: {error}")
            arrivals = None
    counters = TargetCounters(server.address, statistics, page, is_local, server.is_rrl_serve, arrivals)
    try:
        counters.check_page()
    except TargetError:
        if location.is_needed or location.is_advertised:
            counters.close()
            raise
        counters.drop_page()
    has_page = counters.page is not None
    notes += notes_on_counters(
        server.address, server.name, has_page=has_page, has_statistics=statistics is not None
    )
    return counters, notes


def _advertised_url(host: str, extensions: Iterable[str]) -> str | None:
    """Our own server lists the port of its metrics page among its extensions."""
    ports = [match[1] for match in map(_METRICS_PORT.fullmatch, extensions) if match]
    return f"http://{bracketed(host)}:{ports[0]}/metrics" if ports else None


def _open_page(
    url: str, model: str, timeout_s: float, tls_ca: str | None, calls: Counter[str], advertised: bool
) -> MetricsPage:
    """A page that has been read once. Only a server that advertises its page knows a filter for glances."""
    try:
        page = MetricsPage(url, model, timeout_s, tls_ca, calls)
    except (OSError, ValueError) as error:
        raise TargetError(str(error)) from None
    try:
        fetched(page, page.read, known=False)
        if advertised:
            fetched(page, page.try_filter, known=False)
    except TargetError:
        page.close()
        raise
    return page
