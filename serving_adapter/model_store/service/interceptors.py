"""What every call over gRPC goes through before the service sees it.

gRPC answers a request that it cannot parse, and a method that raises, with the program's own words.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from serving_adapter.model_store.endpoint import bearer
from serving_adapter.model_store.service.refusals import refusal

Continuation = Callable[[Any], Awaitable[Any]]


class TokenRequired(grpc.aio.ServerInterceptor):
    """Refuses calls without the token, those that need no session (`List`, `Stats`, ...) included."""

    def __init__(self, token: str) -> None:
        self._expected = bearer(token)[0]

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        given = dict(details.invocation_metadata or ()).get(self._expected[0], "")
        if isinstance(given, str) and hmac.compare_digest(given.encode(), self._expected[1].encode()):
            return await continuation(details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: grpc.aio.ServicerContext) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the store wants another token; set RRL_STORE_TOKEN")


class RefusedInSentences(grpc.aio.ServerInterceptor):
    """Turns the errors of a call into a code and a sentence, and so refuses bytes that are no message."""

    async def intercept_service(self, continuation: Continuation, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler

        def parsed(data: bytes) -> Any:
            try:
                return handler.request_deserializer(data)
            except DecodeError as error:
                return error

        async def answered(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                if isinstance(request, DecodeError):
                    raise ValueError(f"these bytes are no message for {details.method}")
                return await handler.unary_unary(request, context)
            except Exception as error:
                refused = refusal(error, details.method)
            return await context.abort(refused.code, refused.sentence)

        return grpc.unary_unary_rpc_method_handler(answered, parsed, handler.response_serializer)
