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
        super().__init__(sentence)
        self.code = code


class CallRefused(Exception):
    """What `abort` of a call raises where gRPC does not end it: over HTTP, and within a stream."""

    def __init__(self, code: grpc.StatusCode, sentence: str) -> None:
        super().__init__(sentence)
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
        except Refused as refused:
            code, sentence = refused.code, str(refused)
        except Overloaded as full:
            code, sentence = grpc.StatusCode.RESOURCE_EXHAUSTED, str(full)
        except (InferenceFailed, ModelFailed) as failed:
            code, sentence = grpc.StatusCode.INTERNAL, str(failed)
        except Exception as error:
            log.exception("a call of %s failed by a fault of the server", method.__name__)
            code = grpc.StatusCode.INTERNAL
            sentence = f"a fault of the server ({error!r}); its log says more, please report it"
        return await context.abort(code, bounded(sentence))

    return answer


def not_implemented(sentence: str) -> grpc.RpcMethodHandler:
    """Handles a method that the server does not have, whatever is sent to it."""

    async def refuse(requests: Any, context: grpc.aio.ServicerContext) -> Any:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, sentence)

    return grpc.stream_stream_rpc_method_handler(refuse)
