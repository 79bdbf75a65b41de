"""Calls of the server's methods without a network: from bytes to bytes, as gRPC makes them."""

from __future__ import annotations

from typing import Any, NamedTuple

import grpc
from google.protobuf import message_factory
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.methods import SERVICE, protocol_handler
from serving_adapter.server.protocol.servicer import InferenceService
from serving_adapter.server.protocol.stream_room import StreamRoom

MODEL = "simulated"
MAX_MESSAGE_BYTES = 1 << 20
MAX_CALLS = 1 << 20


class Aborted(Exception):
    """The status that a call ends with."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(f"{code.name}: {sentence}")
        self.code, self.sentence = code, sentence


class SimulatedContext:
    """What the servicer needs of a call."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def peer(self) -> str:
        return "simulated"

    async def read(self) -> Any:
        return self._request

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        raise Aborted(code, details)

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[tuple[str, str], ...] = ()


class SimulatedConnection:
    """The methods of a server, by name."""

    def __init__(self, service: InferenceService) -> None:
        awaited, room = AwaitedRequests(MAX_CALLS), StreamRoom(MAX_CALLS, MAX_CALLS)
        handler = protocol_handler(service, MAX_MESSAGE_BYTES, awaited, room)
        self._methods: dict[str, Any] = {
            method.name: handler.service(_Details(f"/{SERVICE.full_name}/{method.name}"))
            for method in SERVICE.methods
        }

    async def call(self, name: str, request: Message) -> Any:
        """The answer; Aborted for an error."""
        method = self._methods[name]
        context = SimulatedContext(method.request_deserializer(request.SerializeToString()))
        answer = method.response_serializer(await method.stream_unary(None, context))
        return message_factory.GetMessageClass(SERVICE.methods_by_name[name].output_type).FromString(answer)

    async def config(self) -> Any:
        return (await self.call("ModelConfig", pb.ModelConfigRequest(name=MODEL))).config
