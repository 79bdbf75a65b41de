"""From a request to its answer, whichever way it came: gRPC and HTTP read the one and write the other."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple

import grpc
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.protocol.inference_request import (
    RequestOptions,
    read_inputs,
    read_options,
    wanted_outputs,
)
from serving_adapter.server.protocol.named_models import Models, open_model
from serving_adapter.server.protocol.received import InferenceMessage
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.protocol.sent import LARGE_BYTES
from serving_adapter.server.protocol.unread_answers import UnreadAnswers
from serving_adapter.server.requests import EXACT, Answer, HoldsAnswer, InputTensor, OutputTensor
from serving_adapter.server.served_model import MODEL_VERSION, ServedModel


class InferAnswer(NamedTuple):
    """What an inference request is answered."""

    response: pb.ModelInferResponse  # without its outputs
    outputs: list[OutputTensor]


class Inference:
    """Answers inference requests; what it raises, `as_refused` makes a refusal of."""

    def __init__(self, models: Models, unread: UnreadAnswers) -> None:
        self._models, self._unread = models, unread

    async def infer(self, message: InferenceMessage, call: grpc.aio.ServicerContext) -> InferAnswer:
        request = message.request
        model = open_model(self._models, request.model_name, request.model_version)
        options, wanted = read_options(request, model), wanted_outputs(request, model)
        inputs = read_inputs(message, model)
        if message.size_bytes >= LARGE_BYTES:  # it has just been copied, and a batch will
            await asyncio.sleep(0)
        answer = await _within_timeout(model, inputs, options, wanted, partial(self._unread.hold, call))
        response = pb.ModelInferResponse(model_name=model.name, model_version=MODEL_VERSION, id=request.id)
        if answer.origin != EXACT:
            response.parameters[answer.origin].bool_param = True
        return InferAnswer(response, answer.outputs)


async def _within_timeout(
    model: ServedModel,
    inputs: list[InputTensor],
    options: RequestOptions,
    wanted: list[str],
    hold_answer: HoldsAnswer,
) -> Answer:
    answering = model.infer(inputs, options.accepts_approximation, wanted, hold_answer, options.priority)
    if not options.timeout_us:
        return await answering
    try:
        async with asyncio.timeout(1e-6 * options.timeout_us):
            return await answering
    except TimeoutError:
        sentence = f"there was no answer within the request's timeout of {options.timeout_us} us"
        raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, sentence) from None
