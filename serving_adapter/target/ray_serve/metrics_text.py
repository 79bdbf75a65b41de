"""The samples of Ray Serve on a metrics page, and which of them count a deployment's requests.

Two places time a request, and one of them is read:

| the deployment is | read is | which is |
|---|---|---|
| the ingress of its application | what the proxies count | all that users wait for |
| called by other deployments | what its replicas count | from a replica's receipt to its answer |

| series (after `ray_serve_`) | of | tells |
|---|---|---|
| `num_http_requests_total`, `num_grpc_requests_total` | proxy | requests by `status_code` |
| `http_request_latency_ms`, `grpc_request_latency_ms` | proxy | their latencies, by `status_code` |
| `deployment_request_counter_total`, `deployment_error_counter_total` | replica | requests answered, failed |
| `deployment_processing_latency_ms` | replica | their latencies, of both kinds |
| `request_router_fulfillment_time_ms` | caller | how long requests waited for a replica |
| `batches_processed_total`, `batch_execution_time_ms` | replica | the batches of `@serve.batch` |
| `deployment_queued_queries`, `num_ongoing_requests_at_replicas` | caller | gauges: waiting, in service |
| `event_loop_monitoring_iterations_total` | all | moves although nothing is asked |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from serving_adapter.target.prometheus_text import number, sample

PREFIX = "ray_serve_"
OF_A_NODE = ("ray_node_", PREFIX)  # what only a node's page has
PROCESS = "WorkerId"  # the label that names the process which counted

REQUESTS = {"http": f"{PREFIX}num_http_requests_total", "grpc": f"{PREFIX}num_grpc_requests_total"}
LATENCY = {"http": f"{PREFIX}http_request_latency_ms", "grpc": f"{PREFIX}grpc_request_latency_ms"}
ANSWERED, FAILED = f"{PREFIX}deployment_request_counter_total", f"{PREFIX}deployment_error_counter_total"
PROCESSING = f"{PREFIX}deployment_processing_latency_ms"
ROUTING = f"{PREFIX}request_router_fulfillment_time_ms"
BATCHES, BATCH_TIME = f"{PREFIX}batches_processed_total", f"{PREFIX}batch_execution_time_ms"
QUEUED, ONGOING = f"{PREFIX}deployment_queued_queries", f"{PREFIX}num_ongoing_requests_at_replicas"
_BEAT = f"{PREFIX}event_loop_monitoring_iterations_total"

_HISTOGRAMS = (*LATENCY.values(), PROCESSING, ROUTING, BATCH_TIME)
_PARTS = (f"{name}_{part}" for name in _HISTOGRAMS for part in ("bucket", "sum", "count"))
_COUNTERS = frozenset((*REQUESTS.values(), ANSWERED, FAILED, BATCHES, _BEAT, *_PARTS))
_GAUGES = frozenset((QUEUED, ONGOING))
_ANSWERED_CODES = ("1", "2", "3", "OK")  # how the codes begin of requests that were answered

Where = Callable[[Mapping[str, str]], bool]
"""Says by its labels whether a series counts."""


class PageSample(NamedTuple):
    """One line of a page."""

    series: str  # the name and all labels, as they stand there
    name: str
    labels: Mapping[str, str]
    value: float

    @property
    def is_gauge(self) -> bool:
        return self.name in _GAUGES


def samples(text: str) -> Iterator[PageSample]:
    """Those that a reading uses; ValueError for a malformed line among them."""
    for line in text.split("\n"):
        if not line.startswith(PREFIX):
            continue
        name = line.partition("{")[0]
        if name in _COUNTERS or name in _GAUGES:
            name, labels, value = sample(line.strip())
            yield PageSample(line[: line.rindex("}") + 1], name, labels, number(value, name))


def is_of_a_node(text: str) -> bool:
    """False for the page of the dashboard or of the autoscaler, which a cluster has besides."""
    return any(line.startswith(OF_A_NODE) for line in text.split("\n"))


def of_deployment(application: str, deployment: str) -> Where:
    return lambda labels: labels.get("application") == application and labels.get("deployment") == deployment


def of_application(application: str, answered: bool | None = None) -> Where:
    """The requests that proxies handed to an application: answered, not answered, or both."""

    def counts(labels: Mapping[str, str]) -> bool:
        was_answered = labels.get("status_code", "").startswith(_ANSWERED_CODES)
        return labels.get("application") == application and answered in (None, was_answered)

    return counts
