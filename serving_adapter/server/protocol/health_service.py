"""`grpc.health.v1.Health`, by which Kubernetes, Envoy and `grpc-health-probe` ask any gRPC server.

| Check or Watch of | is SERVING while |
|---|---|
| `""`, the protocol's service | every model can answer: as ServerReady |
| a model's name | that model can: as ModelReady |

The messages of `grpc.health.v1` have one field each, so those of protobuf's own wrappers are the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc
from google.protobuf.message import Message
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.methods import SERVICE as PROTOCOL
from serving_adapter.server.protocol.received import reader
from serving_adapter.server.protocol.refusals import Refused, answers
from serving_adapter.server.protocol.stream_room import StreamRoom
from serving_adapter.server.served_model import ServedModel

SERVICE, CHECK, WATCH = "grpc.health.v1.Health", "Check", "Watch"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
WATCH_EVERY_S = 1.0


class HealthService:
    """Tells whether somebody can answer, from the first moment on."""

    def __init__(self, models: Mapping[str, ServedModel], room: StreamRoom) -> None:
        self._models, self._room = models, room

    @answers
    async def check(self, request: StringValue, context: grpc.aio.ServicerContext) -> Message:
        status = self._status(request.value)
        if status == SERVICE_UNKNOWN:
            asked = request.value
            sentence = f"unknown service {asked!r}; ask for a model by its name, or for all with an empty one"
            raise Refused(grpc.StatusCode.NOT_FOUND, sentence)
        return Int32Value(value=status)

    async def watch(
        self, request: StringValue | Refused, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Message]:
        """The status, and each one that follows, to NOT_SERVING where the server drains."""
        if isinstance(request, Refused):
            await context.abort(request.code, str(request))
            return
        async with self._room.place(context):
            told = 0
            while True:
                if (status := self._status(request.value)) != told:
                    told = status
                    yield Int32Value(value=status)
                if self._room.is_draining:
                    return
                await self._room.unless_draining(asyncio.sleep(WATCH_EVERY_S))

    def _status(self, asked: str) -> int:
        if asked in ("", PROTOCOL.full_name):
            is_ready = all(model.ready for model in self._models.values())
        elif asked in self._models:
            is_ready = self._models[asked].ready
        else:
            return SERVICE_UNKNOWN
        return SERVING if is_ready else NOT_SERVING


def health_handler(
    models: Mapping[str, ServedModel], awaited: AwaitedRequests, room: StreamRoom
) -> grpc.GenericRpcHandler:
    """Answers checks, and watches as many as there is room for."""
    service, read, write = HealthService(models, room), reader(StringValue), Int32Value.SerializeToString
    handlers = {
        CHECK: awaited.handler(service.check, read, write),
        WATCH: awaited.stream_handler(service.watch, read, write),
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)
