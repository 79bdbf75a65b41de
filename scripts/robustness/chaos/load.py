"""Clients that send without pause for breath, check every answer, and count what came of each request."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from scripts.robustness.chaos.checked_model import NAME, WIDTH, expected
from scripts.robustness.chaos.server import ChaosServer

PATIENCE_S = 60.0  # a request without answer or error after so long is lost
MEAN_PAUSE_S = 0.06
IMPATIENT_SHARE, IMPATIENCE_S = 0.03, (0.002, 0.05)
EXACT_SHARE = 0.3
PAUSE_WHILE_AWAY_S = 0.2
RETRY_BOUND = "workers ended while they ran"
CHANNEL = (("grpc.max_reconnect_backoff_ms", 500), ("grpc.initial_reconnect_backoff_ms", 100))
FAULTS_KEPT = 20


class ChaosTally:
    """What came of the requests; `faults` has sentences of what should not have been."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.origins: Counter[str] = Counter()
        self.faults: list[str] = []
        self.slowest_s = 0.0

    def fault(self, kind: str, sentence: str) -> None:
        self.counts[kind] += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(f"{kind}: {sentence}")
            print(self.faults[-1], flush=True)

    @property
    def sent(self) -> int:
        return self.counts["sent"]


class ChaosLoad:
    """Some clients of the server, each with one request at a time."""

    def __init__(self, server: ChaosServer, tally: ChaosTally, clients: int, seed: int) -> None:
        self._server, self._tally = server, tally
        self._channel = grpc.aio.insecure_channel(server.address, options=CHANNEL)
        self.stub: Any = GRPCInferenceServiceStub(self._channel)
        self._draws = [random.Random(f"client {i} of {seed}") for i in range(clients)]
        self._stopping = False
        self._numbers = 0

    async def run(self) -> None:
        """Until `stop`; every request sent has its end then."""
        await asyncio.gather(*map(self._client, self._draws))
        await self._channel.close()

    def stop(self) -> None:
        self._stopping = True

    async def _client(self, draw: random.Random) -> None:
        while not self._stopping:
            await asyncio.sleep(draw.expovariate(1 / MEAN_PAUSE_S))
            while not self._server.is_up:
                await asyncio.sleep(PAUSE_WHILE_AWAY_S)
            self._numbers += 1
            await self._request(draw, self._numbers)

    async def _request(self, draw: random.Random, number: int) -> None:
        x = np.array(
            [[draw.randrange(1 << 20) for _ in range(WIDTH)] for _ in range(draw.randint(1, 4))], float
        )
        x[:, 0], x[:, 1] = number, np.arange(len(x))
        exact = draw.random() < EXACT_SHARE
        request = pb.ModelInferRequest(model_name=NAME, id=str(number), raw_input_contents=[x.tobytes()])
        request.inputs.add(name="x", datatype="FP64", shape=x.shape)
        if exact:
            request.parameters["exact"].bool_param = True
        hurried = draw.random() < IMPATIENT_SHARE
        patience_s = draw.uniform(*IMPATIENCE_S) if hurried else PATIENCE_S
        self._tally.counts["sent"] += 1
        began_s = time.monotonic()
        try:
            response = await self.stub.ModelInfer(request, timeout=patience_s)
        except grpc.aio.AioRpcError as error:
            self._failed(number, error, hurried, began_s)
            return
        self._tally.slowest_s = max(self._tally.slowest_s, time.monotonic() - began_s)
        wrong = wrong_with(response, x, exact, number)
        self._tally.counts["answered"] += 1
        self._tally.origins[_origin(response)] += 1
        if wrong:
            self._tally.fault("wrong", f"request {number}: {wrong}")

    def _failed(self, number: int, error: grpc.aio.AioRpcError, hurried: bool, began_s: float) -> None:
        code, sentence = error.code(), error.details() or ""
        if self._server.was_away(began_s, time.monotonic()):
            self._tally.counts["failed while the server was away"] += 1
        elif code == grpc.StatusCode.DEADLINE_EXCEEDED and hurried:
            self._tally.counts["given up"] += 1
        elif code == grpc.StatusCode.DEADLINE_EXCEEDED:
            self._tally.fault("lost", f"request {number} had no end after {PATIENCE_S:g} s")
        elif RETRY_BOUND in sentence:
            self._tally.counts["failed after three workers"] += 1
        else:
            self._tally.fault("failed", f"request {number}: {code.name}: {sentence}")


def _origin(response: pb.ModelInferResponse) -> str:
    return next(iter(response.parameters), "model")


def wrong_with(response: pb.ModelInferResponse, x: np.ndarray, exact: bool, number: int) -> str:
    """What is wrong with an answer, in a sentence; empty where it is that of its request."""
    if response.id != str(number):
        return f"the answer has the id {response.id!r}"
    if exact and response.parameters:
        return f"an exact answer was asked for, but this one is {_origin(response)}"
    right = expected(x)
    if [output.name for output in response.outputs] != list(right):
        return f"the outputs are {[output.name for output in response.outputs]}"
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        given, wanted = np.frombuffer(raw), right[output.name]
        if given.size != wanted.size or tuple(output.shape) != wanted.shape:
            return f"{output.name} has the shape {list(output.shape)}, not {list(wanted.shape)}"
        same = np.allclose if response.parameters else np.array_equal
        if not same(given.reshape(wanted.shape), wanted):
            return f"{output.name} is {given.tolist()}, not {wanted.tolist()}"
    return ""
