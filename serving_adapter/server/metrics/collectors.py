"""The Prometheus page: Triton's metric names where one exists, `rrl_...` for what Triton has not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serving_adapter.latency_histogram import BucketHistogram
from serving_adapter.model_store.clients.client import Client
from serving_adapter.model_store.endpoint import switched_off
from serving_adapter.model_store.errors import StoreError
from serving_adapter.model_store.protocol import model_store_pb2 as pb
from serving_adapter.resources import Gpus, cores
from serving_adapter.server.metrics.node_collector import NodeCollector, cluster_cpu_s, cluster_cpus
from serving_adapter.server.metrics.page_server import serve_page
from serving_adapter.server.requests import BACKUP, DEFAULT, RECONSTRUCTED
from serving_adapter.server.served_model import MODEL_VERSION, ServedModel

NS_PER_US = 1000
STORE_TIMEOUT_S = 0.5


class CounterCollector(Collector):
    """The single values. They are few, so a page filtered to them (`?name[]=...`) costs next to nothing."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models
        self._started_s = time.time()

    def describe(self) -> Iterator[Metric]:
        return self.collect()  # whose names a page can be filtered by

    def collect(self) -> Iterator[Metric]:
        yield _plain("process_start_time_seconds", "Start, seconds since the epoch", self._started_s)
        for name, text, value_of in _MODEL_SERIES:
            metric = Metric(name, text, "unknown")
            for model in self._models.values():
                metric.add_sample(name, _labels(model), value_of(model))
            yield metric
        yield self._failures()

    def _failures(self) -> Metric:
        """By reason, as Triton has them."""
        metric = Metric("nv_inference_request_failure", "Requests failed", "unknown")
        for model in self._models.values():
            for reason, tally in model.statistics.failures.items():
                metric.add_sample(metric.name, _labels(model) | {"reason": reason}, tally.count)
        return metric


class ResourceCollector(Collector):
    """What the server uses of the machine."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models
        self._gpus = Gpus()

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        cpu_s = _cpu_s(self._models.values()) + cluster_cpu_s(self._models.values())
        yield _plain("rrl_cpu_seconds", "Processor time of the front and all it started", cpu_s)
        cpu_count = cluster_cpus(self._models.values()) or cores()
        yield _plain("rrl_cpu_count", "Cores that the server may use", cpu_count)
        gpu_utilisation = self._gpus.utilisation()
        if gpu_utilisation is not None:
            yield _plain("nv_gpu_utilization", "GPU utilisation, 0 to 1", gpu_utilisation)


class DistributionCollector(Collector):
    """Histograms, and service times by (busy instances, batch size)."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        for name, text, histogram_of in _HISTOGRAMS:
            family = HistogramMetricFamily(name, text, labels=["model", "version"])
            for model in self._models.values():
                histogram: BucketHistogram = histogram_of(model)
                family.add_metric([model.name, MODEL_VERSION], list(histogram.cumulative()), histogram.sum_s)
            yield family
        yield from _telemetry(self._models.values())


class StoreCollector(Collector):
    """The model store's tiers; nothing where it is switched off or does not answer."""

    def __init__(self) -> None:
        self._client = None if switched_off() else Client(starts_store=False)
        self._read_s, self._tiers = -math.inf, list[Any]()

    def describe(self) -> Iterator[Metric]:
        for name, text, _ in _STORE_SERIES:
            yield Metric(name, text, "unknown")

    def collect(self) -> Iterator[Metric]:
        tiers = self._latest()
        for metric, (name, _, field) in zip(self.describe(), _STORE_SERIES, strict=True):
            for tier in tiers:
                metric.add_sample(name, {"tier": tier.tier}, getattr(tier, field))
            yield metric

    def _latest(self) -> list[Any]:
        """The tiers, read at most once a second because pages may be asked for often."""
        if self._client is not None and time.monotonic() - self._read_s > 1.0:
            try:
                self._tiers = list(self._client.call("Stats", pb.Empty(), STORE_TIMEOUT_S).tiers)
            except StoreError:
                self._tiers = []
            self._read_s = time.monotonic()
        return self._tiers


_STORE_SERIES = (
    ("rrl_store_hits", "Models found in the tier", "hits"),
    ("rrl_store_misses", "Models not found in the tier", "misses"),
    ("rrl_store_evictions", "Models evicted to make room", "evictions"),
    ("rrl_store_used_bytes", "Bytes of the tier in use", "used_bytes"),
    ("rrl_store_capacity_bytes", "Bytes of the tier", "capacity_bytes"),
)

_MODEL_SERIES = (
    ("nv_inference_request_success", "Requests answered", lambda m: m.statistics.success.count),
    ("nv_inference_count", "Items answered", lambda m: m.statistics.inference_count),
    ("nv_inference_exec_count", "Batches run", lambda m: m.statistics.execution_count),
    (
        "nv_inference_request_duration_us",
        "Summed latency of the requests answered",
        lambda m: m.statistics.success.ns // NS_PER_US,
    ),
    (
        "nv_inference_queue_duration_us",
        "Summed queueing time of the requests answered",
        lambda m: m.statistics.queue.ns // NS_PER_US,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Summed computing time of the requests answered",
        lambda m: m.statistics.compute.compute_infer.ns // NS_PER_US,
    ),
    ("nv_inference_pending_request_count", "Requests waiting for a worker", lambda m: m.queued),
    ("rrl_in_flight_request_count", "Requests waiting or being run", lambda m: m.in_flight),
    (
        "rrl_reconstructed_count",
        "Requests answered with a reconstruction from a parity model",
        lambda m: m.statistics.answers[RECONSTRUCTED],
    ),
    ("rrl_backup_count", "Requests answered by the backup model", lambda m: m.statistics.answers[BACKUP]),
    ("rrl_default_count", "Requests given the default answer", lambda m: m.statistics.answers[DEFAULT]),
    (
        "rrl_batch_copies",
        "Batches run once more: replicas, hedges, retries",
        lambda m: m.statistics.copies_count,
    ),
    ("rrl_redundant_batches", "Parity and backup batches run", lambda m: m.redundant_batches),
    ("rrl_worker_replacements", "Workers replaced because they died or hung", lambda m: m.replacements),
)

_HISTOGRAMS = (
    ("rrl_request_latency_seconds", "Arrival to answer", lambda m: m.statistics.latency),
    ("rrl_request_queue_seconds", "Arrival to start of service", lambda m: m.statistics.queueing),
    ("rrl_request_service_seconds", "Start of service to its end", lambda m: m.statistics.service),
)


def _labels(model: ServedModel) -> dict[str, str]:
    return {"model": model.name, "version": MODEL_VERSION}


def _plain(name: str, text: str, value: float) -> Metric:
    metric = Metric(name, text, "unknown")
    metric.add_sample(name, {}, value)
    return metric


def _telemetry(models: Iterable[ServedModel]) -> Iterator[Metric]:
    """Count and sum of service times by (busy instances, batch size)."""
    count = Metric("rrl_batch_count", "Batches run", "unknown")
    seconds = Metric("rrl_batch_service_seconds", "Summed service time of the batches run", "unknown")
    busy = Metric(
        "rrl_batch_mean_busy_instances", "Instances busy on average while each batch ran, summed", "unknown"
    )
    for model in models:
        for (busy_instances, batch_size), tally in list(model.statistics.telemetry.items()):
            labels = _labels(model) | {"busy_instances": str(busy_instances), "batch_size": str(batch_size)}
            count.add_sample(count.name, labels, tally.count)
            seconds.add_sample(seconds.name, labels, tally.ns * 1e-9)
            busy.add_sample(busy.name, labels, tally.mean_busy)
    yield from (count, seconds, busy)


def _cpu_s(models: Iterable[ServedModel]) -> float:
    """Processor seconds of the front and of all it started; a zygote counts its ended workers."""
    total = time.process_time()
    for model in models:
        for pid in (pid for pool in model.pools for pid in pool.pids):
            try:
                times = psutil.Process(pid).cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system + times.children_user + times.children_system
    return total


def serve_metrics(
    models: Mapping[str, ServedModel], host: str, port: int, more: Iterable[Collector] = ()
) -> int:
    """Serves the page in a thread of its own; returns the port, chosen by the system when `port` is 0."""
    registry = CollectorRegistry()
    for collector in (
        CounterCollector(models),
        ResourceCollector(models),
        DistributionCollector(models),
        NodeCollector(models),
        StoreCollector(),
        *more,
    ):
        registry.register(collector)
    return serve_page(registry, host, port)
