"""What an exported file says about rows and sizes bounds requests and configurations."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import grpc
import pytest
import torch
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from envs.target_space import default_space
from serving_adapter.target import OpenInferenceTarget, TargetError


class Sums(torch.nn.Module):
    def forward(self, x):
        return x.sum(1, keepdim=True)


@pytest.fixture(scope="module")
def sums(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "sums.pt2"
    shapes = {"x": {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("length", max=50)}}
    torch.export.save(torch.export.export(Sums().eval(), (torch.ones(4, 5),), dynamic_shapes=shapes), path)
    path.with_suffix(".inputs.json").write_text('[{"name": "x", "datatype": "FP32", "shape": [-1]}]')
    return path


def request(rows: int, length: int) -> pb.ModelInferRequest:
    asked = pb.ModelInferRequest(model_name="sums")
    asked.inputs.add(name="x", datatype="FP32", shape=[rows, length])
    asked.raw_input_contents.append(bytes(4 * rows * length))
    return asked


def load(**fields: object) -> pb.RepositoryModelLoadRequest:
    asked = pb.RepositoryModelLoadRequest(model_name="sums")
    asked.parameters["config"].string_param = json.dumps(fields)
    return asked


def test_a_served_export_keeps_to_its_limits_and_tells_them(start_server, sums):
    server = start_server("--model", sums)
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        config = stub.ModelConfig(pb.ModelConfigRequest(name="sums")).config
        told = {name: value.string_value for name, value in config.parameters.items() if "LIMIT" in name}
        assert told == {"LIMIT_MAX_BATCH_SIZE": "8", "LIMIT_SIZE_x": "50"}
        stub.RepositoryModelLoad(load(max_batch_size=8), timeout=60)
        assert list(stub.ModelInfer(request(8, 50), timeout=60).outputs[0].shape) == [8, 1]
        for call, asked, says in (
            (stub.ModelInfer, request(9, 50), r"the batch, at most 8\)"),
            (stub.ModelInfer, request(8, 51), "may be at most 50 long, got 51"),
            (stub.RepositoryModelLoad, load(max_batch_size=9), "max_batch_size=9 is above the 8 rows"),
        ):
            with pytest.raises(grpc.RpcError, match=says) as refused:
                call(asked, timeout=60)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert stub.ModelConfig(pb.ModelConfigRequest(name="sums")).config.max_batch_size == 8
    with closing(OpenInferenceTarget(server.address)) as target:
        target.connect()
        assert target.knobs()["max_batch_size"] == (1, 8)
        assert default_space(target.knobs(), cores=1).to_json()["max_batch_size"] == [1, 2, 4, 8]
        calls = target.calls["RepositoryModelLoad"]
        with pytest.raises(TargetError, match="max_batch_size must be from 1 to 8, got 9"):
            target.apply({"max_batch_size": 9})
        assert target.calls["RepositoryModelLoad"] == calls, "the server was not asked"
