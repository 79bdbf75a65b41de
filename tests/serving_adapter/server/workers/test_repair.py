"""A repair is tried until it works, or until it is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from serving_adapter.server.workers import repair
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.repair import Repair
from serving_adapter.server.workers.zygote_handle import CLOSED
from tests.support.waiting import eventually


class Attempts:
    """Attempts that fail or tell that workers lack, and then work."""

    def __init__(self, *outcomes: bool | Exception) -> None:
        self._outcomes, self.count = list(outcomes), 0

    async def __call__(self) -> bool:
        outcome = self._outcomes[self.count]
        self.count += 1
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class SwallowsCancellation(Attempts):
    """The first attempt swallows its cancellation: what it waits for was there in the same instant."""

    async def __call__(self) -> bool:
        if not self.count:
            with suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
        return await super().__call__()


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(repair, "FIRST_REPAIR_DELAY_S", 0.0)


def test_it_is_tried_until_it_works() -> None:
    async def scenario() -> None:
        attempts = Attempts(ModelFailed("no memory"), False, True)
        repairing = Repair(attempts)
        repairing.start()
        await eventually(lambda: repairing._task is not None and repairing._task.done())
        assert attempts.count == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("outcome", [ModelFailed(CLOSED), False])
def test_one_that_swallows_its_cancellation_is_tried_no_more(outcome, caplog) -> None:
    async def scenario() -> None:
        attempts = SwallowsCancellation(outcome, True)
        repairing = Repair(attempts)
        repairing.start()
        await asyncio.sleep(0)
        repairing.cancel()
        await eventually(lambda: repairing._task is not None and repairing._task.done())
        assert attempts.count == 1

    asyncio.run(scenario())
    assert not caplog.records
