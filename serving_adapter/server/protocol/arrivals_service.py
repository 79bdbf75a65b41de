"""Tells a reader when requests came. `serving_adapter.recent_arrivals` says how both talk."""

from __future__ import annotations

from collections.abc import Mapping

import grpc

from serving_adapter.recent_arrivals import CALL, SERVICE, pack_answer, unpack_question
from serving_adapter.server.protocol.awaited_requests import AwaitedRequests
from serving_adapter.server.protocol.received import check_small
from serving_adapter.server.protocol.refusals import Refused, answers, invalid
from serving_adapter.server.served_model import ServedModel


def arrivals_handler(models: Mapping[str, ServedModel], awaited: AwaitedRequests) -> grpc.GenericRpcHandler:
    """Answers the one call of the service, which reads and changes nothing."""
    since = awaited.handler(ArrivalsService(models).since, None, None)
    return grpc.method_handlers_generic_handler(SERVICE, {CALL: since})


class ArrivalsService:
    """Answers questions about the arrivals of these models."""

    def __init__(self, models: Mapping[str, ServedModel]) -> None:
        self._models = models

    @answers
    async def since(self, data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        check_small(data, "a question about arrivals")
        try:
            question = unpack_question(data)
        except ValueError as error:
            raise invalid(str(error)) from None
        model = self._models.get(question.model)
        if model is None:
            raise Refused(grpc.StatusCode.NOT_FOUND, f"unknown model {question.model!r}")
        return pack_answer(model.statistics.arrivals.since(question.known, model.surroundings.now_ns()))
