"""Units on a cluster: nodes that run each batch together, and are replaced together."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.ray_cluster import RayCluster, RayNode
from serving_adapter.target.open_inference.open_inference_target import OpenInferenceTarget
from tests.support.models.split import UNITS
from tests.support.servers.on_cluster import forked_on, knobs, on, put_in_force, under_load
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

TOLD = ("--model", "tests.support.models.split:told")


@pytest.fixture(scope="module")
def server(ray_cluster: RayCluster) -> Iterator[RunningServer]:
    running = start(*TOLD, *on(ray_cluster), "--max-batch-size", 4)
    yield running
    running.stop(signal.SIGKILL)
    if running.process.stdout is not None:
        running.process.stdout.close()


def load(server: RunningServer, instances: int, nodes_per_unit: int) -> None:
    put_in_force(server, "told", knobs(instances=instances), CLUSTER_NODES_PER_UNIT=nodes_per_unit)


def infer(server: RunningServer, model: str, name: str, array: np.ndarray, datatype: str) -> list[np.ndarray]:
    """All outputs for one request, as FP32."""
    with grpc.insecure_channel(server.address) as channel:
        request = pb.ModelInferRequest(model_name=model)
        request.inputs.add(name=name, datatype=datatype, shape=array.shape)
        request.raw_input_contents.append(array.tobytes())
        answer = GRPCInferenceServiceStub(channel).ModelInfer(request, timeout=60)
    return [np.frombuffer(raw, np.float32) for raw in answer.raw_output_contents]


def units_at_one_node(server: RunningServer) -> float:
    """How many of the layer's units the node has that answers."""
    _, units = infer(server, "told", "x", np.ones((1, 16), np.float32), "FP32")
    return float(units[0])


def workers_on(cluster: RayCluster, node: RayNode) -> list[int]:
    """Those that a zygote there has forked."""
    forked, workers = forked_on(cluster, node), []
    for process_id in forked:
        with contextlib.suppress(psutil.Error):
            if psutil.Process(process_id).ppid() in forked:
                workers.append(process_id)
    return workers


def has_one_worker(cluster: RayCluster, node: RayNode) -> bool:
    return len(workers_on(cluster, node)) == 1


def has_counted_more(server: RunningServer, name: str, than: int) -> bool:
    return server.counted(name) > than


def has_workers(server: RunningServer, nodes: list[str], each: int) -> bool:
    return all(server.counted("rrl_node_workers", node=node) == each for node in nodes)


def has_one_unit(server: RunningServer, cluster: RayCluster, size: int) -> bool:
    on_nodes = [server.counted("rrl_node_workers", node=node.name) for node in cluster.nodes]
    return sorted(on_nodes, reverse=True) == [1] * size + [0] * (len(on_nodes) - size)


def test_units_come_and_go_live_and_no_request_fails(ray_cluster: RayCluster, server: RunningServer) -> None:
    names = [node.name for node in ray_cluster.nodes]
    with under_load(server, "told", times=UNITS) as asked:
        for instances, nodes_per_unit in ((1, 2), (2, 2), (2, 1)):
            load(server, instances, nodes_per_unit)
            asked.some_more()
            each = instances * nodes_per_unit // len(names)
            until(partial(has_workers, server, names, each), "the old ones have ended")
            assert units_at_one_node(server) == UNITS / nodes_per_unit
    assert asked.failed == []


def test_what_no_unit_can_do_is_refused_in_one_sentence_and_changes_nothing(server: RunningServer) -> None:
    load(server, instances=1, nodes_per_unit=2)
    for instances, nodes_per_unit, said in (
        (1, 3, "has 2 nodes, and nodes_per_unit=3 needs as many; lower it, or add a node"),
        (3, 2, "has 4 CPUs on 2 nodes, and 3 instances need 2 each, on different nodes; lower instances"),
        (1, 4, "nodes_per_unit must divide the 6 parts that model 'told' can be split into, got 4"),
    ):
        with pytest.raises(grpc.RpcError, match=said):
            load(server, instances, nodes_per_unit)
        assert units_at_one_node(server) == UNITS / 2
    until(lambda: server.counted("rrl_node_workers") == 2, "the old unit is there")


def test_a_tuner_changes_the_nodes_of_a_unit_like_any_knob(
    ray_cluster: RayCluster, server: RunningServer
) -> None:
    load(server, instances=1, nodes_per_unit=1)
    target = OpenInferenceTarget(server.address, "told", metrics_url=server.metrics_url)
    target.connect()
    try:
        assert target.knobs()["nodes_per_unit"] == (1, 6)
        with under_load(server, "told", times=UNITS) as asked:
            for nodes in (2, 1):
                assert target.apply({"nodes_per_unit": nodes}).in_place
                assert target.configuration()["nodes_per_unit"] == nodes
                until(partial(has_one_unit, server, ray_cluster, nodes), "the unit is there, and no other")
                asked.some_more()
        assert asked.failed == []
    finally:
        target.close()


def test_a_model_without_a_plan_runs_on_one_node(ray_cluster: RayCluster) -> None:
    server = start("--model", "noop", *on(ray_cluster))
    try:
        with pytest.raises(
            grpc.RpcError, match="nodes_per_unit=2 needs a plan for tensor parallelism, which"
        ):
            put_in_force(server, "noop", knobs(instances=1), CLUSTER_NODES_PER_UNIT=2)
        (answer,) = infer(server, "noop", "x", np.ones((1, 16), np.float32), "FP32")
        assert answer.tolist() == [1.0] * 16
    finally:
        server.stop(signal.SIGKILL)
        if server.process.stdout is not None:
            server.process.stdout.close()


def test_a_unit_whose_member_is_killed_is_replaced_whole(
    ray_cluster: RayCluster, server: RunningServer
) -> None:
    load(server, instances=1, nodes_per_unit=2)
    names = [node.name for node in ray_cluster.nodes]
    until(partial(has_workers, server, names, 1), "the unit is alone")
    for node in ray_cluster.nodes:
        until(partial(has_one_worker, ray_cluster, node), "those before it have ended")
        (member,) = workers_on(ray_cluster, node)
        with under_load(server, "told", times=UNITS) as asked:
            asked.some_more()
            before = server.counted("rrl_worker_replacements")
            os.kill(member, signal.SIGKILL)
            replaced = partial(has_counted_more, server, "rrl_worker_replacements", than=before)
            until(replaced, "its end is noticed")
            asked.some_more()
        assert asked.failed == []
        until(partial(has_workers, server, names, 1), "its other member has ended")
        assert units_at_one_node(server) == UNITS / 2


def test_a_unit_whose_node_dies_is_there_again_on_others(
    ray_cluster: RayCluster, server: RunningServer
) -> None:
    node = ray_cluster.add_node(cpus=3)
    others = [each.name for each in ray_cluster.nodes if each is not node]
    try:
        until(lambda: server.counted("rrl_node_cpu_count", node=node.name) == 3, "the new node serves")
        load(server, instances=2, nodes_per_unit=1)
        load(server, instances=2, nodes_per_unit=2)
        until(lambda: server.counted("rrl_node_workers", node=node.name) > 0, "a member is on the new node")
        with under_load(server, "told", times=UNITS) as asked:
            asked.some_more()
            before = server.counted("rrl_cluster_changes")
            ray_cluster.kill(node)
            until(partial(has_counted_more, server, "rrl_cluster_changes", than=before), "its end is noticed")
            asked.some_more()
            until(partial(has_workers, server, others, 2), "all units are on the others")
        assert asked.failed == []
    finally:
        load(server, instances=1, nodes_per_unit=1)
        ray_cluster.kill(node)


def test_minilm_answers_on_two_nodes_as_on_one(ray_cluster: RayCluster) -> None:
    token_ids = np.array([[101, 7592, 2088, 102], [101, 2023, 102, 0]])
    answers = []
    for nodes_per_unit in (1, 2):
        server = start("--model", "minilm", *on(ray_cluster), "--nodes-per-unit", nodes_per_unit)
        try:
            answers += infer(server, "minilm", "token_ids", token_ids, "INT64")
            until(partial(has_one_unit, server, ray_cluster, nodes_per_unit), "its members are told")
        finally:
            server.stop(signal.SIGKILL)
            if server.process.stdout is not None:
                server.process.stdout.close()
    np.testing.assert_allclose(answers[1], answers[0], atol=1e-5)
