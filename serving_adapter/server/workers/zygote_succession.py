"""The zygote that a pool's workers are forked from, and those before it whose workers serve on.

A zygote that ended or hangs gets a successor, and so does one that lacks a model. What its workers hold is
none of its business, so it stays for as long as it has some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from serving_adapter.server.workers.handles import ModelFailed, WorkerHandle
from serving_adapter.server.workers.messages import ModelDescription, ModelReference
from serving_adapter.server.workers.model_files import ModelFiles
from serving_adapter.server.workers.zygote_handle import ZygoteHandle


class ZygoteSuccession:
    """Zygotes in succession, each with the models of those before it; `present` is the one that forks."""

    def __init__(
        self, models: Sequence[ModelReference], new: Callable[[Sequence[ModelReference]], ZygoteHandle]
    ) -> None:
        """`new` makes a zygote that builds the given models."""
        self._new = new
        self.models = tuple(models)
        self.present = new(self.models)
        self.description: ModelDescription | None = None  # of the first model, once it was built
        self._files = ModelFiles(models)
        self._next: ZygoteHandle | None = None  # while it builds more models than the present one has
        self._before: list[ZygoteHandle] = []
        self._endings: set[asyncio.Task[None]] = set()

    async def start(self) -> ModelDescription:
        """Starts the present one and has it build the models; returns the description of the first one."""
        return await self._start(self.present)

    async def _start(self, zygote: ZygoteHandle) -> ModelDescription:
        self._files.look()
        description = await zygote.start()
        if self.description is not None and not description.may_be_of_one_with(self.description):
            await zygote.close()
            raise ModelFailed("it has other inputs or outputs than when the server started")
        self.description = description
        return description

    async def succeed(self, workers: Iterable[WorkerHandle]) -> None:
        """Starts another one in place of the present one. The workers serve on until there are others."""
        self._before.append(self.present)
        self.present = self._new(self.models)
        self.end_unused(workers)
        await self.start()

    async def hold_too(self, models: Sequence[ModelReference], workers: Iterable[WorkerHandle]) -> None:
        """Starts one that builds these models, too, unless all are held; if it fails the present one stays.

        A model keeps its place among `models`, and none is ever dropped. So workers that were forked before
        have at that place the same model, if they have one.
        """
        more = tuple(model for model in models if model not in self.models)
        if not more:
            return
        self._files.add(more)
        self._next = self._new((*self.models, *more))
        try:
            await self._start(self._next)
            self._before.append(self.present)
            self.present, self.models = self._next, (*self.models, *more)
        finally:
            self._next = None
        self.end_unused(workers)

    def end_unused(self, workers: Iterable[WorkerHandle]) -> None:
        """Ends the earlier ones that have none of these workers."""
        used = {worker.zygote for worker in workers}
        for zygote in [each for each in self._before if each not in used]:
            self._before.remove(zygote)
            ending = asyncio.get_running_loop().create_task(zygote.close())
            self._endings.add(ending)
            ending.add_done_callback(self._endings.discard)

    async def close(self) -> None:
        """Ends the present one and its successor, and waits for the end of those that are unused."""
        zygotes = [self.present, *([self._next] if self._next is not None else [])]
        await asyncio.gather(*(zygote.close() for zygote in zygotes), *self._endings)
