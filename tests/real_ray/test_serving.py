"""A server whose workers are on the nodes of a cluster: nothing is lost, whichever of its parts ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial

import grpc
import pytest

from scripts.ray_cluster import RayCluster, free_ports
from serving_adapter.target import OpenInferenceTarget, Room
from tests.support.servers.on_cluster import burning, forked_on, knobs, on, put_in_force, under_load
from tests.support.servers.running_server import RunningServer
from tests.support.waiting import until


@pytest.fixture(scope="module")
def server(ray_cluster: RayCluster) -> Iterator[RunningServer]:
    with burning(ray_cluster, 2) as running:
        yield running


def load(
    server: RunningServer,
    knobs: Mapping[str, int],
    nodes: int = 0,
    placement: str = "spread",
    metadata: tuple[tuple[str, str], ...] = (),
) -> None:
    """Puts a configuration in force."""
    put_in_force(server, "burn", knobs, metadata, CLUSTER_NODES=nodes, CLUSTER_PLACEMENT=placement)


def has_workers(server: RunningServer, count: int) -> bool:
    return server.counted("rrl_node_workers") == count


def has_on_each(server: RunningServer, nodes: list[str], expected: set[int]) -> bool:
    return {server.counted("rrl_node_workers", node=node) for node in nodes} == expected


def test_a_tuner_is_told_what_fits_on_the_nodes(server: RunningServer) -> None:
    with contextlib.closing(OpenInferenceTarget(server.address)) as target:
        target.connect()
        assert target.configuration()["intra_op_threads"] == 1
        until(lambda: target.read().cpus_by_node == (2, 2), "both nodes serve")
        assert target.room() == Room(instances=4, threads=2)


def test_every_knob_changes_live_and_no_request_fails(ray_cluster: RayCluster, server: RunningServer) -> None:
    with under_load(server, "burn") as asked:
        for changed in (
            {"instances": 4},
            {"instances": 1},
            {"instances": 3, "intra_op_threads": 2},
            {"inter_op_threads": 2, "instances": 3},
            {"max_batch_size": 1},
            {"max_batch_size": 8, "max_queue_delay_us": 2000},
        ):
            load(server, knobs(**changed))
            until(partial(has_workers, server, changed.get("instances", 2)), "the old ones end")
            asked.some_more()
        names = [node.name for node in ray_cluster.nodes]
        for placement, expected in (("pack", {0, 2}), ("spread", {1})):
            load(server, knobs(), placement=placement)
            asked.some_more()
            until(partial(has_on_each, server, names, expected), placement)
        load(server, knobs(), nodes=1)
        asked.some_more()
        load(server, knobs())
    assert asked.failed == []


def test_more_instances_than_the_cluster_has_processors_are_refused_and_change_nothing(
    server: RunningServer,
) -> None:
    with pytest.raises(grpc.RpcError, match="has 4 CPUs on 2 nodes, and 7 instances need one each"):
        load(server, knobs(instances=7))
    until(lambda: server.counted("rrl_node_workers") == 2, "the old configuration is in force")


def test_a_node_that_dies_loses_no_request_and_one_that_comes_takes_its_place(
    ray_cluster: RayCluster, server: RunningServer
) -> None:
    node = ray_cluster.add_node(cpus=1)
    try:
        until(lambda: server.counted("rrl_node_cpu_count", node=node.name) == 1, "the new node serves")
        load(server, knobs(instances=5))
        until(lambda: server.counted("rrl_node_workers", node=node.name) == 1, "a worker is on the new node")
        with under_load(server, "burn") as asked:
            asked.some_more()
            until(lambda: server.counted("rrl_node_batch_count", node=node.name) > 0, "it runs batches")
            ray_cluster.kill(node)
            until(lambda: server.counted("rrl_worker_replacements") > 0, "its end is noticed")
            asked.some_more()
            until(lambda: server.counted("rrl_node_workers") == 4, "the others are told")
        assert asked.failed == []
        node = ray_cluster.add_node(cpus=1)
        until(lambda: server.counted("rrl_node_workers", node=node.name) == 1, "all are there again")
        until(lambda: server.counted("rrl_cluster_changes") >= 2, "both are told")
        assert server.counted("nv_inference_request_failure") == 0
    finally:
        load(server, knobs())
        ray_cluster.kill(node)


def test_a_node_that_falls_silent_loses_no_request(ray_cluster: RayCluster, server: RunningServer) -> None:
    node = ray_cluster.add_node(cpus=3)
    try:
        until(lambda: server.counted("rrl_node_cpu_count", node=node.name) == 3, "the new node serves")
        load(server, knobs(), nodes=1)
        until(partial(has_workers, server, 2), "the old ones end")
        assert server.counted("rrl_node_workers", node=node.name) == 2
        with under_load(server, "burn") as asked:
            asked.some_more()
            copies = server.counted("rrl_batch_copies")
            ray_cluster.stop(node)
            until(lambda: server.counted("rrl_batch_copies") > copies, "what it held runs again")
            asked.some_more()
            until(lambda: server.counted("rrl_node_workers", node=node.name) == 0, "its silence is told")
        assert asked.failed == []
    finally:
        load(server, knobs())
        ray_cluster.kill(node)


def test_what_runs_on_the_nodes_ends_with_the_front_though_that_is_killed(
    ray_cluster: RayCluster, server: RunningServer
) -> None:
    until(lambda: len(forked_on(ray_cluster)) == 4, "a zygote and a worker are on each of two nodes")
    server.stop(signal.SIGKILL)
    until(lambda: not forked_on(ray_cluster), "they end")


def refused(*arguments: object) -> str:
    command = (sys.executable, "-m", "serving_adapter.server.command_line", "--model", "noop", "--port", "0")
    ended = subprocess.run(
        [*command, "--metrics-port", "0", *map(str, arguments)], capture_output=True, text=True, timeout=100
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    return ended.stderr.splitlines()[-1]


def test_a_server_that_cannot_be_on_a_cluster_says_why(ray_cluster: RayCluster) -> None:
    (port,) = free_ports(1)
    absent = refused("--engine", "ray", "--address", f"127.0.0.1:{port}")
    assert absent.startswith(f"model 'noop' cannot be served: nothing answers at 127.0.0.1:{port}")
    many = refused(*on(ray_cluster), "--instances", 5)
    assert "has 4 CPUs on 2 nodes, and 5 instances need one each; lower instances, or add a node" in many
