"""One of the other fronts: it serves by itself, and changes with all of them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Mapping
from functools import partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.fronts import talk
from serving_adapter.server.fronts.agreement import FrontAway
from serving_adapter.server.fronts.orders import FrontOrder
from serving_adapter.server.fronts.talk import Saying, Talk, Word
from serving_adapter.server.kept_tasks import KeptTasks
from serving_adapter.server.protocol.refusals import Refused
from serving_adapter.server.ray_engine import link
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.workers.handles import ModelFailed

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
TRY_AGAIN_S = 1.0


class OtherFront:
    """Follows the first front, from `open` to `close`."""

    collectors = ()

    def __init__(self, order: FrontOrder, models: Mapping[str, ServedModel]) -> None:
        self._order, self._models = order, models
        self._talk: Talk | None = None
        self._where: dict[str, str] = {}  # once it serves
        self._is_leaving = False
        self._tasks = KeptTasks()
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begins with the configurations that the others have."""
        joined = await self._join()
        if joined is None:
            order = self._order
            raise ModelFailed(f"the first front does not answer at {order.first_host}:{order.first_port}")
        talking, newest = joined
        for name, wire in newest.items():
            self._models[name].start_with(*talk.from_wire(wire))
        self._following = asyncio.create_task(self._follow(talking))

    async def serving(self, address: str, metrics_url: str) -> None:
        self._where = {"address": address, "metrics_url": metrics_url}
        if self._talk is not None:
            self._talk.say(Saying(Word.STARTED, self._where))

    async def drain(self, drain_s: float) -> None:
        self._is_leaving, self._where = True, {}
        if self._talk is not None:
            self._talk.say(Saying(Word.LEAVING))

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        if self._talk is not None:
            self._talk.end()

    async def load(self, request: pb.RepositoryModelLoadRequest) -> None:
        """Has the first front do it."""
        away = Refused(
            grpc.StatusCode.UNAVAILABLE,
            "the first front does not answer, and all changes go through it; try again",
        )
        if self._talk is None:
            raise away
        try:
            answer = await self._talk.ask(Saying(Word.LOAD, data=request.SerializeToString()))
        except FrontAway:
            raise away from None
        if answer:
            raise Refused(grpc.StatusCode[answer["code"]], answer["sentence"])

    # --- the connection ----------------------------------------------------------------------------

    async def _join(self) -> tuple[Talk, Mapping[str, Any]] | None:
        """The connection, and the newest configuration of each model; None if the first does not answer."""
        order = self._order
        opening = asyncio.open_connection(order.first_host, order.first_port, limit=link.MOST_AT_ONCE_BYTES)
        try:
            talking = Talk(*await asyncio.wait_for(opening, CONNECT_TIMEOUT_S))
        except OSError:  # a time-out is one
            return None
        talking.say(Saying(Word.JOIN, {"number": order.number, "secret": order.secret}))
        answer = await talking.hear()
        if answer is None or answer.word is not Word.CONFIGURATIONS:
            talking.end()
            return None
        return talking, answer.content["models"]

    async def _follow(self, talking: Talk) -> None:
        """Does what the first front says, and finds it again where the connection ends before this front."""
        while True:
            self._talk = talking
            if self._where:
                talking.say(Saying(Word.STARTED, self._where))
            await talking.listen(partial(self._said, talking))
            self._talk = None
            if self._is_leaving:
                return
            log.warning("the connection to the first front ended; this front goes on as it is")
            joined = None
            while joined is None:
                await asyncio.sleep(TRY_AGAIN_S)
                if self._is_leaving:  # another has its number by now
                    return
                joined = await self._join()
            talking, _ = joined

    def _said(self, by: Talk, saying: Saying) -> None:
        match saying.word:
            case Word.CHANGE:
                self._tasks.start(self._change(by, saying))
            case Word.END:
                if not self._is_leaving:  # a second signal would end it at once
                    os.kill(os.getpid(), signal.SIGTERM)

    async def _change(self, by: Talk, saying: Saying) -> None:
        refusal = {}
        try:
            model = self._models[saying.content["model"]]
            wanted = talk.from_wire(saying.content)
            model.check(*wanted)
            await model.apply(*wanted, insists=saying.content["insists"])
        except (ModelFailed, ValueError) as error:
            refusal = {"error": str(error)}
        except Exception as error:
            log.exception("a change failed by a fault of the server")
            refusal = {"error": f"a fault of the server ({error!r})"}
        by.say(Saying(Word.ANSWER, refusal, number=saying.number))
