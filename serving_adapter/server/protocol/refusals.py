"""How a method of the server says no: a status code and one sentence."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import grpc
from google.protobuf.message import Message

from serving_adapter.sentences import bounded
from serving_adapter.server.answers import InferenceFailed
from serving_adapter.server.requests import Overloaded
from serving_adapter.server.workers.handles import ModelFailed

log = logging.getLogger(__name__)

Method = Callable[[Any, Any, grpc.aio.ServicerContext], Awaitable[Message | bytes]]


class Refused(Exception):
    """A request that gets a status code and one sentence instead of an answer."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(bounded(sentence))
        self.code = code


def invalid(sentence: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, sentence)


def answers(method: Method) -> Method:
    """Turns what a method raises, or what its request was refused with, into the status that clients see."""

    @wraps(method)
    async def answer(self: Any, request: Any, context: grpc.aio.ServicerContext) -> Message | bytes:
        try:
            if isinstance(request, Refused):
                raise request
            return await method(self, request, context)
        except Exception as error:
            refused = as_refused(error, f"a call of {method.__name__}")
        return await context.abort(refused.code, str(refused))

    return answer


def as_refused(error: Exception, what: str) -> Refused:
    """The status and the sentence that a client sees of an error; the log tells `what` failed by a fault."""
    match error:
        case Refused():
            return error
        case Overloaded():
            return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        case InferenceFailed() | ModelFailed():
            return Refused(grpc.StatusCode.INTERNAL, str(error))
    log.error("%s failed by a fault of the server", what, exc_info=error)
    sentence = f"a fault of the server ({error!r}); its log says more, please report it"
    return Refused(grpc.StatusCode.INTERNAL, sentence)


def not_implemented(sentence: str) -> grpc.RpcMethodHandler:
    """Handles a method that the server does not have, whatever is sent to it."""

    async def refuse(requests: Any, context: grpc.aio.ServicerContext) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, sentence)

    return grpc.stream_stream_rpc_method_handler(refuse)
