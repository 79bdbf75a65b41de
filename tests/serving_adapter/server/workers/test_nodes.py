"""Where workers are too many, those go that are missed least."""

from __future__ import annotations

from dataclasses import dataclass

from serving_adapter.server.workers.nodes import surplus_of
from serving_adapter.server.workers.parallelism import ANYWHERE, PACK, NodePlacement


@dataclass
class NamedWorker:
    name: str
    node: str = ""
    job: object | None = None


def names(workers: list[NamedWorker], surplus: int, placement: NodePlacement = ANYWHERE) -> list[str]:
    return [worker.name for worker in surplus_of(workers, surplus, placement)]


def test_at_home_those_go_first_that_hold_a_batch_and_of_these_the_oldest() -> None:
    workers = [NamedWorker("a"), NamedWorker("b", job="x"), NamedWorker("c"), NamedWorker("d", job="y")]
    assert names(workers, 3) == ["b", "d", "a"]
    assert names(workers, 0) == names(workers, -1) == []


def test_on_a_cluster_the_fullest_node_gives_first() -> None:
    workers = [NamedWorker("a", "1"), NamedWorker("b", "2"), NamedWorker("c", "2"), NamedWorker("d", "2")]
    assert names(workers, 2) == ["b", "c"]
    assert sorted(names(workers, 3)) == ["a", "b", "c"]


def test_where_they_are_packed_the_emptiest_node_gives_first() -> None:
    workers = [NamedWorker("a", "1"), NamedWorker("b", "2"), NamedWorker("c", "2")]
    assert names(workers, 2, NodePlacement(0, PACK)) == ["a", "b"]
