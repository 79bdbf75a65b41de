"""A model of a running server, as its clients see it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from tests.support.waiting import until

LONG_S = 120.0  # a loaded machine takes its time


def without_preferred_sizes(config: ModelConfig) -> ModelConfig:
    """Triton itself adds the largest batch to the preferred sizes where none fits."""
    config.dynamic_batching.ClearField("preferred_batch_size")
    return config


class Served:
    """The view; `log` is Triton's, and None for our own server."""

    def __init__(self, address: str, metrics_url: str, model: str, log: Path | None = None) -> None:
        self.address, self.metrics_url, self.model, self.log = address, metrics_url, model, log
        self.is_triton = log is not None
        self._channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        self.stub = GRPCInferenceServiceStub(self._channel)

    def config(self) -> ModelConfig:
        return self.stub.ModelConfig(messages.ModelConfigRequest(name=self.model)).config

    def load(self, config: ModelConfig) -> None:
        request = messages.RepositoryModelLoadRequest(model_name=self.model)
        request.parameters["config"].string_param = json_format.MessageToJson(config)
        self.stub.RepositoryModelLoad(request, timeout=LONG_S)

    def infer(
        self, value: float = 1.0, sequence: int = 0, start: bool = False, end: bool = False, items: int = 1
    ) -> None:
        """One request, until it is answered and counted: Triton counts it a moment after it answers."""
        requests, executions = self.completed(), self.executions()
        self.request(value, sequence, start, end, items)
        until(lambda: self.completed() > requests and self.executions() > executions)

    def request(
        self, value: float = 1.0, sequence: int = 0, start: bool = False, end: bool = False, items: int = 1
    ) -> None:
        request = messages.ModelInferRequest(model_name=self.model)
        tensor = request.inputs.add(name="x", datatype="FP32", shape=[items, 16])
        tensor.contents.fp32_contents.extend([value] * 16 * items)
        if sequence:
            request.parameters["sequence_id"].int64_param = sequence
            request.parameters["sequence_start"].bool_param = start
            request.parameters["sequence_end"].bool_param = end
        self.stub.ModelInfer(request, timeout=LONG_S)

    def completed(self) -> int:
        """Requests, by the server's statistics."""
        return sum(stats.inference_stats.success.count for stats in self._statistics())

    def executions(self) -> int:
        """Batches, by the server's statistics."""
        return sum(stats.execution_count for stats in self._statistics())

    def batch_sizes(self) -> set[int]:
        """Of the batches since the model was loaded."""
        return {batch.batch_size for stats in self._statistics() for batch in stats.batch_stats}

    def started_instances(self) -> int:
        """How many processes of models Triton has started so far, by its log."""
        assert self.log is not None
        return self.log.read_text(errors="replace").count("TRITONBACKEND_ModelInstanceInitialize: ")

    def close(self) -> None:
        self._channel.close()

    def _statistics(self) -> Iterable[messages.ModelStatistics]:
        """Of each version."""
        statistics: Iterable[messages.ModelStatistics] = self.stub.ModelStatistics(
            messages.ModelStatisticsRequest(name=self.model)
        ).model_stats
        return statistics
