"""The zygote that a pool's workers are forked from, and those before it whose workers serve on.

A zygote that ended or hangs gets a successor. What its workers hold is none of its business, so it stays for
as long as it has some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from serving_adapter.server.workers.handles import ModelFailed, WorkerHandle
from serving_adapter.server.workers.messages import ModelDescription, ModelReference
from serving_adapter.server.workers.model_files import ModelFiles
from serving_adapter.server.workers.zygote_handle import ZygoteHandle


class ZygoteSuccession:
    """Zygotes that build the same models, one after the other; `present` is the one that forks."""

    def __init__(self, models: Sequence[ModelReference], new: Callable[[], ZygoteHandle]) -> None:
        """`new` makes a zygote that builds these models."""
        self._new = new
        self.present = new()
        self.description: ModelDescription | None = None  # of the first model, once it was built
        self._files = ModelFiles(models)
        self._before: list[ZygoteHandle] = []
        self._endings: set[asyncio.Task[None]] = set()

    async def start(self) -> ModelDescription:
        """Starts the present one and has it build the models; returns the description of the first one."""
        self._files.look()
        description = await self.present.start()
        if self.description not in (None, description):
            await self.present.close()
            raise ModelFailed("it has other inputs or outputs than when the server started")
        self.description = description
        return description

    async def succeed(self, workers: Iterable[WorkerHandle]) -> None:
        """Starts another one in place of the present one. The workers serve on until there are others."""
        self._before.append(self.present)
        self.present = self._new()
        self.end_unused(workers)
        await self.start()

    def end_unused(self, workers: Iterable[WorkerHandle]) -> None:
        """Ends the earlier ones that have none of these workers."""
        used = {worker.zygote for worker in workers}
        for zygote in [each for each in self._before if each not in used]:
            self._before.remove(zygote)
            ending = asyncio.get_running_loop().create_task(zygote.close())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """Ends the present one, and waits for the end of those that are unused."""
        await asyncio.gather(self.present.close(), *self._endings)
