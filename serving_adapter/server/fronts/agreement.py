"""A change is in force on all fronts or on none: the rule by which the first front makes it.

It asks the others first and changes last, so it never has to be put back itself. A front that is gone stops
nobody. It gets the newest configuration before it takes part again, and so does one that could not be put
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple, Protocol

from serving_adapter.server.configuration import Knobs
from serving_adapter.server.redundancy.settings import ResilienceSettings


class FrontConfiguration(NamedTuple):
    """All of a model's configuration that changes live; the instances are those of all fronts together."""

    knobs: Knobs
    resilience: ResilienceSettings


class FrontAway(Exception):
    """The front does not answer."""


class FrontRefused(Exception):
    """The front cannot do what it was asked for, and goes on as before; the text is one sentence."""


class AgreeingFront(Protocol):
    """One of the other fronts, as the first one sees it."""

    @property
    def number(self) -> int:
        """From 1; the first front is 0."""

    async def put_in_force(self, model: str, wanted: FrontConfiguration, insists: bool) -> None:
        """FrontRefused if it cannot, FrontAway if it does not answer.

        Where it `insists`, workers that do not fit now come later.
        """

    def leave(self) -> None:
        """Has it come anew, and be admitted then."""


PutInForceHere = Callable[[str, FrontConfiguration], Awaitable[None]]
"""Changes the first front itself; whatever it raises, the old configuration is in force there."""


class Agreement:
    """The configuration that all fronts have, by model, and those that take part."""

    def __init__(self, newest: Mapping[str, FrontConfiguration], put_in_force_here: PutInForceHere) -> None:
        self.newest = dict(newest)
        self.fronts: dict[int, AgreeingFront] = {}  # by number
        self._put_in_force_here = put_in_force_here
        self._lock = asyncio.Lock()

    async def change(self, model: str, wanted: FrontConfiguration) -> None:
        """Puts it in force on all, or on none: then FrontRefused, or whatever the first front raises."""
        async with self._lock:
            before = self.newest[model]
            asked = list(self.fronts.values())
            outcomes = await asyncio.gather(*(self._ask(front, model, wanted) for front in asked))
            changed = [front for front, refusal in zip(asked, outcomes, strict=True) if refusal is None]
            refusals = [refusal for refusal in outcomes if refusal is not None]
            try:
                if refusals:
                    raise refusals[0]
                await self._put_in_force_here(model, wanted)
            except BaseException:
                await self._put_back(changed, model, before)
                raise
            self.newest[model] = wanted

    async def admit(self, front: AgreeingFront) -> None:
        """Has a front take part, with the newest configuration; FrontRefused or FrontAway if it cannot."""
        async with self._lock:
            for model, newest in self.newest.items():
                await front.put_in_force(model, newest, insists=True)
            self.fronts[front.number] = front

    def lose(self, front: AgreeingFront) -> None:
        """It is gone."""
        if self.fronts.get(front.number) is front:
            del self.fronts[front.number]

    async def _ask(
        self, front: AgreeingFront, model: str, wanted: FrontConfiguration, insists: bool = False
    ) -> FrontRefused | None:
        """Why it cannot; None if it could, or is gone."""
        try:
            await front.put_in_force(model, wanted, insists)
        except FrontAway:
            self.lose(front)
        except FrontRefused as refused:
            return FrontRefused(f"front {front.number + 1} cannot, and all go on as before: {refused}")
        return None

    async def _put_back(
        self, fronts: Iterable[AgreeingFront], model: str, before: FrontConfiguration
    ) -> None:
        staying = [front for front in fronts if self.fronts.get(front.number) is front]
        outcomes = await asyncio.gather(*(self._ask(front, model, before, insists=True) for front in staying))
        for front, refusal in zip(staying, outcomes, strict=True):
            if refusal is not None:
                self.lose(front)
                front.leave()
