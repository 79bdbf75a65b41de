"""A lane that ends: what its workers hold of the deployed model is answered, or handed back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from serving_adapter import messages
from serving_adapter.server.redundancy import lane as lanes
from serving_adapter.server.redundancy.lane import Lane
from serving_adapter.server.surroundings import THIS_MACHINE
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.handles import WorkerHandle
from serving_adapter.server.workers.messages import ModelReference, WorkerSignal


class RecordingHost:
    """Stands where the deployed model does."""

    def __init__(self) -> None:
        self.model, self.device, self.surroundings = ModelReference("sleep"), "cpu", THIS_MACHINE
        self.inputs: dict[str, object] = {}
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

    def worker_died(self) -> None:
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
