"""What fronts say to each other: one connection from each of the others to the first.

    other -> first    JOIN, then STARTED once it serves; LOAD for each load that a client asks of it; LEAVING
    first -> other    CONFIGURATIONS, which answers JOIN; CHANGE; END
    both              ANSWER, to LOAD and to CHANGE; ALIVE, again and again

A front that says nothing for `SILENCE_S` is gone, as is one whose connection ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from serving_adapter.server.configuration import Knobs
from serving_adapter.server.fronts.agreement import FrontAway, FrontConfiguration
from serving_adapter.server.ray_engine import link
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.workers.messages import Wire
from serving_adapter.server.workers.parallelism import NodePlacement

ALIVE_EVERY_S = 1.0
SILENCE_S = 10.0


class Word(StrEnum):
    JOIN = "join"
    CONFIGURATIONS = "configurations"
    STARTED = "started"
    CHANGE = "change"
    LOAD = "load"
    ANSWER = "answer"
    END = "end"
    LEAVING = "leaving"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class Saying:
    """One message; `number` is that of the question that it is, or answers."""

    word: Word
    content: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""
    number: int = 0

    def to_wire(self) -> dict[str, Any]:
        return {"word": self.word, "number": self.number, "content": dict(self.content)}

    @classmethod
    def from_wire(cls, wire: Wire, data: bytes) -> Saying:
        return cls(Word(wire["word"]), wire["content"], data, wire["number"])


class Talk:
    """One end of a connection. `on_saying` gets all that is no answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._numbers = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[Saying]] = {}
        self._is_over = False

    def say(self, saying: Saying) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # who listens here hears of the end
            link.send(self._writer, saying, saying.data)

    async def ask(self, saying: Saying) -> Mapping[str, Any]:
        """What the other end answers; FrontAway if the connection ends before it does."""
        if self._is_over:
            raise FrontAway
        number = next(self._numbers)
        answer = self._awaited[number] = asyncio.get_running_loop().create_future()
        self.say(replace(saying, number=number))
        try:
            return (await answer).content
        finally:
            self._awaited.pop(number, None)

    async def hear(self, most_data_bytes: int = link.MAX_DATA_BYTES) -> Saying | None:
        """The next message but for signs of life; None once the other end is gone."""
        while True:
            try:
                got = await asyncio.wait_for(link.receive(self._reader, most_data_bytes), SILENCE_S)
                saying = None if got is None else Saying.from_wire(*got)
            except (TimeoutError, KeyError, ValueError):
                return None
            if saying is None or saying.word is not Word.ALIVE:
                return saying

    async def listen(self, on_saying: Callable[[Saying], None]) -> None:
        """Until the other end is gone."""
        living = asyncio.create_task(self._live())
        try:
            while (saying := await self.hear()) is not None:
                if saying.word is not Word.ANSWER:
                    on_saying(saying)
                elif (asked := self._awaited.pop(saying.number, None)) is not None and not asked.done():
                    asked.set_result(saying)
        finally:
            living.cancel()
            self.end()

    def end(self) -> None:
        self._is_over = True
        self._writer.close()
        for asked in self._awaited.values():
            if not asked.done():
                asked.set_exception(FrontAway())
        self._awaited.clear()

    async def _live(self) -> None:
        while True:
            self.say(Saying(Word.ALIVE))
            await asyncio.sleep(ALIVE_EVERY_S)


def as_wire(configuration: FrontConfiguration) -> dict[str, Any]:
    knobs, resilience = configuration
    return {"knobs": vars(knobs), "resilience": vars(resilience)}


def from_wire(wire: Wire) -> FrontConfiguration:
    knobs = dict(wire["knobs"])
    placement = NodePlacement(*knobs.pop("placement"))
    return FrontConfiguration(Knobs(**knobs, placement=placement), ResilienceSettings(**wire["resilience"]))
