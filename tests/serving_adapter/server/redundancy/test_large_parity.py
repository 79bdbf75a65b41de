"""Parity queries and reconstructions of many MiB are made beside the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from serving_adapter.parity import groups
from serving_adapter.parity.coding import SumEncoder
from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.redundancy.redundant_models import ParityModel, RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import EXACT, RECONSTRUCTED, Answer, InputTensor
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.workers import aside
from serving_adapter.server.workers.messages import ModelReference
from tests.support.models.large import WIDE
from tests.support.waiting import PATIENCE_S, eventually

MODEL = ModelReference("tests.support.models.large:wide")
K = 2


async def served() -> ServedModel:
    """Two workers and one of the parity model; what is not there when all else is counts as late."""
    settings = ResilienceSettings("parity", k=K, late_percentile=0, overflow=0)
    redundant = RedundantModels((ParityModel(MODEL),))
    model = ServedModel("wide", MODEL, "cpu", Knobs(instances=K), Protection(), settings, redundant)
    await model.start()
    return model


def values_of(number: int, rows: int) -> np.ndarray:
    return np.full((rows, WIDE), number, np.float32)


async def ask(model: ServedModel, number: int, rows: int) -> Answer:
    asked = InputTensor(values_of(number, rows).tobytes(), (rows, WIDE))
    return await asyncio.wait_for(model.infer([asked]), PATIENCE_S)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """In which threads parity queries are encoded and answers are decoded."""
    seen: dict[str, set[int]] = {"encode": set(), "decode": set()}

    def watched(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def watch(*arguments: Any) -> Any:
            seen[what].add(threading.get_ident())
            return function(*arguments)

        return watch

    monkeypatch.setattr(SumEncoder, "encode", watched("encode", SumEncoder.encode))
    monkeypatch.setattr(groups, "decode", watched("decode", groups.decode))
    return seen


def test_threads_encode_and_decode_what_is_large(threads):
    async def scenario() -> None:
        model = await served()
        held = model.pool.workers[0]
        model.pool.stop(held)
        one, other = await asyncio.gather(ask(model, 1, 1), ask(model, 2, 2))
        assert {one.origin, other.origin} == {EXACT, RECONSTRUCTED}
        for answer, number, rows in ((one, 1, 1), (other, 2, 2)):
            assert answer.outputs[0].shape == (rows, WIDE)
            given = np.frombuffer(answer.outputs[0].data, np.float32).reshape(rows, WIDE)
            np.testing.assert_allclose(given, values_of(number, rows))
        model.pool.resume(held)
        await eventually(lambda: model.in_flight == model.pool.busy == 0)
        await model.close(grace_s=1.0)

    asyncio.run(scenario())
    for of in threads.values():
        assert len(of) > 0
        assert threading.get_ident() not in of


def test_a_parity_query_that_no_thread_can_encode_costs_nobody_an_answer(monkeypatch):
    monkeypatch.setattr(aside, "in_a_thread", lambda work: None)

    async def scenario() -> None:
        model = await served()
        answers = await asyncio.gather(ask(model, 1, 1), ask(model, 2, 1))
        assert [answer.origin for answer in answers] == [EXACT, EXACT]
        (lane_pool,) = model.pools[1:]
        await eventually(lambda: lane_pool.busy == 0 and len(lane_pool.idle) == 1)
        await model.close(grace_s=1.0)

    asyncio.run(scenario())


def test_a_worker_that_ends_while_a_thread_fills_its_memory_is_replaced(monkeypatch):
    begun, ended = threading.Event(), threading.Event()
    encode = SumEncoder.encode

    def waiting(*arguments: Any) -> None:
        if not begun.is_set():
            begun.set()
            assert ended.wait(PATIENCE_S)
        encode(*arguments)

    monkeypatch.setattr(SumEncoder, "encode", waiting)

    async def scenario() -> None:
        model = await served()
        model.pool.stop(model.pool.workers[0])
        asking = asyncio.gather(ask(model, 1, 1), ask(model, 2, 1))
        await eventually(begun.is_set)
        (lane_pool,) = model.pools[1:]
        (worker,) = lane_pool.workers
        lane_pool.kill(worker)
        await eventually(lambda: worker not in lane_pool.workers)
        ended.set()
        answers = await asking
        assert {answer.origin for answer in answers} == {EXACT, RECONSTRUCTED}
        assert lane_pool.replacements == 1
        await model.close(grace_s=1.0)

    asyncio.run(scenario())
