"""What was counted of each model: how long answers took, which requests failed, how many are under way."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving_adapter.latency_histogram import BucketHistogram

OK = "OK"
TOO_LATE = "DEADLINE_EXCEEDED"
LATE_FACTOR = 1.1
"""An answer after its deadline would have taken longer than that. It is counted as this many times as long,
a bucket of the histogram above, so that a p95 among such answers is beyond the deadline."""
MAX_MODELS = 1000
OTHERS = "(others)"  # the models beyond these
UNKNOWN = "(unknown)"  # of a request whose model cannot be read: a compressed one


class ClientTally(Collector):
    """Counts of requests by model, each from its first byte to the last of its answer."""

    def __init__(self) -> None:
        self.latency: dict[str, BucketHistogram] = defaultdict(BucketHistogram)
        self.ended: dict[str, Counter[str]] = defaultdict(Counter)  # by gRPC's status
        self.under_way: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.connections = 0
        self.unwatched = 0  # connections whose bytes could not be read along

    def known(self, model: str) -> str:
        """The name that a model is counted under: clients choose it, and every one is a line of the page."""
        return model if model in self.ended or len(self.ended) < MAX_MODELS else OTHERS

    def begun(self, model: str) -> None:
        with self._lock:
            self.ended[model].update()  # from now on it is known
            self.under_way[model] += 1

    def answered(self, model: str, status: str, waited_s: float, timeout_s: float | None = None) -> None:
        """A request has ended. Those that were answered have a latency, and those too late for it as well."""
        with self._lock:
            self.under_way[model] -= 1
            self.ended[model][status] += 1
            if status == OK:
                self.latency[model].observe(waited_s)
            elif status == TOO_LATE:
                self.latency[model].observe(LATE_FACTOR * max(waited_s, timeout_s or 0.0))

    def collect(self) -> Iterator[Metric]:
        latency = HistogramMetricFamily(
            "rrl_request_latency_seconds",
            "First byte of a request to the last of its answer, or until it was too late",
            labels=["model"],
        )
        for model, histogram in list(self.latency.items()):
            latency.add_metric([model], list(histogram.cumulative()), histogram.sum_s)
        yield latency
        ended = Metric("rrl_tap_requests", "Requests that ended, by gRPC's status", "unknown")
        for model, counts in list(self.ended.items()):
            for status, count in list(counts.items()):
                ended.add_sample(ended.name, {"model": model, "status": status}, count)
        yield ended
        under_way = Metric("rrl_in_flight_request_count", "Requests under way", "unknown")
        for model, count in list(self.under_way.items()):
            under_way.add_sample(under_way.name, {"model": model}, count)
        yield under_way
        for name, text, value in (
            ("rrl_tap_connections", "Connections of clients", self.connections),
            ("rrl_tap_unwatched_connections", "Connections handed on without counting", self.unwatched),
        ):
            metric = Metric(name, text, "unknown")
            metric.add_sample(name, {}, value)
            yield metric
