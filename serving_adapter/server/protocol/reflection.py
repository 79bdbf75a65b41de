"""Reflection: tools such as `grpcurl` ask a server for the protocol that it speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.reflection import ReflectionServicer

from serving_adapter.server.protocol.received import reader
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.protocol.stream_room import StreamRoom

SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""Both have the same messages; tools ask for either."""

CALL = "ServerReflectionInfo"


def reflection_handlers(told: tuple[str, ...], room: StreamRoom) -> tuple[grpc.GenericRpcHandler, ...]:
    """Answers what the services that are `told` look like."""
    servicer = ReflectionServicer((*told, *SERVICES))

    async def answer(_: object, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        async with room.place(context):
            while (request := await room.unless_draining(context.read())) not in (None, grpc.aio.EOF):
                if isinstance(request, Refused):
                    await context.abort(request.code, str(request))
                for response in servicer.ServerReflectionInfo(iter([request]), context):
                    yield response

    handler = grpc.stream_stream_rpc_method_handler(
        answer,
        reader(reflection_pb2.ServerReflectionRequest),
        reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return tuple(grpc.method_handlers_generic_handler(service, {CALL: handler}) for service in SERVICES)
