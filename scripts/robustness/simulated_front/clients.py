"""Callers of the real servicer: they wait, give up when their time is over, and check what they get."""

from __future__ import annotations

import asyncio
import random
from enum import StrEnum
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb

from scripts.robustness.simulated_front.checked_models import CheckedModel, draw_rows, inputs_of, wrong_with
from scripts.robustness.simulated_front.connection import MODEL, Aborted, SimulatedConnection
from scripts.robustness.simulated_front.scenario import SimulatedRequest
from serving_adapter.codecs import CODECS
from serving_adapter.server.requests import BACKUP, DEFAULT, EXACT, RECONSTRUCTED


class CallEnding(StrEnum):
    ANSWERED, REFUSED, FAILED, GAVE_UP = "answered", "refused", "failed", "gave up"


class SimulatedClient:
    """One request from its sending to its end."""

    def __init__(
        self, number: int, model: CheckedModel, request: SimulatedRequest, draw: random.Random
    ) -> None:
        self.number, self.request = number, request
        self.asked = draw_rows(draw, model, number, request.rows, request.deed)
        self.message = _message(number, model, self.asked, request)
        self.ending: CallEnding | None = None
        self.origin = ""
        self.error: Aborted | None = None
        self.wrong = ""  # what is wrong with the answer
        self.sent_step = self.gave_up_step = self.ended_step = 0
        self.was_taken, self.sent_at_s = False, 0.0
        self.losses = 0  # workers that ended with its rows
        self.reached = 0  # batches with its rows that reached a worker

    async def call(self, connection: SimulatedConnection) -> None:
        loop: Any = asyncio.get_running_loop()
        self.sent_step = loop.steps
        calling = asyncio.ensure_future(connection.call("ModelInfer", self.message))
        patience_s = self.request.gives_up_after_s
        timer = None if patience_s is None else loop.call_later(patience_s, self._give_up, loop, calling)
        try:
            response = await calling
            self.origin, self.ending = _origin(response), CallEnding.ANSWERED
            self.wrong = wrong_with(_arrays(response), self.asked, self.origin)
            if self.request.exact and self.origin != EXACT:
                self.wrong = f"it is {self.origin}, but the client asked for an exact one"
            if response.id != str(self.number):
                self.wrong = f"it has the id {response.id!r}"
        except Aborted as aborted:
            refused = aborted.code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
            self.ending = CallEnding.REFUSED if refused else CallEnding.FAILED
            self.error = aborted
        except asyncio.CancelledError:
            self.ending = CallEnding.GAVE_UP
        finally:
            self.ended_step = loop.steps
            if timer is not None:
                timer.cancel()

    def _give_up(self, loop: Any, calling: asyncio.Future[Any]) -> None:
        self.gave_up_step = loop.steps
        calling.cancel()


def _message(
    number: int, model: CheckedModel, asked: np.ndarray, request: SimulatedRequest
) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=MODEL, id=str(number))
    for spec, array in zip(model.inputs, inputs_of(model, asked), strict=True):
        message.inputs.add(name=spec.name, datatype=spec.datatype, shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    if request.exact:
        message.parameters["exact"].bool_param = True
    if request.priority:
        message.parameters["priority"].uint64_param = request.priority
    return message


def _origin(response: pb.ModelInferResponse) -> str:
    for origin in (RECONSTRUCTED, BACKUP, DEFAULT):
        if origin in response.parameters:
            return origin
    return EXACT


def _arrays(response: pb.ModelInferResponse) -> dict[str, np.ndarray]:
    return {
        output.name: CODECS[output.datatype].array(raw, output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }
