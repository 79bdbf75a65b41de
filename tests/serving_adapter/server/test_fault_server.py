"""A server into which faults are injected answers every request."""

from __future__ import annotations

import urllib.request

import grpc
import numpy as np
import pytest
import yaml
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub


def request_of(value: float) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="sleep")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.full((1, 16), value, np.float32).tobytes())
    return request


def metric(server, name: str) -> float:
    page = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
    return sum(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(name + "{"))


@pytest.fixture
def server_with(start_server, tmp_path):
    """Starts a server of `sleep` with faults to inject."""

    def start(*arguments: object, **fault: object):
        path = tmp_path / "faults.yaml"
        path.write_text(yaml.safe_dump({"faults": [fault]}))
        return start_server("--model", "sleep", "--model-option", "ms=2", "--faults", path, *arguments)

    return start


def ask_until(server, name: str, least: float) -> None:
    """Sends one request after the other until a counter is there; each must get its own answer."""
    with grpc.insecure_channel(server.address) as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        value = 0.0
        while metric(server, name) < least:
            value += 1
            answer = infer(request_of(value), timeout=60)
            assert np.frombuffer(answer.raw_output_contents[0], np.float32)[0] == value


def test_no_request_fails_though_workers_are_killed(server_with):
    server = server_with("--instances", 2, kind="kill", every_s=0.2)
    ask_until(server, "rrl_worker_replacements", 5)
    assert metric(server, "nv_inference_request_failure") == 0


def test_a_worker_stalled_for_good_is_found_hung_and_replaced(server_with):
    server = server_with("--worker-timeout-s", 0.2, kind="stall", at_s=[0], for_s=1000)
    ask_until(server, "rrl_worker_replacements", 1)
    assert metric(server, "nv_inference_request_failure") == 0
