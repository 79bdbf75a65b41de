"""A change is in force on all fronts, or on none; who was away has the newest when it is back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving_adapter.server.configuration import Knobs
from serving_adapter.server.fronts.agreement import (
    Agreement,
    FrontAway,
    FrontConfiguration,
    FrontRefused,
)
from serving_adapter.server.redundancy.settings import ResilienceSettings
from tests.support.waiting import eventually

MODEL = "minilm"


def configuration(instances: int) -> FrontConfiguration:
    return FrontConfiguration(Knobs(instances=instances), ResilienceSettings())


OLD, NEW = configuration(2), configuration(4)


class Front:
    """A front, the first one as well, that does as the test says."""

    def __init__(self, number: int, before: FrontConfiguration | None = OLD) -> None:
        self.number, self.in_force, self.has_left = number, before, False
        self.refuses: set[FrontConfiguration] = set()
        self.insisted: list[bool] = []
        self.is_away = False
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    async def put_in_force(self, model: str, wanted: FrontConfiguration, insists: bool = False) -> None:
        self.insisted.append(insists)
        await self.may_go_on.wait()
        if self.is_away:
            raise FrontAway
        if wanted in self.refuses:
            raise FrontRefused(f"{wanted.knobs.instances} are too many")
        self.in_force = wanted

    def leave(self) -> None:
        self.has_left = True


def run(scenario: Callable[[Agreement, Front, Front, Front], Awaitable[None]]) -> None:
    async def within() -> None:
        first, second, third = Front(0), Front(1, None), Front(2, None)
        agreement = Agreement({MODEL: OLD}, first.put_in_force)
        for front in (second, third):
            await agreement.admit(front)
        assert second.in_force == third.in_force == OLD
        async with asyncio.timeout(100):
            await scenario(agreement, first, second, third)

    asyncio.run(within())


def test_a_change_is_in_force_on_all() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        await agreement.change(MODEL, NEW)
        assert first.in_force == second.in_force == third.in_force == agreement.newest[MODEL] == NEW

    run(scenario)


def test_where_one_refuses_all_are_put_back_and_the_answer_says_which() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        third.refuses.add(NEW)
        with pytest.raises(FrontRefused, match="front 3 cannot, and all go on as before: 4 are too many"):
            await agreement.change(MODEL, NEW)
        assert first.in_force == second.in_force == third.in_force == agreement.newest[MODEL] == OLD
        assert set(agreement.fronts) == {1, 2}

    run(scenario)


def test_where_the_first_cannot_the_others_are_put_back() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        first.refuses.add(NEW)
        with pytest.raises(FrontRefused, match="4 are too many"):
            await agreement.change(MODEL, NEW)
        assert first.in_force == second.in_force == third.in_force == agreement.newest[MODEL] == OLD

    run(scenario)


def test_workers_may_lack_where_a_front_takes_part_anew_or_is_put_back_and_else_not() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        await agreement.change(MODEL, NEW)
        first.refuses.add(OLD)
        with pytest.raises(FrontRefused):
            await agreement.change(MODEL, OLD)
        assert second.insisted == third.insisted == [True, False, False, True]
        assert first.insisted == [False, False]

    run(scenario)


def test_one_that_cannot_be_put_back_takes_part_again_once_it_has_the_newest() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        first.refuses.add(NEW)
        second.refuses.add(OLD)
        with pytest.raises(FrontRefused):
            await agreement.change(MODEL, NEW)
        assert second.has_left
        assert set(agreement.fronts) == {2}
        second.refuses.clear()
        await agreement.admit(second)
        assert second.in_force == OLD

    run(scenario)


def test_one_that_is_away_stops_nobody_and_has_the_newest_when_it_is_back() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        second.is_away = True
        await agreement.change(MODEL, NEW)
        assert first.in_force == third.in_force == NEW
        assert set(agreement.fronts) == {2}
        second.is_away = False
        await agreement.admit(second)
        assert second.in_force == NEW
        assert set(agreement.fronts) == {1, 2}

    run(scenario)


def test_one_that_comes_during_a_change_has_what_that_ends_with() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        first.may_go_on.clear()
        changing = asyncio.create_task(agreement.change(MODEL, NEW))
        await eventually(lambda: second.in_force == NEW)
        fourth = Front(3, None)
        admitting = asyncio.create_task(agreement.admit(fourth))
        await eventually(lambda: third.in_force == NEW)
        assert fourth.in_force is None
        first.may_go_on.set()
        await asyncio.gather(changing, admitting)
        assert fourth.in_force == first.in_force == NEW

    run(scenario)


def test_who_lost_a_front_that_has_come_anew_keeps_the_new_one() -> None:
    async def scenario(agreement: Agreement, first: Front, second: Front, third: Front) -> None:
        anew = Front(1, None)
        await agreement.admit(anew)
        agreement.lose(second)
        assert agreement.fronts[1] is anew

    run(scenario)
