"""Whatever goes wrong between taking a batch and answering it, each of its requests is settled once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from serving_adapter.server.answers import InferenceFailed
from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import InputTensor
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.statistics.model_statistics import FailureReason
from serving_adapter.server.workers.handles import WorkerHandle
from serving_adapter.server.workers.messages import ModelReference
from tests.support.waiting import eventually

ROWS = np.arange(32, dtype=np.float32).reshape(2, 16)


@asynccontextmanager
async def served() -> AsyncIterator[ServedModel]:
    """The front of `noop` in this process, its zygote and worker beside it."""
    model = ServedModel(
        "noop", ModelReference("noop"), "cpu", Knobs(), Protection(), ResilienceSettings(), RedundantModels()
    )
    await model.start()
    yield model
    await model.close(grace_s=1.0)


def run(scenario: Callable[[ServedModel], Awaitable[None]]) -> None:
    async def within() -> None:
        async with served() as model, asyncio.timeout(100):
            await scenario(model)
            assert model.in_flight == model.pool.busy == 0

    asyncio.run(within())


async def ask(model: ServedModel) -> None:
    answer = await model.infer([InputTensor(ROWS.tobytes(), ROWS.shape)])
    assert answer.outputs[0].data == ROWS.tobytes()


def test_outputs_that_cannot_be_read_fail_the_request_and_the_worker_goes_on() -> None:
    async def scenario(model: ServedModel) -> None:
        outputs = dict(model.outputs)
        model.outputs.clear()
        with pytest.raises(InferenceFailed, match=r"could not read the model's outputs \(KeyError\('y'\)\)"):
            await ask(model)
        assert model.statistics.failures[FailureReason.BACKEND].count == 1
        assert model.statistics.success.count == 0
        model.outputs.update(outputs)
        await ask(model)
        assert model.replacements == 0

    run(scenario)


def test_a_batch_whose_worker_cannot_be_understood_runs_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(model: ServedModel) -> None:
        def refuse(needed_bytes: int) -> None:
            raise OSError("Cannot allocate memory")

        monkeypatch.setattr(model.pool.workers[0].outputs, "ensure", refuse)
        await ask(model)
        assert model.replacements == 1
        assert model.statistics.failure.count == 0

    run(scenario)


def test_a_change_that_fails_for_any_reason_leaves_the_old_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(model: ServedModel) -> None:
        two = Knobs(instances=2)
        await model.apply(two, ResilienceSettings())
        retire = model.pool._retire

        def fail(_: WorkerHandle) -> None:
            monkeypatch.setattr(model.pool, "_retire", retire)
            raise OSError("too many open files")

        monkeypatch.setattr(model.pool, "_retire", fail)
        with pytest.raises(OSError, match="too many open files"):
            await model.apply(Knobs(instances=1), ResilienceSettings())
        assert model.knobs == two
        model.pool.kill(model.pool.workers[0])
        await eventually(lambda: model.replacements == 1 and len(model.pool.workers) == 2)
        await ask(model)

    run(scenario)


def test_a_resilience_mode_that_fails_keeps_nobody_from_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a fault of the mode")

    async def scenario(model: ServedModel) -> None:
        for name in ("request_arrived", "batch_dispatched", "batch_answered", "dispatch"):
            monkeypatch.setattr(model._mode, name, fail)
        for _ in range(3):
            await ask(model)

    run(scenario)
