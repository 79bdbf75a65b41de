"""`grpc.health.v1.Health/Check`, by which Kubernetes, Envoy and `grpc-health-probe` ask any gRPC server.

| a check of | is SERVING while |
|---|---|
| `""`, the protocol's service | every model can answer: as ServerReady |
| a model's name | that model can: as ModelReady |

The messages of `grpc.health.v1` have one field each, so those of protobuf's own wrappers are the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.methods import SERVICE as PROTOCOL
from serving_adapter.server.protocol.received import reader
from serving_adapter.server.protocol.refusals import Refused, answers, not_implemented
from serving_adapter.server.served_model import ServedModel

SERVICE, CHECK, WATCH = "grpc.health.v1.Health", "Check", "Watch"
SERVING, NOT_SERVING = 1, 2
NO_WATCH = "this server has no Watch: ask again with Check"


class HealthService:
    """Tells whether somebody can answer, from the first moment on."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    @answers
    async def check(self, request: StringValue, context: grpc.aio.ServicerContext) -> Message:
        asked = request.value
        if asked in ("", PROTOCOL.full_name):
            is_ready = all(model.ready for model in self._models.values())
        elif asked in self._models:
            is_ready = self._models[asked].ready
        else:
            sentence = f"unknown service {asked!r}; ask for a model by its name, or for all with an empty one"
            raise Refused(grpc.StatusCode.NOT_FOUND, sentence)
        return Int32Value(value=SERVING if is_ready else NOT_SERVING)


def health_handler(models: Mapping[str, ServedModel], awaited: AwaitedRequests) -> grpc.GenericRpcHandler:
    """Answers checks; whoever wants to watch is told to check, as gRPC's clients then do without."""
    check = awaited.handler(HealthService(models).check, reader(StringValue), Int32Value.SerializeToString)
    handlers = {CHECK: check, WATCH: not_implemented(NO_WATCH)}
    return grpc.method_handlers_generic_handler(SERVICE, handlers)
