"""Switches a model from one resilience mode to another, and owns the lanes that modes need.

A lane that the next mode needs too stays as it is. The others end once their batches are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from serving_adapter.server.redundancy.lane import Lane
from serving_adapter.server.redundancy.modes import (
    ApproximateBackup,
    DefaultAnswer,
    Hedging,
    Host,
    Replication,
    ResilienceMode,
)
from serving_adapter.server.redundancy.parity_mode import Parity
from serving_adapter.server.redundancy.redundant_models import RedundantModels, check_coding, default_answer
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.workers.handles import ModelFailed
from serving_adapter.server.workers.messages import ModelReference
from serving_adapter.server.workers.pool import WorkerPool


class ModeSwitch:
    """Makes the resilience mode that settings ask for, and starts and ends its lanes."""

    def __init__(self, host: Host, models: RedundantModels) -> None:
        self._host, self._models = host, models
        self._lanes: dict[tuple[int, ModelReference], Lane] = {}  # by row and model
        self._starting: list[Lane] = []
        self._ending: dict[Lane, asyncio.Task[None]] = {}
        self._ended_executed = self._ended_replacements = 0

    @property
    def pools(self) -> list[WorkerPool]:
        return [lane.pool for lane in self._all_lanes]

    @property
    def executed(self) -> int:
        """Batches that lanes have run."""
        return self._ended_executed + sum(lane.executed for lane in self._all_lanes)

    @property
    def replacements(self) -> int:
        """Workers of lanes that were replaced because they died or hung."""
        return self._ended_replacements + sum(pool.replacements for pool in self.pools)

    @property
    def _all_lanes(self) -> list[Lane]:
        """The lanes in use and those that end; safe to read from the thread that serves the metrics."""
        return [*self._lanes.copy().values(), *self._ending.copy()]

    def check(self, settings: ResilienceSettings, instances: int) -> None:
        """Raises ValueError, in one sentence, for what this model cannot be served with."""
        settings.check(instances)
        if settings.mode == "parity":
            _, encoder = self._models.parities_for(settings)
            check_coding(encoder, settings.k, self._host.inputs, self._host.outputs)
        elif settings.mode == "approximate-backup" and self._models.backup is None:
            raise ValueError(
                "the mode approximate-backup needs a backup model; start the server with --backup-model"
            )
        elif settings.mode == "default-answer":
            default_answer(self._models.default, self._host.outputs)

    async def make(self, settings: ResilienceSettings) -> ResilienceMode:
        """The mode of checked settings, its lanes started; ModelFailed if one cannot be."""
        match settings.mode:
            case "replication":
                return Replication(settings, self._host)
            case "hedging":
                return Hedging(settings, self._host)
            case "default-answer":
                default = default_answer(self._models.default, self._host.outputs)
                return DefaultAnswer(settings, self._host, default)
            case "approximate-backup":
                assert self._models.backup is not None
                (lane,) = await self._started([self._models.backup])
                return ApproximateBackup(settings, self._host, lane)
            case "parity":
                models, encoder = self._models.parities_for(settings)
                return Parity(settings, self._host, await self._started(models), encoder)
            case _:
                return ResilienceMode(settings)

    async def _started(self, models: Sequence[ModelReference]) -> list[Lane]:
        """The lanes of these models; on ModelFailed no new lane is left."""
        keys = list(enumerate(models))
        new = {
            (row, model): Lane(model, self._host) for row, model in keys if (row, model) not in self._lanes
        }
        starting = list(new.values())
        self._starting += starting
        try:
            results = await asyncio.gather(*(lane.start() for lane in starting), return_exceptions=True)
            failed = [error for error in results if error is not None]
            if failed:
                raise ModelFailed(str(failed[0])) from failed[0]
        except BaseException:
            await asyncio.gather(*(lane.close() for lane in starting))
            raise
        finally:
            self._starting = [lane for lane in self._starting if lane not in starting]
        self._lanes |= new
        return [self._lanes[key] for key in keys]

    def keep_only(self, mode: ResilienceMode) -> None:
        """Ends the lanes of other modes, in the background."""
        for key, lane in list(self._lanes.items()):
            if lane not in mode.lanes:
                del self._lanes[key]
                self._ending[lane] = asyncio.get_running_loop().create_task(self._end(lane))

    async def _end(self, lane: Lane) -> None:
        try:
            await lane.close()
        finally:
            del self._ending[lane]
            self._ended_executed += lane.executed
            self._ended_replacements += lane.pool.replacements

    async def close(self) -> None:
        pools = [lane.pool for lane in (*self._lanes.values(), *self._starting)]
        await asyncio.gather(*self._ending.values(), *(pool.close() for pool in pools))
