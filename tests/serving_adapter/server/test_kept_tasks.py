"""A task that nobody awaits is done all the same."""

from __future__ import annotations

import asyncio
import gc
import weakref

from serving_adapter.server.kept_tasks import KeptTasks


def test_one_that_waits_is_not_lost_to_the_garbage_collector() -> None:
    async def within() -> None:
        tasks, done = KeptTasks(), asyncio.Event()
        waiting: list[weakref.ref[asyncio.Future[None]]] = []

        async def work() -> None:
            awaited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(weakref.ref(awaited))  # whom nobody else knows
            await awaited
            done.set()

        tasks.start(work())
        await asyncio.sleep(0)
        gc.collect()
        kept = waiting[0]()
        assert kept is not None
        kept.set_result(None)
        await asyncio.wait_for(done.wait(), 100)

    asyncio.run(within())
