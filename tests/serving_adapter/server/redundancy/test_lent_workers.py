"""Idle workers of the deployed model run parity queries when the parity model's own cannot."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.redundancy.redundant_models import ParityModel, RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import EXACT, RECONSTRUCTED, Answer, InputTensor
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.workers.messages import ModelReference
from tests.support.waiting import PATIENCE_S, eventually

DEPLOYED = ModelReference("sleep", (("ms", "20"),))
PARITY = ModelReference("noop")  # both answer their input, so each is a parity model of the other
KNOBS = Knobs(instances=3)
SHARED = ResilienceSettings("parity", k=2, redundant_instances=1, late_percentile=0, overflow=1)


def served(settings: ResilienceSettings) -> ServedModel:
    redundant = RedundantModels((ParityModel(PARITY),))
    return ServedModel("sleep", DEPLOYED, "cpu", KNOBS, Protection(), settings, redundant)


async def ask_two(model: ServedModel) -> list[Answer]:
    """Two requests that make a coding group; each answer is checked to be its own."""
    values = [np.full((1, 16), 1.0 + number, np.float32) for number in range(2)]
    asked = [model.infer([InputTensor(x.tobytes(), x.shape)]) for x in values]
    answers = await asyncio.wait_for(asyncio.gather(*asked), PATIENCE_S)
    for answer, x in zip(answers, values, strict=True):
        given = np.frombuffer(answer.outputs[0].data, np.float32).reshape(x.shape)
        np.testing.assert_allclose(given, x)
    return answers


@pytest.mark.parametrize("changes_live", [False, True])
def test_a_worker_of_the_deployed_model_runs_a_parity_query_when_those_of_the_parity_model_hang(changes_live):
    async def scenario() -> None:
        model = served(replace(SHARED, mode="none") if changes_live else SHARED)
        await model.start()
        if changes_live:
            await model.apply(KNOBS, SHARED)
        (lane_pool,) = model.pools[1:]
        lane_pool.stop(lane_pool.workers[0])
        while not lane_pool.busy:
            await ask_two(model)
        held = model.pool.idle[-1]
        model.pool.stop(held)
        assert {answer.origin for answer in await ask_two(model)} == {EXACT, RECONSTRUCTED}
        model.pool.resume(held)
        lane_pool.resume(lane_pool.workers[0])
        await eventually(lambda: model.in_flight == model.pool.busy == lane_pool.busy == 0)
        await model.close(grace_s=1.0)

    asyncio.run(scenario())


@pytest.mark.parametrize(("overflow", "lends"), [(1, True), (0, False)])
def test_the_settings_say_whether_workers_are_lent(overflow, lends):
    async def scenario() -> None:
        model = served(replace(SHARED, overflow=overflow))
        await model.start()
        slot = model.dispatcher.slot_to_lend(PARITY)
        assert (slot is not None) == lends
        await model.apply(KNOBS, replace(SHARED, overflow=1 - overflow))
        assert (model.dispatcher.slot_to_lend(PARITY) is not None) != lends
        await model.close(grace_s=1.0)

    asyncio.run(scenario())
