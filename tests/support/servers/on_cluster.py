"""A server on a cluster under the load of a few clients, and what it has on the nodes."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping

import grpc
import numpy as np
import psutil
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.ray_cluster import RayCluster, RayNode
from tests.support.servers.running_server import RunningServer, start
from tests.support.waiting import until

BURN = ("--model", "burn", "--model-option", "branches=2", "--model-option", "rounds=1")
CLIENTS, PAUSE_S = 4, 0.02
DEADLINE_S = 30.0


def on(cluster: RayCluster) -> tuple[str, ...]:
    return ("--engine", "ray", "--address", cluster.address)


@contextlib.contextmanager
def burning(cluster: RayCluster, instances: int) -> Iterator[RunningServer]:
    """A server of the model `burn` with so many instances on the nodes."""
    running = start(*BURN, *on(cluster), "--instances", instances, "--max-batch-size", 4)
    yield running
    running.stop(signal.SIGKILL)
    if running.process.stdout is not None:
        running.process.stdout.close()


def request_of(model: str, number: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.full((1, 16), number, np.float32).tobytes())
    return request


def is_answer_of(answered: pb.ModelInferResponse, number: int) -> bool:
    answer = np.frombuffer(answered.raw_output_contents[0], np.float32)
    return np.array_equal(answer, np.full(16, number, np.float32))


class Asked:
    """What clients saw who asked for one thing after the other, each for its own.

    The first output of the model must be so many times its input `x`.
    """

    def __init__(self, server: RunningServer, model: str, times: int, deadline_s: float) -> None:
        self._server, self._model, self._times, self._over = server, model, times, threading.Event()
        self._deadline_s = deadline_s
        self.answered, self.failed = 0, list[str]()

    def ask(self, number: int) -> None:
        with grpc.insecure_channel(self._server.address) as channel:
            infer = GRPCInferenceServiceStub(channel).ModelInfer
            while not self._over.wait(PAUSE_S):
                try:
                    answered = infer(request_of(self._model, number), timeout=self._deadline_s)
                    if not is_answer_of(answered, self._times * number):
                        self.failed.append(f"{answered} for {number}")
                except Exception as error:  # whichever: a client that ends by one would be missed by nobody
                    self.failed.append(repr(error))
                else:
                    self.answered += 1

    def end(self) -> None:
        self._over.set()

    def some_more(self) -> None:
        """Returns when every client may have been answered by what is there now."""
        seen = self.answered + 3 * CLIENTS
        until(lambda: self.answered > seen, "requests are answered")


@contextlib.contextmanager
def under_load(
    server: RunningServer, model: str, times: int = 1, deadline_s: float = DEADLINE_S
) -> Iterator[Asked]:
    asked = Asked(server, model, times, deadline_s)
    clients = [threading.Thread(target=asked.ask, args=(number,)) for number in range(CLIENTS)]
    for each in clients:
        each.start()
    try:
        yield asked
    finally:
        asked.end()
        for each in clients:
            each.join(2 * deadline_s)


def knobs(**changed: int) -> dict[str, int]:
    usual = {"instances": 2, "intra_op_threads": 1, "inter_op_threads": 1}
    return usual | {"max_batch_size": 4, "max_queue_delay_us": 0} | changed


def put_in_force(
    server: RunningServer,
    model: str,
    knobs: Mapping[str, int],
    metadata: tuple[tuple[str, str], ...] = (),
    **parameters: object,
) -> None:
    """A configuration, with more of its parameters."""
    threads = {
        "INTRA_OP_THREAD_COUNT": knobs["intra_op_threads"],
        "INTER_OP_THREAD_COUNT": knobs["inter_op_threads"],
    }
    override = {
        "max_batch_size": knobs["max_batch_size"],
        "instance_group": [{"count": knobs["instances"]}],
        "dynamic_batching": {"max_queue_delay_microseconds": knobs["max_queue_delay_us"]},
        "parameters": {name: {"string_value": str(value)} for name, value in (threads | parameters).items()},
    }
    with grpc.insecure_channel(server.address) as channel:
        request = pb.RepositoryModelLoadRequest(model_name=model)
        request.parameters["config"].string_param = json.dumps(override)
        GRPCInferenceServiceStub(channel).RepositoryModelLoad(request, timeout=60, metadata=metadata)


def forked_on(cluster: RayCluster, *nodes: RayNode) -> set[int]:
    """The zygotes and workers on these nodes, or on all."""
    found = set()
    for node in nodes or cluster.nodes:
        for process_id in node.process_ids():
            with contextlib.suppress(psutil.Error):
                if "serving_adapter.server.workers.zygote" in psutil.Process(process_id).cmdline():
                    found.add(process_id)
    return found
