"""A weights file that is replaced while a server serves it."""

import grpc
import numpy as np
import psutil
import torch
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter.models.classifiers import network
from serving_adapter.models.loading import load_model
from serving_adapter.models.weights_files import save_weights
from tests.support.waiting import until


def test_workers_of_other_weights_than_at_the_start_are_told_of(start_server, tmp_path, capfd):
    net = network(load_model("mlp", {"size": "2"}).module)
    file = tmp_path / "digits.safetensors"
    save_weights(file, net, "mlp", {"size": "2"})
    server = start_server("--model", file, "--intra-op-threads", 1)
    with grpc.insecure_channel(server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        (wanted,) = stub.ModelMetadata(pb.ModelMetadataRequest(name="digits")).inputs
        request = pb.ModelInferRequest(model_name="digits")
        request.inputs.add(name=wanted.name, datatype="FP32", shape=[1, *wanted.shape[1:]])
        request.raw_input_contents.append(np.ones([1, *wanted.shape[1:]], np.float32).tobytes())
        (before,) = stub.ModelInfer(request, timeout=60).raw_output_contents

        with torch.no_grad():
            for weights in net.parameters():
                weights.mul_(3)
        save_weights(file, net, "mlp", {"size": "2"})
        assert stub.ModelInfer(request, timeout=60).raw_output_contents == [before]

        (zygote,) = psutil.Process(server.process.pid).children()
        zygote.kill()
        until(lambda: stub.ModelInfer(request, timeout=60).raw_output_contents != [before])
    server.stop()
    assert f"{file} was written since the server built the model" in capfd.readouterr().err
