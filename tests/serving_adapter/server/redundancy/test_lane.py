"""Lanes: one that ends hands back what is not its own, and one that borrows workers does not overdo it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from serving_adapter import messages
from serving_adapter.server.configuration import Knobs, Protection
from serving_adapter.server.redundancy import lane as lanes
from serving_adapter.server.redundancy.lane import BatchInputs, Lane, LaneRun, Slot
from serving_adapter.server.redundancy.modes import ResilienceMode
from serving_adapter.server.redundancy.redundant_models import RedundantModels
from serving_adapter.server.redundancy.settings import ResilienceSettings
from serving_adapter.server.served_model import ServedModel
from serving_adapter.server.surroundings import THIS_MACHINE
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.handles import ModelFailed, WorkerHandle
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    ComputeTimes,
    ModelDescription,
    ModelReference,
    WorkerSignal,
)
from serving_adapter.server.workers.parallelism import Parallelism
from serving_adapter.tensors import TensorSpec


class RecordingHost:
    """Stands where the deployed model does."""

    def __init__(self) -> None:
        self.model, self.device, self.surroundings = ModelReference("sleep"), "cpu", THIS_MACHINE
        self.inputs: dict[str, TensorSpec] = {}
        self.outputs: dict[str, object] = {}
        self.back: list[object] = []

    @property
    def dispatcher(self) -> RecordingHost:
        return self

    def dispatch(self) -> None: ...


class NoZygote:
    """Whom a worker without a process was forked by."""

    is_serving = False
    has_ended = False

    def signal(self, what: WorkerSignal, pid: int) -> None: ...


class HeldJob:
    """A batch of the deployed model that a worker of the lane holds."""

    def __init__(self, host: RecordingHost) -> None:
        self.host, self.dispatched_ns = host, 0

    def worker_answered(self, outputs: object, reply: object) -> None:
        raise AssertionError("nothing was answered")

    def worker_died(self, with_node: bool = False) -> None:
        raise AssertionError("nobody died")

    def handed_back(self) -> None:
        self.host.back.append(self)


@contextmanager
def with_a_busy_worker(host: RecordingHost, job: HeldJob) -> Iterator[tuple[Lane, WorkerHandle]]:
    """A lane one of whose workers helps out with a batch of the deployed model."""
    lane = Lane(ModelReference("sleep"), host)  # type: ignore[arg-type]
    ours, theirs = messages.socket_pair()
    worker = WorkerHandle(ours, Arena.create("inputs"), Arena.create("outputs"), (1, 0), NoZygote())
    worker.job = job
    lane.pool.workers.append(worker)
    with theirs:
        yield lane, worker


def test_a_batch_that_takes_too_long_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "DRAIN_S", 0.01)

    async def scenario() -> None:
        host = RecordingHost()
        job = HeldJob(host)
        with with_a_busy_worker(host, job) as (lane, _):
            await lane.close()
            assert host.back == [job]
            assert not lane.pool.workers

    asyncio.run(scenario())


def test_a_batch_in_service_is_waited_for() -> None:
    async def scenario() -> None:
        host = RecordingHost()
        with with_a_busy_worker(host, HeldJob(host)) as (lane, worker):
            closing = asyncio.create_task(lane.close())
            for _ in range(10):
                await asyncio.sleep(0)
            assert not closing.done()
            worker.job = None  # it answered
            lane.dispatch()
            await closing
            assert host.back == []

    asyncio.run(scenario())


class PlayedPool:
    """So many idle workers; what they are given runs until the test has it end."""

    def __init__(self, workers: int) -> None:
        self.idle = [SimpleNamespace(inputs=None) for _ in range(workers)]
        self.runs: list[LaneRun] = []

    @property
    def busy(self) -> int:
        return len(self.runs)

    async def reshape(self, parallelism: Parallelism, insists: bool) -> None: ...

    def run(self, worker: Any, run: LaneRun, placed: object, threads: int, model: int) -> None:
        self.runs.append(run)

    def answered(self) -> None:
        self.runs.pop(0).worker_answered(None, BatchOutputs([], 0, ComputeTimes(0, 0, 0)))  # type: ignore[arg-type]
        self.idle.append(SimpleNamespace(inputs=None))

    def failed(self, sentence: str) -> None:
        self.runs.pop(0).worker_answered(None, BatchError(sentence))  # type: ignore[arg-type]
        self.idle.append(SimpleNamespace(inputs=None))

    def died(self) -> None:
        self.runs.pop(0).worker_died()
        self.idle.append(SimpleNamespace(inputs=None))


class LendingHost(RecordingHost):
    """One whose workers are all idle."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.own = PlayedPool(workers)

    def slot_to_lend(self, model: ModelReference) -> Slot | None:
        return Slot(self.own, 1) if self.own.idle else None  # type: ignore[arg-type]


class WantedBatch:
    """A redundant batch that somebody waits for."""

    def is_wanted(self) -> bool:
        return True

    def write(self, arena: Arena) -> BatchInputs:
        return BatchInputs([])

    def lane_answered(self, outputs: object) -> None: ...


async def lane_of(instances: int, host: LendingHost) -> tuple[Lane, PlayedPool]:
    """A lane with so many workers of its own, all idle."""
    lane, own = Lane(ModelReference("sleep"), host), PlayedPool(instances)  # type: ignore[arg-type]
    lane.pool = own  # type: ignore[assignment]
    await lane.reshape(Parallelism(instances))
    return lane, own


def test_a_lane_borrows_at_most_as_many_workers_as_it_has() -> None:
    async def scenario() -> None:
        host = LendingHost(5)
        lane, own = await lane_of(2, host)
        for _ in range(6):
            lane.put(WantedBatch())
        assert (len(own.runs), len(host.own.runs)) == (2, 2)
        host.own.answered()
        lane.dispatch()
        assert len(host.own.runs) == 2  # the next one

    asyncio.run(scenario())


def test_a_model_that_ends_its_workers_borrows_none_until_it_has_answered() -> None:
    async def scenario() -> None:
        host = LendingHost(5)
        lane, own = await lane_of(1, host)
        for _ in range(4):
            lane.put(WantedBatch())
        host.own.died()
        lane.dispatch()
        assert not host.own.runs
        own.answered()
        lane.dispatch()
        assert (len(own.runs), len(host.own.runs)) == (1, 1)

    asyncio.run(scenario())


def test_a_lane_has_not_ended_while_it_has_a_borrowed_worker() -> None:
    async def scenario() -> None:
        host = LendingHost(1)
        lane, own = await lane_of(1, host)
        lane.put(WantedBatch())
        lane.put(WantedBatch())
        own.answered()
        assert not lane.is_drained
        host.own.answered()
        assert lane.is_drained

    asyncio.run(scenario())


def test_a_model_that_fails_each_batch_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        lane, own = await lane_of(1, LendingHost(0))
        for _ in range(3):
            lane.put(WantedBatch())
            own.failed("it takes at most 4 rows")

    asyncio.run(scenario())
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "model 'sleep': a redundant batch failed: it takes at most 4 rows"


class DescribedPool:
    """Builds a model of which this is told."""

    def __init__(self, description: ModelDescription) -> None:
        self.description, self.closed = description, False

    async def start(self) -> ModelDescription:
        return self.description

    async def close(self) -> None:
        self.closed = True


def tokens(size: int, most: int | None = None) -> TensorSpec:
    return TensorSpec("tokens", "INT64", (size,), max_size=most)


@pytest.mark.parametrize(
    ("own", "deployed", "fits"),
    [
        (tokens(-1, 256), tokens(-1, 512), False),
        (tokens(-1, 256), tokens(-1), False),
        (tokens(-1, 256), tokens(512), False),
        (tokens(-1, 512), tokens(-1, 512), True),
        (tokens(-1), tokens(-1, 512), True),
        (tokens(-1, 512), tokens(128), True),
    ],
)
def test_a_model_of_shorter_inputs_than_the_deployed_one_is_refused(
    own: TensorSpec, deployed: TensorSpec, fits: bool
) -> None:
    async def scenario() -> None:
        host = RecordingHost()
        host.inputs = {"tokens": deployed}
        lane = Lane(ModelReference("short"), host)  # type: ignore[arg-type]
        pool = lane.pool = DescribedPool(ModelDescription((own,), (), False, max_rows=4))  # type: ignore[assignment]
        if not fits:
            with pytest.raises(ModelFailed, match="input 'tokens' of short may be at most 256 long"):
                await lane.start()
            assert pool.closed
            return
        await lane.start()
        assert lane.max_rows == 4

    asyncio.run(scenario())


SMALL_BACKUP = ResilienceSettings("approximate-backup")


@pytest.fixture
def with_small_backup(monkeypatch: pytest.MonkeyPatch) -> ServedModel:
    """A model whose backup takes 4 rows, as if it had started with other settings."""
    none = ResilienceSettings()
    model = ServedModel(
        "sleep",
        ModelReference("sleep"),
        "cpu",
        Knobs(max_batch_size=4),
        Protection(),
        none,
        RedundantModels(),
    )
    mode = ResilienceMode(SMALL_BACKUP)
    mode.lanes = [SimpleNamespace(max_rows=4, reference="small")]  # type: ignore[list-item]

    async def make(settings: ResilienceSettings) -> ResilienceMode:
        return mode

    async def reshape(*wanted: object, **how: object) -> None: ...

    monkeypatch.setattr(model._modes, "make", make)
    monkeypatch.setattr(model._modes, "check", lambda *settings: None)
    monkeypatch.setattr(model, "_reshape", reshape)
    model.is_open = True
    return model


def test_batches_are_no_larger_than_a_redundant_model_takes(with_small_backup: ServedModel) -> None:
    model, larger = with_small_backup, Knobs(max_batch_size=8)

    async def scenario() -> None:
        with pytest.raises(
            ModelFailed, match="max_batch_size=8 is above the 4 rows that the redundant model"
        ):
            await model.apply(larger, SMALL_BACKUP)
        assert model.resilience.mode == "none"
        await model.apply(Knobs(max_batch_size=4), SMALL_BACKUP)
        with pytest.raises(ValueError, match="max_batch_size=8 is above the 4 rows that the redundant model"):
            model.check(larger, SMALL_BACKUP)

    asyncio.run(scenario())
