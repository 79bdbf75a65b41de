"""Two fronts on the nodes of a real cluster: one configuration, and nothing lost while it changes."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.ray_cluster import RayCluster
from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.model_configuration import knob_values
from tests.real_ray.test_serving import has_workers, refused
from tests.real_ray.test_serving import load as load_at
from tests.real_ray.test_units import TOLD, units_at_one_node
from tests.support.models.split import UNITS
from tests.support.servers.on_cluster import (
    BURN,
    DEADLINE_S,
    is_answer_of,
    knobs,
    on,
    put_in_force,
    request_of,
    under_load,
)
from tests.support.servers.running_server import RunningServer, start
from tests.support.servers.tls import key_file_in
from tests.support.waiting import until

FRONT = re.compile(r"front 2 is on (\S+:\d+), metrics on (\S+)")
ANSWERS = re.compile(r'rrl_front_answers{address="([^"]+)",front="2"} 1')
FRONT_PROCESS = "serving_adapter.server.front_process"
LAUNCHER_PROCESS = "serving_adapter.server.ray_engine.front_launcher"
KEY = "open sesame"
load = partial(load_at, metadata=((CONTROL_KEY_HEADER, KEY),))


class Fronts:
    """The first front, and where it says that the other one is."""

    def __init__(self, cluster: RayCluster, *given: object) -> None:
        self.first = start(*on(cluster), "--fronts", 2, "--instances", 2, *given)
        self.other = self.next_other()

    def next_other(self) -> RunningServer:
        """Waits until the other front serves, or serves anew, where the first says that it does now."""
        address = until(self._address_of_other, "the other front answers")
        assert self.first.process.stdout is not None
        for line in self.first.process.stdout:
            if (found := FRONT.match(line)) is not None and found[1] == address:
                self.other = RunningServer(self.first.process, found[1], found[2])
                return self.other
        raise RuntimeError("the first front ended")

    def _address_of_other(self) -> str:
        """Empty while it does not answer."""
        found = ANSWERS.search(self.first.metrics_page())
        return "" if found is None else found[1]

    def end(self) -> None:
        self.first.stop(signal.SIGKILL)
        assert self.first.process.stdout is not None
        self.first.process.stdout.close()


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return key_file_in(tmp_path_factory.mktemp("keys"), KEY)


@pytest.fixture(scope="module")
def fronts(ray_cluster: RayCluster, key_file: Path) -> Iterator[Fronts]:
    running = Fronts(ray_cluster, *BURN, "--max-batch-size", 4, "--control-key-file", key_file)
    yield running
    running.end()


def in_force(server: RunningServer) -> dict[str, int]:
    with grpc.insecure_channel(server.address) as channel:
        asked = pb.ModelConfigRequest(name="burn")
        return knob_values(GRPCInferenceServiceStub(channel).ModelConfig(asked, timeout=60).config)


def other_processes(cluster: RayCluster) -> list[psutil.Process]:
    """Of the other front itself, on whatever node it is."""
    found = []
    for node in cluster.nodes:
        for process_id in node.process_ids():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(process_id)
                if FRONT_PROCESS in process.cmdline():
                    found.append(process)
    return found


def test_a_change_asked_of_the_second_is_in_force_on_both_and_no_request_fails(fronts: Fronts) -> None:
    with under_load(fronts.first, "burn") as of_first, under_load(fronts.other, "burn") as of_other:
        for asked_of, changed in (
            (fronts.other, knobs(instances=4, max_batch_size=8)),
            (fronts.first, knobs(instances=3, intra_op_threads=2)),
            (fronts.other, knobs(max_queue_delay_us=2000)),
        ):
            load(asked_of, changed)
            assert in_force(fronts.first) == in_force(fronts.other) == changed
            of_first.some_more()
            of_other.some_more()
    assert of_first.failed == of_other.failed == []
    assert fronts.first.counted("rrl_front_answers") == 2


def test_the_workers_are_shared_out_and_more_than_there_are_processors_are_refused(fronts: Fronts) -> None:
    load(fronts.other, knobs(instances=4))
    for each in (fronts.first, fronts.other):
        until(partial(lambda server: server.counted("rrl_node_workers") == 2, each), "a half is on each")
    for each in (fronts.first, fronts.other):
        with pytest.raises(grpc.RpcError, match="CPUs for front 1 on 2 nodes, and 3 instances need one each"):
            load(each, knobs(instances=5))
        assert in_force(fronts.first) == in_force(fronts.other) == knobs(instances=4)
    with pytest.raises(grpc.RpcError, match="instances=1 is below the 2 fronts"):
        load(fronts.other, knobs(instances=1))


def test_the_key_is_asked_for_at_each(fronts: Fronts) -> None:
    for each in (fronts.first, fronts.other):
        with pytest.raises(grpc.RpcError, match="control of this server is locked"):
            load_at(each, knobs())


def test_a_front_killed_comes_back_with_the_newest_configuration_and_the_other_goes_on(
    ray_cluster: RayCluster, fronts: Fronts
) -> None:
    (process,) = other_processes(ray_cluster)
    with under_load(fronts.first, "burn") as asked:
        process.kill()
        until(lambda: fronts.first.counted("rrl_front_answers") == 1, "its end is noticed")
        load(fronts.first, knobs(instances=2, max_batch_size=2))
        asked.some_more()
        other = fronts.next_other()
        asked.some_more()
    assert asked.failed == []
    assert fronts.first.counted("rrl_front_answers") == 2
    assert in_force(other) == knobs(instances=2, max_batch_size=2)
    with under_load(other, "burn") as of_other:
        of_other.some_more()
    assert of_other.failed == []


def test_a_front_whose_node_dies_comes_back_on_one_that_comes(
    ray_cluster: RayCluster, fronts: Fronts
) -> None:
    _, node = ray_cluster.nodes
    with under_load(fronts.first, "burn") as asked:
        ray_cluster.kill(node)
        until(lambda: fronts.first.counted("rrl_front_answers") == 1, "its end is noticed")
        load(fronts.first, knobs(instances=2, max_batch_size=8))
        asked.some_more()
        ray_cluster.add_node()
        other = fronts.next_other()
        asked.some_more()
    assert asked.failed == []
    assert in_force(other) == knobs(instances=2, max_batch_size=8)
    with under_load(other, "burn") as of_other:
        of_other.some_more()
    assert of_other.failed == []


def test_a_front_comes_back_where_not_all_of_its_workers_fit_any_more(
    ray_cluster: RayCluster, fronts: Fronts
) -> None:
    load(fronts.first, knobs(instances=4))
    _, node = ray_cluster.nodes
    ray_cluster.kill(node)
    until(lambda: fronts.first.counted("rrl_front_answers") == 1, "its end is noticed")
    smaller = ray_cluster.add_node(cpus=1)
    other = fronts.next_other()
    assert in_force(other) == knobs(instances=4)
    with under_load(other, "burn") as asked:
        asked.some_more()
    assert asked.failed == []
    load(other, knobs())
    ray_cluster.kill(smaller)
    until(lambda: fronts.first.counted("rrl_front_answers") == 1, "the smaller one's end is noticed")
    ray_cluster.add_node()
    assert in_force(fronts.next_other()) == knobs()


def test_the_process_that_starts_fronts_is_started_again_and_has_the_other_back(fronts: Fronts) -> None:
    (launcher,) = [
        child
        for child in psutil.Process(fronts.first.process.pid).children()
        if LAUNCHER_PROCESS in child.cmdline()
    ]
    with under_load(fronts.first, "burn") as asked:
        launcher.kill()
        until(lambda: fronts.first.counted("rrl_front_answers") == 1, "the other one ends with it")
        asked.some_more()
        other = fronts.next_other()
        asked.some_more()
    assert asked.failed == []
    assert in_force(other) == in_force(fronts.first)
    with under_load(other, "burn") as of_other:
        of_other.some_more()
    assert of_other.failed == []


def test_the_end_of_the_first_ends_the_other_which_answers_what_it_has(
    ray_cluster: RayCluster, fronts: Fronts
) -> None:
    load(fronts.first, knobs(max_batch_size=8, max_queue_delay_us=2_000_000))
    with grpc.insecure_channel(fronts.other.address) as channel:
        asking = GRPCInferenceServiceStub(channel).ModelInfer.future(
            request_of("burn", 7), timeout=DEADLINE_S
        )
        until(lambda: fronts.other.counted("rrl_in_flight_request_count") == 1, "it has the request")
        assert fronts.first.stop() == 0
        assert is_answer_of(asking.result(), 7)
    until(lambda: not other_processes(ray_cluster), "it ends")


def test_the_end_while_both_start_is_the_end_of_both(ray_cluster: RayCluster) -> None:
    command = [sys.executable, "-m", "serving_adapter.server.command_line", *BURN, *on(ray_cluster)]
    command += ["--fronts", "2", "--instances", "2", "--port", "0", "--metrics-port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as first:
        until(lambda: other_processes(ray_cluster), "the other one starts")
        first.terminate()
    assert first.returncode in (0, 128 + signal.SIGTERM)  # it may serve already
    until(lambda: not other_processes(ray_cluster), "the other one ends")


def test_the_end_while_the_other_starts_is_the_end_of_both(ray_cluster: RayCluster) -> None:
    first = start(*BURN, *on(ray_cluster), "--fronts", 2, "--instances", 2)
    assert first.stop() == 0
    until(lambda: not other_processes(ray_cluster), "the other one ends")
    assert first.process.stdout is not None
    first.process.stdout.close()


def test_each_front_has_units_of_both_nodes_and_is_found_at_its_own(
    ray_cluster: RayCluster, key_file: Path
) -> None:
    given = ("--nodes-per-unit", 2, "--host", "0.0.0.0", "--control-key-file", key_file)
    fronts = Fronts(ray_cluster, *TOLD, *given)
    _, node = ray_cluster.nodes
    try:
        assert fronts.other.address.startswith(f"{node.host}:")
        with (
            under_load(fronts.first, "told", times=UNITS) as of_first,
            under_load(fronts.other, "told", times=UNITS) as of_other,
        ):
            for nodes_per_unit in (2, 1, 2):
                put_in_force(
                    fronts.other,
                    "told",
                    knobs(),
                    ((CONTROL_KEY_HEADER, KEY),),
                    CLUSTER_NODES_PER_UNIT=nodes_per_unit,
                )
                of_first.some_more()
                of_other.some_more()
                for each in (fronts.first, fronts.other):  # a front has one instance of two
                    until(partial(has_workers, each, nodes_per_unit), "the old ones have ended")
                    assert units_at_one_node(each) == UNITS / nodes_per_unit
        assert of_first.failed == of_other.failed == []
        for each in (fronts.first, fronts.other):
            assert [each.counted("rrl_node_workers", node=node.name) for node in ray_cluster.nodes] == [1, 1]
    finally:
        fronts.end()


def test_more_fronts_than_nodes_are_refused(ray_cluster: RayCluster) -> None:
    said = refused(*on(ray_cluster), "--fronts", 3, "--instances", 3)
    assert "--fronts 3 needs as many nodes, and the Ray cluster at" in said
    assert "has 2; lower it, or add a node with ray start --address" in said


def test_more_instances_than_the_processors_of_all_fronts_are_refused(ray_cluster: RayCluster) -> None:
    said = refused(*on(ray_cluster), "--fronts", 2, "--instances", 5)
    assert "has 4 CPUs on 2 nodes, and 5 instances need one each; lower instances, or add a node" in said
