"""The parity mode under every order of answers, deaths and parity answers, its lanes played by the test."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from serving_adapter.parity.coding import ENCODERS
from serving_adapter.server.redundancy.modes import INITIAL_LATE_NS, Lateness
from serving_adapter.server.redundancy.parity_mode import Parity
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.requests import Batch, InputTensor, Request
from serving_adapter.server.surroundings import THIS_MACHINE
from serving_adapter.server.workers.arena import Arena, Placed
from serving_adapter.tensors import TensorSpec

WIDTH = 4


def identity_parity(batch, arena: Arena) -> dict[str, np.ndarray]:
    """What the identity, a linear model, answers to a parity batch."""
    (placed,) = batch.write(arena).placed
    return {"y": arena.array(Placed(*placed)).copy()}


def finish(batch: Batch) -> None:
    """Its clients have what they waited for."""
    for request in batch.requests:
        request.future.cancel()


class PlayedLane:
    """Keeps what it is given until the test has it answered."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def put(self, batch: object) -> None:
        self.batches.append(batch)


class RecordingHost:
    """Stands where the served model does."""

    def __init__(self) -> None:
        self.inputs = {"x": TensorSpec("x", "FP32", (WIDTH,))}
        self.outputs = {"y": TensorSpec("y", "FP32", (WIDTH,))}
        self.approximated: list[tuple[Batch, np.ndarray]] = []
        self.surroundings = THIS_MACHINE

    @property
    def dispatcher(self) -> RecordingHost:
        return self

    @property
    def answers(self) -> RecordingHost:
        return self

    def run_again(self, batch: Batch) -> None:
        raise AssertionError("parity runs nothing again")

    def approximate_batch(self, batch: Batch, outputs: Mapping[str, np.ndarray], origin: str) -> None:
        assert origin == "reconstructed"
        self.approximated.append((batch, outputs["y"].copy()))
        finish(batch)

    def approximate_request(self, request: Request, outputs: object, origin: str) -> None:
        raise AssertionError("parity answers batches")


class Setting:
    """A parity mode, its host and lanes, and a coding group's batches."""

    def __init__(self, k: int, r: int, **settings: Any) -> None:
        self.host, self.lanes = RecordingHost(), [PlayedLane() for _ in range(r)]
        resilience = ResilienceSettings("parity", k=k, r=r, **{"late_percentile": 0} | settings)
        self.mode = Parity(resilience, *self._played(), ENCODERS["sum"])
        self.arena = Arena.create("parity")
        self.values = [np.arange(WIDTH, dtype=np.float32)[None] + 10 * i for i in range(k)]
        self.batches = [self.batch(value) for value in self.values]

    def _played(self) -> tuple[Any, Any]:
        """They stand in for parts that have more to them."""
        return self.host, self.lanes

    @classmethod
    async def dispatched(cls, k: int, r: int, **settings: Any) -> Setting:
        setting = cls(k, r, **settings)
        for batch in setting.batches:
            await setting.dispatch(batch)
        return setting

    def batch(self, values: np.ndarray, accepts: bool = True) -> Batch:
        future = asyncio.get_running_loop().create_future()
        request = Request(
            [InputTensor(values.tobytes(), values.shape)], None, future, time.monotonic_ns(), accepts
        )
        return Batch([request], self.mode)

    async def dispatch(self, batch: Batch) -> None:
        batch.dispatched_ns, batch.copies = batch.requests[0].arrived_ns, 1
        self.mode.batch_dispatched(batch)
        await asyncio.sleep(0)  # until it is in its group

    def answer(self, i: int) -> None:
        finish(self.batches[i])
        self.mode.batch_answered(self.batches[i], {"y": self.values[i]}, 0)

    def answer_parity(self, row: int) -> None:
        for batch in self.lanes[row].batches:
            if batch.is_wanted():
                batch.lane_answered(identity_parity(batch, self.arena))


@pytest.mark.parametrize(("k", "r"), [(2, 1), (3, 1), (2, 2), (3, 2)])
def test_every_batch_is_answered_once_as_soon_as_any_k_outputs_are_there(k, r):
    events = [("answer", i) for i in range(k)] + [("parity", j) for j in range(r)]

    async def play(order) -> None:
        setting = await Setting.dispatched(k, r)
        answered, parities = set(), set()
        for kind, i in order:
            before = {id(batch) for batch, _ in setting.host.approximated}
            if kind == "answer":
                setting.answer(i)
                answered.add(i)
            else:
                setting.answer_parity(i)
                parities.add(i)
            approximated = {id(batch) for batch, _ in setting.host.approximated}
            if len(answered) + len(parities) >= k:
                waiting = {id(b) for n, b in enumerate(setting.batches) if n not in answered}
                assert waiting <= approximated
            else:
                assert not approximated
            assert before <= approximated
        batches = [batch for batch, _ in setting.host.approximated]
        assert len({id(batch) for batch in batches}) == len(batches)
        for batch, outputs in setting.host.approximated:
            expected = setting.values[setting.batches.index(batch)]
            np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-3)

    for order in itertools.permutations(events):
        asyncio.run(play(order))


def test_a_patient_mode_waits_for_the_exact_answer_unless_the_worker_is_dead():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1, late_after_us=600_000_000)
        setting.answer(1)
        setting.answer_parity(0)
        assert setting.host.approximated == []
        setting.batches[0].losses = 1
        setting.mode.batch_lost(setting.batches[0])
        (answer,) = setting.host.approximated
        assert answer[0] is setting.batches[0]
        np.testing.assert_allclose(answer[1], setting.values[0])

    asyncio.run(play())


def test_a_patient_mode_reconstructs_once_the_time_is_over():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1, late_after_us=1_000_000)
        setting.answer(1)
        setting.answer_parity(0)
        assert setting.host.approximated == []
        async with asyncio.timeout(30):
            while not setting.host.approximated:
                await asyncio.sleep(0)
        assert setting.host.approximated[0][0] is setting.batches[0]

    asyncio.run(play())


def test_a_parity_batch_nobody_needs_is_not_run():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1)
        (parity,) = setting.lanes[0].batches
        assert parity.is_wanted()
        setting.answer(0)
        assert parity.is_wanted()
        setting.answer(1)
        assert not parity.is_wanted()

    asyncio.run(play())


def test_a_batch_whose_requests_refuse_approximation_is_not_reconstructed_but_helps_the_other():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1)
        strict = setting.batch(setting.values[0], accepts=False)
        other = setting.batch(setting.values[1])
        await setting.dispatch(strict)
        await setting.dispatch(other)
        parity = setting.lanes[0].batches[1]
        setting.mode.batch_answered(strict, {"y": setting.values[0]}, 0)
        finish(strict)
        parity.lane_answered(identity_parity(parity, setting.arena))
        assert [batch for batch, _ in setting.host.approximated] == [other]

    asyncio.run(play())


def test_a_batch_that_the_model_refuses_is_not_reconstructed():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1)
        finish(setting.batches[0])
        setting.mode.batch_given_up(setting.batches[0])
        setting.answer(1)
        assert not setting.lanes[0].batches[0].is_wanted()
        assert setting.host.approximated == []

    asyncio.run(play())


def test_a_late_exact_answer_completes_the_group_of_the_others():
    async def play() -> None:
        setting = await Setting.dispatched(3, 1)
        setting.answer(0)
        setting.mode.batch_answered(
            setting.batches[1], {"y": setting.values[1]}, 0
        )  # late: it is finished already
        setting.answer_parity(0)
        assert [batch for batch, _ in setting.host.approximated] == [setting.batches[2]]

    asyncio.run(play())


def test_an_open_group_is_filled_with_answered_batches_when_its_time_is_over():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1, group_timeout_us=1000)
        setting.answer(0)
        setting.answer(1)
        lonely = setting.batch(setting.values[0] + 5)
        await setting.dispatch(lonely)
        async with asyncio.timeout(30):
            while len(setting.lanes[0].batches) < 2:
                await asyncio.sleep(0)
        parity = setting.lanes[0].batches[1]
        parity.lane_answered(identity_parity(parity, setting.arena))
        ((batch, outputs),) = setting.host.approximated
        assert batch is lonely
        np.testing.assert_allclose(outputs, setting.values[0] + 5, rtol=1e-4)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("settings", "late_ns"),
    [
        ({"late_percentile": 0}, 0),
        ({"late_percentile": 50}, 500),
        ({"late_percentile": 99}, 990),
        ({"late_percentile": 50, "late_after_us": 7}, 7000),
    ],
)
def test_a_batch_is_late_after_a_percentile_of_the_service_times_or_a_set_time(settings, late_ns):
    lateness = Lateness(ResilienceSettings("parity", **settings))
    first_ns = INITIAL_LATE_NS if settings["late_percentile"] else 0
    assert lateness.late_ns == (7000 if "late_after_us" in settings else first_ns)
    for service_ns in range(1000, 0, -1):
        lateness.observe(service_ns)
    assert lateness.late_ns == pytest.approx(late_ns, abs=2)


def test_what_decodes_to_no_numbers_is_left_to_the_exact_answer():
    async def play() -> None:
        setting = await Setting.dispatched(2, 1)
        bad = setting.batch(np.full((1, WIDTH), np.nan, np.float32))
        good = setting.batch(setting.values[0])
        await setting.dispatch(bad)
        await setting.dispatch(good)
        setting.mode.batch_answered(bad, {"y": np.full((1, WIDTH), np.nan, np.float32)}, 0)
        setting.lanes[0].batches[1].lane_answered({"y": np.full((1, WIDTH), np.nan, np.float32)})
        assert setting.host.approximated == []

    asyncio.run(play())
