"""A real gRPC server of the Open Inference Protocol that records what it gets and answers as told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from tritonclient.grpc import model_config_pb2
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)

TENSOR = messages.ModelMetadataResponse.TensorMetadata
Answer = Callable[[int, grpc.ServicerContext], None]  # called with the request's number; may abort or wait


class EchoService(GRPCInferenceServiceServicer):
    def __init__(self, answer: Answer = lambda number, context: None) -> None:
        self.answer = answer
        self.inputs = [TENSOR(name="tokens", datatype="INT64", shape=[-1, -1])]
        self.max_batch_size = 1
        self.models = ["echo"]
        self.ready = True
        self.requests: list[messages.ModelInferRequest] = []
        self.received_s: list[float] = []
        self.peers: set[str] = set()
        self.got_one = threading.Event()
        self._lock = threading.Lock()

    def ServerReady(self, request, context):
        return messages.ServerReadyResponse(ready=self.ready)

    def ModelReady(self, request, context):
        return messages.ModelReadyResponse(ready=self.ready)

    def RepositoryIndex(self, request, context):
        entry = messages.RepositoryIndexResponse.ModelIndex
        return messages.RepositoryIndexResponse(models=[entry(name=n, state="READY") for n in self.models])

    def ModelMetadata(self, request, context):
        return messages.ModelMetadataResponse(name=request.name, inputs=self.inputs)

    def ModelConfig(self, request, context):
        config = model_config_pb2.ModelConfig(name=request.name, max_batch_size=self.max_batch_size)
        return messages.ModelConfigResponse(config=config)

    def ModelInfer(self, request, context):
        with self._lock:
            number = len(self.requests)
            self.requests.append(request)
            self.received_s.append(time.monotonic())
            self.peers.add(context.peer())
        self.got_one.set()
        self.answer(number, context)
        return messages.ModelInferResponse(model_name=request.model_name)


def start(service: GRPCInferenceServiceServicer, address: str = "127.0.0.1:0") -> tuple[grpc.Server, str]:
    server = grpc.server(ThreadPoolExecutor(64))
    add_GRPCInferenceServiceServicer_to_server(service, server)
    port = server.add_insecure_port(address)
    server.start()
    return server, f"127.0.0.1:{port}"


@contextmanager
def serving(service: GRPCInferenceServiceServicer) -> Iterator[str]:
    server, address = start(service)
    try:
        yield address
    finally:
        server.stop(None).wait()
