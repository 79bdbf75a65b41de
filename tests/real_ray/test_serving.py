"""A server whose workers are on the nodes of a cluster: nothing is lost, whichever of its parts ends."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from functools import partial

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.servers.ray_cluster import RayCluster, free_ports
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

MODEL = ("--model", "burn", "--model-option", "branches=2", "--model-option", "rounds=1")
CLIENTS, PAUSE_S = 4, 0.02
DEADLINE_S = 30.0


def on(cluster: RayCluster) -> tuple[str, ...]:
    return ("--engine", "ray", "--address", cluster.address)


class Asked:
    """What clients saw who asked for one thing after the other, each for its own."""

    def __init__(self, server: RunningServer) -> None:
        self._server, self._over = server, threading.Event()
        self.answered, self.failed = 0, list[str]()

    def ask(self, number: int) -> None:
        with grpc.insecure_channel(self._server.address) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            while not self._over.wait(PAUSE_S):
                request = pb.ModelInferRequest(model_name="burn")
                request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
                request.raw_input_contents.append(np.full((1, 16), number, np.float32).tobytes())
                try:
                    answered = infer(request, timeout=DEADLINE_S)
                except grpc.RpcError as error:
                    self.failed.append(str(error))
                    continue
                answer = np.frombuffer(answered.raw_output_contents[0], np.float32)
                if not np.array_equal(answer, np.full(16, number, np.float32)):
                    self.failed.append(f"{answer} for {number}")
                self.answered += 1

    def end(self) -> None:
        self._over.set()

    def some_more(self) -> None:
        """Returns when every client may have been answered by what is there now."""
        seen = self.answered + 3 * CLIENTS
        until(lambda: self.answered > seen, "requests are answered")


@contextlib.contextmanager
def under_load(server: RunningServer) -> Iterator[Asked]:
    asked = Asked(server)
    clients = [threading.Thread(target=asked.ask, args=(number,)) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    try:
        yield asked
    finally:
        asked.end()
        for each in clients:
            each.join(2 * DEADLINE_S)


@pytest.fixture(scope="module")
def server(ray_cluster: RayCluster) -> Iterator[RunningServer]:
    running = start(*MODEL, *on(ray_cluster), "--instances", 2, "--max-batch-size", 4)
    yield running
    running.stop(signal.SIGKILL)
    if running.process.stdout is not None:
        running.process.stdout.close()


def load(server: RunningServer, knobs: Mapping[str, int], nodes: int = 0, placement: str = "spread") -> None:
    """Puts a configuration in force."""
    override = {
        "max_batch_size": knobs["max_batch_size"],
        "instance_group": [{"count": knobs["instances"]}],
        "dynamic_batching": {"max_queue_delay_microseconds": knobs["max_queue_delay_us"]},
        "parameters": {
            "INTRA_OP_THREAD_COUNT": {"string_value": str(knobs["intra_op_threads"])},
            "INTER_OP_THREAD_COUNT": {"string_value": str(knobs["inter_op_threads"])},
            "CLUSTER_NODES": {"string_value": str(nodes)},
            "CLUSTER_PLACEMENT": {"string_value": placement},
        },
    }
    with grpc.insecure_channel(server.address) as channel:
        request = pb.RepositoryModelLoadRequest(model_name="burn")
        request.parameters["config"].string_param = json.dumps(override)
        GRPCInferenceServiceStub(channel).RepositoryModelLoad(request, timeout=60)


def has_workers(server: RunningServer, count: int) -> bool:
    return server.counted("rrl_node_workers") == count


def has_on_each(server: RunningServer, nodes: list[str], expected: set[int]) -> bool:
    return {server.counted("rrl_node_workers", node=node) for node in nodes} == expected


def knobs(**changed: int) -> dict[str, int]:
    usual = {"instances": 2, "intra_op_threads": 1, "inter_op_threads": 1}
    return usual | {"max_batch_size": 4, "max_queue_delay_us": 0} | changed


def test_every_knob_changes_live_and_no_request_fails(ray_cluster: RayCluster, server: RunningServer) -> None:
    with under_load(server) as asked:
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
        with under_load(server) as asked:
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


def forked_on(cluster: RayCluster) -> set[int]:
    """The zygotes and workers on the nodes."""
    found = set()
    for node in cluster.nodes:
        for process_id in node.process_ids():
            with contextlib.suppress(psutil.Error):
                if "serving_adapter.server.workers.zygote" in psutil.Process(process_id).cmdline():
                    found.add(process_id)
    return found


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
