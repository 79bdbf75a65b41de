"""The methods of the protocol as gRPC calls them: those that the server has, else a sentence."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.received import inference_reader, reader
from serving_adapter.server.protocol.refusals import not_implemented
from serving_adapter.server.protocol.stream_room import StreamRoom
from serving_adapter.server.protocol.streams import InferenceStreams

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
INFER, STREAM_INFER = "ModelInfer", "ModelStreamInfer"

NO_SHARED_MEMORY = "there is no shared memory with clients; send tensors in raw_input_contents"
INSTEAD = {
    "TraceSetting": "there is no tracing; the metrics page has distributions of the times",
    "LogSettings": "the log has one level; it goes to standard error",
} | {
    f"{kind}SharedMemory{what}": NO_SHARED_MEMORY
    for kind in ("System", "Cuda")
    for what in ("Status", "Register", "Unregister")
}
"""What is to be said of a method that the server does not have."""


def protocol_handler(
    service: Any, max_message_bytes: int, awaited: AwaitedRequests, room: StreamRoom
) -> grpc.GenericRpcHandler:
    """Answers every method of the protocol with the method of `service` that has its name."""
    handlers = {
        method.name: _handler(method, service, max_message_bytes, awaited, room) for method in SERVICE.methods
    }
    return grpc.method_handlers_generic_handler(SERVICE.full_name, handlers)


def _handler(
    method: MethodDescriptor,
    service: Any,
    max_message_bytes: int,
    awaited: AwaitedRequests,
    room: StreamRoom,
) -> grpc.RpcMethodHandler:
    behaviour = getattr(service, method.name, None)
    if method.name == STREAM_INFER:
        return InferenceStreams(service.ModelInfer, room).handler(inference_reader(max_message_bytes))
    if behaviour is None:
        instead = INSTEAD.get(method.name, "it is not supported")
        return not_implemented(f"this server has no {method.name}: {instead}")
    if method.name == INFER:  # its answer comes serialised
        return awaited.handler(behaviour, inference_reader(max_message_bytes), bytes)
    read = reader(message_factory.GetMessageClass(method.input_type))
    answer = message_factory.GetMessageClass(method.output_type)
    return awaited.handler(behaviour, read, answer.SerializeToString)
