"""An operator's questions to a store, over gRPC; and which error an answer's code stands for."""

from __future__ import annotations

from typing import Any

from serving_adapter.model_store.endpoint import Endpoint, bearer
from serving_adapter.model_store.errors import NoRoom, StoreError, StoreUnavailable, UnknownModel

MAX_REPLY_BYTES = 64 << 20

ERRORS: dict[str, type[StoreError]] = {
    "NOT_FOUND": UnknownModel,
    "RESOURCE_EXHAUSTED": NoRoom,
    "UNAVAILABLE": StoreUnavailable,
    "CANCELLED": StoreUnavailable,
    "DEADLINE_EXCEEDED": StoreUnavailable,
}


class OperatorsRpc:
    """The store's gRPC service."""

    def __init__(self, endpoint: Endpoint, token: str | None) -> None:
        import grpc

        from serving_adapter.model_store.protocol.model_store_pb2_grpc import ModelStoreStub

        options = [("grpc.max_receive_message_length", MAX_REPLY_BYTES)]
        self._channel = grpc.insecure_channel(f"unix:{endpoint.rpc}", options)
        self._stub = ModelStoreStub(self._channel)
        self._metadata = bearer(token)
        self._error = grpc.RpcError

    def __call__(self, method: str, request: Any, timeout_s: float) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s, metadata=self._metadata)
        except self._error as error:
            kind = ERRORS.get(error.code().name, StoreError)
            raise kind(error.details() or f"the store failed with {error.code().name}") from None

    def close(self) -> None:
        self._channel.close()
