"""What the metrics page tells by node of a cluster; nothing at home."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving_adapter.server.served_model import MODEL_VERSION, ServedModel
from serving_adapter.server.workers.messages import ClusterReport

_SERIES = (
    ("rrl_node_cpu_count", "Processors of the node", lambda use: use.cpus),
    ("rrl_node_workers", "Workers on the node", lambda use: use.workers),
    ("rrl_node_store_hits", "Models found in the model store of the node", lambda use: use.store_hits),
    ("rrl_node_store_misses", "Models not found there", lambda use: use.store_misses),
)


class NodeCollector(Collector):
    """The nodes that serve, and the batches that every node has run."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    def describe(self) -> Iterator[Metric]:
        return self._series()  # whose names a page can be filtered by

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._series() if metric.samples)

    def _series(self) -> Iterator[Metric]:
        for name, text, value_of in _SERIES:
            metric = Metric(name, text, "unknown")
            for model in self._models.values():
                for report in _reports([model]):
                    for use in report.nodes:
                        metric.add_sample(name, _labels(model, use.name), value_of(use))
            yield metric
        changes = Metric(
            "rrl_cluster_changes", "Times that nodes took workers with them, or such came back", "unknown"
        )
        for model in self._models.values():
            if model.pool.cluster is not None or model.pool.cluster_changes:
                labels = {"model": model.name, "version": MODEL_VERSION}
                changes.add_sample(changes.name, labels, model.pool.cluster_changes)
        yield changes
        batches = Metric("rrl_node_batch_count", "Batches run on the node", "unknown")
        seconds = Metric("rrl_node_batch_service_seconds", "Their summed service time", "unknown")
        for model in self._models.values():
            times = model.statistics.nodes
            for node, count in times.batches.copy().items():
                batches.add_sample(batches.name, _labels(model, node), count)
                seconds.add_sample(seconds.name, _labels(model, node), 1e-9 * times.service_ns[node])
        yield from (batches, seconds)


def cluster_cpu_s(models: Iterable[ServedModel]) -> float:
    """Processor seconds of what runs on the nodes of a cluster."""
    pools = [pool for model in models for pool in model.pools]
    return sum(pool.cluster.cpu_s for pool in pools if pool.cluster is not None)


def cluster_cpus(models: Iterable[ServedModel]) -> float:
    """Processors of the nodes that serve; 0 at home."""
    return max((sum(use.cpus for use in report.nodes) for report in _reports(models)), default=0)


def _reports(models: Iterable[ServedModel]) -> Iterator[ClusterReport]:
    """Of the deployed models' workers."""
    for model in models:
        if (report := model.pool.cluster) is not None:
            yield report


def _labels(model: ServedModel, node: str) -> dict[str, str]:
    return {"model": model.name, "version": MODEL_VERSION, "node": node}
