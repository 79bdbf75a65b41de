"""`ray-changes`: 200 random configurations of all knobs under 30 requests/s, on two nodes of a cluster.

Beside the five knobs of any server these are how many nodes have workers, and whether those are packed or
spread. The model is that of `live-changes`. A change is in force when RepositoryModelLoad has returned and
ModelConfig shows it. There is no peer: a stock Ray Serve application starts new replicas for most.
"""

from __future__ import annotations

import json
import time
from typing import Any

import grpc
from google.protobuf import json_format
from numpy.random import Generator
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.benchmarks.ray.nodes import nodes
from scripts.benchmarks.server.live_changes import MODEL, VALUES, changes_under_load
from scripts.serving.processes import serving

RATE_PER_S = 30
REACH_S = 2.0
CHANGE_S = 60.0
NODES = ("0", "1", "2")  # 0: as many as there are
PLACEMENTS = ("pack", "spread")


def run() -> dict[str, Any]:
    with (
        nodes() as cluster,
        serving(*MODEL, "--engine", "ray", "--address", cluster.address) as address,
        grpc.insecure_channel(address) as channel,
    ):
        stub = GRPCInferenceServiceStub(channel)

        def in_force() -> dict[str, Any]:
            answer = stub.ModelConfig(pb.ModelConfigRequest(name=MODEL[0]), timeout=CHANGE_S)
            shown: dict[str, Any] = json_format.MessageToDict(answer.config, preserving_proto_field_name=True)
            return shown

        def changed(rng: Generator) -> float:
            wanted = randomly_changed(in_force(), rng)
            request = pb.RepositoryModelLoadRequest(model_name=MODEL[0])
            request.parameters["config"].string_param = json.dumps(wanted)
            start_s = time.perf_counter()
            stub.RepositoryModelLoad(request, timeout=CHANGE_S)
            took_s = time.perf_counter() - start_s
            if (shown := in_force()) != wanted:
                raise RuntimeError(f"{wanted} was sent, the server shows {shown}")
            return took_s

        return changes_under_load(address, RATE_PER_S, REACH_S, changed)


def randomly_changed(configuration: dict[str, Any], rng: Generator) -> dict[str, Any]:
    """A model's configuration, as JSON has it, with other knobs that fit into two nodes of two CPUs each."""
    knobs = {knob: int(rng.choice(values)) for knob, values in VALUES.items()}
    nodes = str(rng.choice(NODES if knobs["instances"] <= 2 else ("0", "2")))
    parameters = {
        "INTRA_OP_THREAD_COUNT": str(knobs["intra_op_threads"]),
        "INTER_OP_THREAD_COUNT": str(knobs["inter_op_threads"]),
        "CLUSTER_NODES": nodes,
        "CLUSTER_PLACEMENT": str(rng.choice(PLACEMENTS)),
    }
    changed = json.loads(json.dumps(configuration))
    changed["max_batch_size"] = knobs["max_batch_size"]
    changed["instance_group"][0]["count"] = knobs["instances"]
    # JSON has these as text, and leaves a nought out.
    delay = str(knobs["max_queue_delay_us"])
    changed["dynamic_batching"] = {"max_queue_delay_microseconds": delay} if delay != "0" else {}
    for name, value in parameters.items():
        changed["parameters"][name] = {"string_value": value}
    return dict(changed)
