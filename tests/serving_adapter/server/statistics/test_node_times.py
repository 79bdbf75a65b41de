"""A batch goes to the node that is through with it first, and each node is tried."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from serving_adapter.server.statistics.node_times import NodeTimes

MS = 1_000_000


@dataclass
class WorkerOn:
    node: str
    job: object | None = None


def chosen(times: NodeTimes, workers: list[WorkerOn]) -> WorkerOn:
    idle = [worker for worker in workers if worker.job is None]
    return idle[times.best(idle, workers)]


def learned(**ms_by_node: float) -> NodeTimes:
    """Batches of 1 and of 8 rows, the latter eight times as long."""
    times = NodeTimes()
    for _ in range(50):
        for node, ms in ms_by_node.items():
            for rows in (1, 8):
                times.learn(node, rows, round(rows * ms * MS))
    return times


def test_a_fast_node_gets_the_batch() -> None:
    workers = [WorkerOn("fast"), WorkerOn("slow"), WorkerOn("slow")]
    assert chosen(learned(fast=5.0, slow=15.0), workers).node == "fast"


def test_a_fast_node_gets_it_though_another_of_its_workers_is_busy() -> None:
    workers = [WorkerOn("fast", job="a batch"), WorkerOn("fast"), WorkerOn("slow")]
    assert chosen(learned(fast=5.0, slow=15.0), workers).node == "fast"


def test_of_equal_nodes_the_one_with_the_shorter_queue_gets_it() -> None:
    workers = [WorkerOn("a"), WorkerOn("b", job="a batch"), WorkerOn("b")]
    assert chosen(learned(a=5.0, b=5.0), workers).node == "a"


def test_a_node_that_has_run_nothing_is_tried() -> None:
    workers = [WorkerOn("new"), WorkerOn("known")]
    assert chosen(learned(known=1.0), workers).node == "new"


def test_large_batches_do_not_make_a_node_look_slow() -> None:
    times = learned(a=5.0, b=5.0)
    for _ in range(50):
        times.learn("a", 8, 40 * MS)
        times.learn("b", 1, 5 * MS)
    assert chosen(times, [WorkerOn("b", job="a batch"), WorkerOn("b"), WorkerOn("a")]).node == "a"


def test_of_equal_workers_the_last_one_is_warm() -> None:
    workers = [WorkerOn("a"), WorkerOn("a")]
    assert chosen(learned(a=5.0), workers) is workers[1]


def test_a_node_with_a_bad_first_batch_is_tried_again() -> None:
    times, workers = NodeTimes(), [WorkerOn("unlucky"), WorkerOn("other")]
    ms = {"unlucky": 5.0, "other": 5.0}
    times.learn("other", 1, round(5 * MS))
    times.learn("unlucky", 1, round(500 * MS))
    for _ in range(10_000):
        node = chosen(times, workers).node
        times.learn(node, 1, round(ms[node] * MS))
    assert times.batches["unlucky"] > 2_000


def test_a_slow_node_is_seldom_tried_again() -> None:
    times, workers = NodeTimes(), [WorkerOn("slow"), WorkerOn("fast")]
    for _ in range(10_000):
        node = chosen(times, workers).node
        times.learn(node, 1, round({"slow": 15, "fast": 5}[node] * MS))
    assert 1 < times.batches["slow"] < 200


def test_batches_and_their_time_are_counted_by_node() -> None:
    times = NodeTimes()
    times.learn("a", 1, 3 * MS)
    times.learn("a", 2, 4 * MS)
    assert (times.batches["a"], times.service_ns["a"]) == (2, 7 * MS)


@pytest.mark.parametrize("service_ns", [0, 1])
def test_a_clock_that_stands_still_harms_nothing(service_ns: int) -> None:
    times = NodeTimes()
    times.learn("a", 1, service_ns)
    times.learn("a", 1, service_ns)
    assert chosen(times, [WorkerOn("a")]).node == "a"
