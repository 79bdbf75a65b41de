"""What the metrics page tells by node of a cluster; nothing at home."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from serving_adapter.server.served_model import MODEL_VERSION, ServedModel
from serving_adapter.server.statistics.node_times import NodeTimes
from serving_adapter.server.workers.messages import ClusterReport, NodeUse

_SERIES: tuple[tuple[str, str, Callable[[NodeUse, NodeTimes], float]], ...] = (
    ("rrl_node_cpu_count", "Processors of the node", lambda use, _: use.cpus),
    ("rrl_node_workers", "Workers on the node", lambda use, _: use.workers),
    ("rrl_node_store_hits", "Models found in the model store of the node", lambda use, _: use.store_hits),
    ("rrl_node_store_misses", "Models not found there", lambda use, _: use.store_misses),
    ("rrl_node_batch_count", "Batches run on the node", lambda use, times: times.batches[use.name]),
    (
        "rrl_node_batch_service_seconds",
        "Their summed service time",
        lambda use, times: 1e-9 * times.service_ns[use.name],
    ),
)
_CHANGES = "Times that nodes took workers with them, or such came back"
_CHANGED_SHARE = "Shares of the workers that nodes took with them, or that came back after that, summed"


class NodeCollector(Collector):
    """The nodes that serve. What is told of one ends with it, and goes on when it comes back."""

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
                        labels = {"model": model.name, "version": MODEL_VERSION, "node": use.name}
                        metric.add_sample(name, labels, value_of(use, model.statistics.nodes))
            yield metric
        changes = Metric("rrl_cluster_changes", _CHANGES, "unknown")
        share = Metric("rrl_cluster_changed_share", _CHANGED_SHARE, "unknown")
        for model in self._models.values():
            pool = model.pool
            if pool.cluster is not None or pool.cluster_changes:
                labels = {"model": model.name, "version": MODEL_VERSION}
                changes.add_sample(changes.name, labels, pool.cluster_changes)
                share.add_sample(share.name, labels, pool.cluster_changed_share)
        yield from (changes, share)


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
