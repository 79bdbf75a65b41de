"""Tells a reader when requests came. `serving_adapter.recent_arrivals` says how both talk."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from serving_adapter.recent_arrivals import CALL, SERVICE, pack_answer, unpack_question
from serving_adapter.sentences import bounded
from serving_adapter.server.served_model import ServedModel


def arrivals_handler(models: Mapping[str, ServedModel]) -> grpc.GenericRpcHandler:
    """Answers the one call of the service, which reads and changes nothing."""

    async def since(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        try:
            question = unpack_question(data)
        except ValueError as error:
            return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, bounded(str(error)))
        model = models.get(question.model)
        if model is None:
            sentence = bounded(f"unknown model {question.model!r}")
            return await context.abort(grpc.StatusCode.NOT_FOUND, sentence)
        return pack_answer(model.statistics.arrivals.since(question.known, model.surroundings.now_ns()))

    return grpc.method_handlers_generic_handler(SERVICE, {CALL: grpc.unary_unary_rpc_method_handler(since)})
