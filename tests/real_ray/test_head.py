"""A server whose cluster loses its head goes on while Ray does, waits, and serves again with another head."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.ray_cluster import RayCluster, RayNode
from serving_adapter.ray_connection import head_answers
from tests.support.servers.on_cluster import on, under_load
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import PATIENCE_S, until

PATIENCE_OF_RAY = ("RAY_gcs_rpc_server_reconnect_timeout_s", "8")  # 60 by default


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    """Of one node beside a head that has no workers."""
    started = RayCluster(cpus=0, settings=dict([PATIENCE_OF_RAY]))
    try:
        started.start(dashboard=False)
        started.add_node(cpus=1)
        yield started
    finally:
        started.end()


@contextmanager
def serving(cluster: RayCluster) -> Iterator[RunningServer]:
    running = start("--model", "noop", *on(cluster), before=("env", "=".join(PATIENCE_OF_RAY)))
    try:
        yield running
    finally:
        running.stop(signal.SIGKILL)
        assert running.process.stdout is not None
        running.process.stdout.close()


def is_ready(server: RunningServer) -> bool:
    with grpc.insecure_channel(server.address) as channel:
        return bool(GRPCInferenceServiceStub(channel).ServerReady(pb.ServerReadyRequest(), timeout=60).ready)


def has_ended(node: RayNode) -> bool:
    return node.process.poll() is not None


def test_a_head_that_dies_loses_no_request_and_another_one_is_found(
    cluster: RayCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    head, node = cluster.nodes
    with serving(cluster) as server, under_load(server, "noop", deadline_s=2 * PATIENCE_S) as asked:
        asked.some_more()
        cluster.kill_head_service()
        until(lambda: not head_answers(cluster.address), "the head is dead")
        asked.some_more()
        until(lambda: not is_ready(server), "Ray waits for the head no longer")
        until(lambda: "nothing answers at" in capfd.readouterr().err, "the server says why")
        until(lambda: has_ended(node), "Ray ends its nodes")
        cluster.kill(head)
        cluster.kill(node)
        cluster.start(dashboard=False)
        cluster.add_node(cpus=1)
        until(lambda: is_ready(server), "it has workers again")
        asked.some_more()
    assert asked.failed == []
