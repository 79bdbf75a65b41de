"""The Open Inference Protocol with Triton's statistics, model-configuration and model-repository extensions.

It only translates, between protobuf messages and `ServedModel` and between errors and gRPC status codes.
"""

from __future__ import annotations

import asyncio
import hmac
from importlib import metadata

import grpc
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from serving_adapter import model_configuration
from serving_adapter.control_key import CONTROL_KEY_HEADER
from serving_adapter.lease import EXTENSION as LEASE_EXTENSION
from serving_adapter.recent_arrivals import EXTENSION
from serving_adapter.server.protocol.inference import Inference
from serving_adapter.server.protocol.loads import Load
from serving_adapter.server.protocol.named_models import known_model, open_model
from serving_adapter.server.protocol.overrides import model_config
from serving_adapter.server.protocol.received import InferenceMessage
from serving_adapter.server.protocol.refusals import Refused, answers, invalid
from serving_adapter.server.protocol.sent import LARGE_BYTES, response_bytes
from serving_adapter.server.protocol.statistics_message import statistics_message
from serving_adapter.server.protocol.unread_answers import UnreadAnswers
from serving_adapter.server.served_model import MODEL_VERSION, ServedModel
from serving_adapter.tensors import TensorSpec

try:
    SERVER_VERSION = metadata.version("rrl-tune")
except metadata.PackageNotFoundError:  # run from a checkout that was never installed
    SERVER_VERSION = "unknown"


class InferenceService:
    """Answers every call of the protocol about the models of this server."""

    def __init__(
        self,
        models: dict[str, ServedModel],
        *,
        metrics_port: int,
        http_port: int | None = None,
        max_unread_bytes: int,
        control_key: str | None = None,
        load: Load,
    ) -> None:
        """`load` does what a load asks for: here, or on every front."""
        self._models = models
        self.inference = Inference(models, UnreadAnswers(max_unread_bytes))
        self._control_key = control_key
        self._load = load
        self._extensions = [
            "statistics",
            "model_configuration",
            "model_repository",
            "binary_tensor_data",
            "schedule_policy",
            f"metrics({metrics_port})",
            EXTENSION,
            LEASE_EXTENSION,
        ]
        if http_port is not None:
            self._extensions.append(f"http({http_port})")

    # --- health and metadata -------------------------------------------------------------------------

    @answers
    async def ServerLive(self, request: pb.ServerLiveRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ServerLiveResponse(live=True)

    @answers
    async def ServerReady(self, request: pb.ServerReadyRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ServerReadyResponse(ready=all(model.ready for model in self._models.values()))

    @answers
    async def ModelReady(self, request: pb.ModelReadyRequest, context: grpc.aio.ServicerContext) -> Message:
        return pb.ModelReadyResponse(ready=known_model(self._models, request.name, request.version).ready)

    @answers
    async def ServerMetadata(
        self, request: pb.ServerMetadataRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        return pb.ServerMetadataResponse(
            name=model_configuration.SERVER_NAME, version=SERVER_VERSION, extensions=self._extensions
        )

    @answers
    async def ModelMetadata(
        self, request: pb.ModelMetadataRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        model = open_model(self._models, request.name, request.version)
        tensor = pb.ModelMetadataResponse.TensorMetadata

        def described(specs: dict[str, TensorSpec]) -> list[Message]:
            return [tensor(name=s.name, datatype=s.datatype, shape=[-1, *s.shape]) for s in specs.values()]

        return pb.ModelMetadataResponse(
            name=model.name,
            versions=[MODEL_VERSION],
            platform="pytorch",
            inputs=described(model.inputs),
            outputs=described(model.outputs),
        )

    # --- inference -----------------------------------------------------------------------------------

    @answers
    async def ModelInfer(self, message: InferenceMessage, context: grpc.aio.ServicerContext) -> bytes:
        """The answer comes serialised."""
        data = response_bytes(*await self.inference.infer(message, context))
        if len(data) >= LARGE_BYTES:
            await asyncio.sleep(0)
        return data

    # --- statistics ----------------------------------------------------------------------------------

    @answers
    async def ModelStatistics(
        self, request: pb.ModelStatisticsRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        if request.version and not request.name:
            raise invalid(f"version {request.version!r} is of no model; name the model too, or leave it out")
        named = [request.name] if request.name else self._models
        models = [known_model(self._models, name, request.version) for name in named]
        return pb.ModelStatisticsResponse(model_stats=[statistics_message(model) for model in models])

    # --- configuration and control -------------------------------------------------------------------

    @answers
    async def ModelConfig(self, request: pb.ModelConfigRequest, context: grpc.aio.ServicerContext) -> Message:
        model = open_model(self._models, request.name, request.version)
        return pb.ModelConfigResponse(config=model_config(model))

    @answers
    async def RepositoryIndex(
        self, request: pb.RepositoryIndexRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        _check_repository(request)
        index = pb.RepositoryIndexResponse
        return index(
            models=[
                index.ModelIndex(
                    name=m.name, version=MODEL_VERSION, state="READY" if m.ready else "UNAVAILABLE"
                )
                for m in self._models.values()
                if m.ready or not request.ready
            ]
        )

    @answers
    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        self._check_control_key(context)
        _check_repository(request)
        await self._load(request)
        return pb.RepositoryModelLoadResponse()

    @answers
    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: grpc.aio.ServicerContext
    ) -> Message:
        self._check_control_key(context)
        _check_repository(request)
        known_model(self._models, request.model_name)
        raise Refused(
            grpc.StatusCode.UNIMPLEMENTED,
            f"model {request.model_name!r} is served for as long as the server runs; end the server instead",
        )

    def _check_control_key(self, context: grpc.aio.ServicerContext) -> None:
        if self._control_key is None:
            return
        given = dict(context.invocation_metadata() or ()).get(CONTROL_KEY_HEADER, "")
        if not hmac.compare_digest(str(given).encode(), self._control_key.encode()):
            raise Refused(
                grpc.StatusCode.PERMISSION_DENIED,
                "control of this server is locked; send its key (rrl-tune --control-key-file, or the "
                f"metadata {CONTROL_KEY_HEADER})",
            )


def _check_repository(
    request: pb.RepositoryIndexRequest | pb.RepositoryModelLoadRequest | pb.RepositoryModelUnloadRequest,
) -> None:
    if request.repository_name:
        raise invalid(f"models are in no repository {request.repository_name!r}; leave its name out")
