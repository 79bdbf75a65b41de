"""What the page tells by node: of the nodes that serve, and of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from serving_adapter.server.metrics.node_collector import NodeCollector
from serving_adapter.server.statistics.node_times import NodeTimes
from serving_adapter.server.workers.messages import ClusterReport, NodeUse

A, B = (NodeUse(name, 4.0, 2, 3, 1) for name in "ab")


@pytest.fixture
def times() -> NodeTimes:
    times = NodeTimes()
    times.learn("a", 1, 2_000_000_000)
    times.learn("a", 4, 3_000_000_000)
    return times


def served(times: NodeTimes, *nodes: NodeUse) -> Any:
    """A model of which these nodes have workers."""
    pool = SimpleNamespace(
        cluster=ClusterReport(nodes, 1.5) if nodes else None, cluster_changes=0, cluster_changed_share=0.0
    )
    return SimpleNamespace(name="minilm", pool=pool, statistics=SimpleNamespace(nodes=times))


def told(model: Any, series: str) -> dict[str, float]:
    """A series of the page, by node."""
    registry = CollectorRegistry()
    registry.register(NodeCollector({"minilm": model}))
    samples = [sample for metric in registry.collect() for sample in metric.samples]
    return {sample.labels["node"]: sample.value for sample in samples if sample.name == series}


def test_batches_and_their_time_are_told_by_node(times: NodeTimes) -> None:
    model = served(times, A, B)
    assert told(model, "rrl_node_batch_count") == {"a": 2, "b": 0}
    assert told(model, "rrl_node_batch_service_seconds") == {"a": 5.0, "b": 0.0}
    assert told(model, "rrl_node_cpu_count") == {"a": 4.0, "b": 4.0}


def test_a_node_that_is_gone_is_told_no_more_until_it_comes_back(times: NodeTimes) -> None:
    assert told(served(times, B), "rrl_node_batch_count") == {"b": 0}
    assert told(served(times, A), "rrl_node_batch_count") == {"a": 2}


def test_a_server_without_a_cluster_tells_nothing(times: NodeTimes) -> None:
    registry = CollectorRegistry()
    registry.register(NodeCollector({"minilm": served(times)}))
    assert [metric for metric in registry.collect() if metric.samples] == []
