"""The first front: it has the others started, and every change of a configuration goes through it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from tritonclient.grpc import service_pb2 as pb

from serving_adapter.server.configuration import Knobs
from serving_adapter.server.fronts import talk
from serving_adapter.server.fronts.agreement import (
    Agreement,
    FrontAway,
    FrontConfiguration,
    FrontRefused,
)
from serving_adapter.server.fronts.orders import FrontOrder, as_arguments
from serving_adapter.server.fronts.talk import Saying, Talk, Word
from serving_adapter.server.kept_tasks import KeptTasks
from serving_adapter.server.options import ServeOptions
from serving_adapter.server.protocol.loads import ModelLoads
from serving_adapter.server.protocol.refusals import as_refused
from serving_adapter.server.ray_engine import link
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.workers.handles import ModelFailed

log = logging.getLogger(__name__)

JOIN_TIMEOUT_S = 10.0
END_S = 5.0  # that a front may take to end once it has finished its requests


class StartsFronts(Protocol):
    """What runs the other fronts, `ray_engine.front_launching.FrontsOnNodes` say."""

    async def open(self) -> str:
        """An address of this machine that they reach; ModelFailed, in one sentence, where there is none."""

    def start(self, orders: Sequence[str]) -> None: ...

    def start_no_more(self) -> None: ...

    async def close(self) -> None: ...


class JoinedFront:
    """One of the others while it is connected."""

    def __init__(self, number: int, talking: Talk) -> None:
        self.number, self.talk = number, talking
        self.address = ""  # where it serves
        self.is_leaving = False

    async def put_in_force(self, model: str, wanted: FrontConfiguration, insists: bool) -> None:
        change = {"model": model, "insists": insists} | talk.as_wire(wanted)
        answer = await self.talk.ask(Saying(Word.CHANGE, change))
        if "error" in answer:
            raise FrontRefused(answer["error"])

    def leave(self) -> None:
        self.talk.end()


class FirstFront:
    """Leads the others, from `open` to `close`."""

    def __init__(
        self,
        options: ServeOptions,
        models: Mapping[str, ServedModel],
        control_key: str | None,
        nodes: StartsFronts,
    ) -> None:
        self._options, self._models, self._control_key = options, models, control_key
        self._loads = ModelLoads(models, self._put_in_force)
        newest = {name: FrontConfiguration(model.knobs, model.resilience) for name, model in models.items()}
        self._agreement = Agreement(newest, self._put_in_force_here)
        self._secret = secrets.token_hex(32)
        self._joined: dict[int, JoinedFront] = {}
        self._nodes = nodes
        self._server: asyncio.Server | None = None
        self._tasks = KeptTasks()
        self._left = asyncio.Event()  # one of the others did
        self._serves = asyncio.Event()  # this one does
        self._is_draining = False
        self.address = ""
        self.collectors = (FrontCollector(self),)

    @property
    def answering(self) -> dict[int, str]:
        """Where the fronts are that take part, by number."""
        others = {number: front.address for number, front in self._joined.copy().items()}
        taking_part = self._agreement.fronts.copy()
        return {0: self.address} | {n: where for n, where in others.items() if n in taking_part}

    @property
    def fronts(self) -> int:
        return self._options.fronts

    async def open(self) -> None:
        host = await self._nodes.open()
        self._server = await asyncio.start_server(self._connected, host, 0, limit=link.MOST_AT_ONCE_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        arguments = as_arguments(self._options)
        orders = [
            FrontOrder(number, arguments, host, port, self._secret, self._control_key)
            for number in range(1, self.fronts)
        ]
        self._nodes.start([order.to_text() for order in orders])

    async def serving(self, address: str, metrics_url: str) -> None:
        self.address = address
        self._serves.set()

    async def drain(self, drain_s: float) -> None:
        self._is_draining = True
        self._nodes.start_no_more()
        for front in self._joined.values():
            front.talk.say(Saying(Word.END))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._until_all_left(), drain_s + END_S)

    async def close(self) -> None:
        self._nodes.start_no_more()
        if self._server is not None:
            self._server.close()
        for front in list(self._joined.values()):
            front.leave()
        await self._nodes.close()

    async def _until_all_left(self) -> None:
        while self._joined:
            self._left.clear()
            await self._left.wait()

    # --- changes -----------------------------------------------------------------------------------

    async def load(self, request: pb.RepositoryModelLoadRequest) -> None:
        await self._loads.load(request)

    async def _put_in_force(self, model: ServedModel, knobs: Knobs, resilience: ResilienceSettings) -> None:
        try:
            await self._agreement.change(model.name, FrontConfiguration(knobs, resilience))
        except FrontRefused as refused:
            raise ModelFailed(str(refused)) from None

    async def _put_in_force_here(self, model: str, wanted: FrontConfiguration) -> None:
        await self._models[model].apply(*wanted)

    # --- connections -------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talking = Talk(reader, writer)
        number = await self._number(talking)
        if number is None or self._is_draining:
            talking.end()
            return
        front = JoinedFront(number, talking)
        if (before := self._joined.get(number)) is not None:
            before.leave()
        self._joined[number] = front
        newest = {name: talk.as_wire(each) for name, each in self._agreement.newest.items()}
        talking.say(Saying(Word.CONFIGURATIONS, {"models": newest}))
        try:
            await talking.listen(partial(self._said, front))
        finally:
            self._agreement.lose(front)
            if self._joined.get(number) is front:
                del self._joined[number]
            self._left.set()

    async def _number(self, talking: Talk) -> int | None:
        """Of the front that joins; None for anybody else."""
        try:
            saying = await asyncio.wait_for(talking.hear(most_data_bytes=0), JOIN_TIMEOUT_S)
            if saying is None or saying.word is not Word.JOIN:
                return None
            number, secret = saying.content["number"], saying.content["secret"]
            is_ours = hmac.compare_digest(secret.encode(), self._secret.encode())
            return number if is_ours and number in range(1, self.fronts) else None
        except (AttributeError, KeyError, TimeoutError, TypeError, ValueError):
            return None

    def _said(self, front: JoinedFront, saying: Saying) -> None:
        match saying.word:
            case Word.STARTED:
                self._tasks.start(self._admit(front, **saying.content))
            case Word.LEAVING:
                front.is_leaving = True
                self._agreement.lose(front)
            case Word.LOAD:
                self._tasks.start(self._load_for(front, saying))

    async def _admit(self, front: JoinedFront, address: str, metrics_url: str) -> None:
        front.address = address
        try:
            await self._agreement.admit(front)
        except FrontAway:
            return
        except FrontRefused as refused:
            log.warning("front %d cannot serve with the others yet: %s", front.number + 1, refused)
            front.leave()
            return
        if front.is_leaving or self._joined.get(front.number) is not front:  # in this instant
            self._agreement.lose(front)
        else:
            await self._serves.wait()  # its own line is the first
            print(f"front {front.number + 1} is on {address}, metrics on {metrics_url}", flush=True)

    async def _load_for(self, front: JoinedFront, saying: Saying) -> None:
        """What a client asked another front for."""
        refusal: dict[str, Any] = {}
        try:
            await self._loads.load(pb.RepositoryModelLoadRequest.FromString(saying.data))
        except Exception as error:
            refused = as_refused(error, f"a load at front {front.number + 1}")
            refusal = {"code": refused.code.name, "sentence": str(refused)}
        front.talk.say(Saying(Word.ANSWER, refusal, number=saying.number))


class FrontCollector(Collector):
    """Which fronts there are to be, and which answer."""

    def __init__(self, first: FirstFront) -> None:
        self._first = first

    def describe(self) -> Iterator[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        metric = Metric("rrl_front_answers", "1 for a front that serves with the others, else 0", "unknown")
        answering = self._first.answering
        for number in range(self._first.fronts):
            labels = {"front": str(number + 1), "address": answering.get(number, "")}
            metric.add_sample(metric.name, labels, int(number in answering))
        yield metric
