"""No failure of a zygote or a worker is for ever, and none takes those along that serve."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from serving_adapter.messages import socket_pair
from serving_adapter.server.workers import messages, zygote_handle
from serving_adapter.server.workers import pool as workers_of_a_model
from serving_adapter.server.workers.arena import Arena
from serving_adapter.server.workers.handles import ModelFailed, WorkerHandle
from serving_adapter.server.workers.launching import ZygoteProcess, launch_zygote
from serving_adapter.server.workers.messages import (
    BatchError,
    BatchOutputs,
    ComputeTimes,
    ModelReference,
    NodeEnded,
)
from serving_adapter.server.workers.parallelism import Parallelism
from serving_adapter.server.workers.pool import WorkerPool
from tests.support.models.fragile import (
    HANGING_THREADS,
    JEALOUS_THREADS,
    NO_ROOM_THREADS,
    WIDTH_VARIABLE,
)
from tests.support.waiting import PATIENCE_S, eventually


class Launches:
    """Starts zygotes; for those whose numbers are in `failing`, something that ends at once."""

    def __init__(self) -> None:
        self.count, self.failing = 0, set[int]()

    async def __call__(self, channel: socket.socket) -> ZygoteProcess:
        self.count += 1
        if self.count in self.failing:
            return await asyncio.create_subprocess_exec(sys.executable, "-c", "")
        return await launch_zygote(channel)


class ServingPool:
    """A pool of one worker on an event loop of its own; every test leaves it so."""

    def __init__(self, folder: Path) -> None:
        self.no_fork_while = folder / "no-forks"
        self.launches = Launches()
        self.runner = asyncio.Runner()
        options = (("no_fork_while", str(self.no_fork_while)),)
        reference = ModelReference("tests.support.models.fragile:fragile", options)
        self.runner.get_loop()
        self.pool = WorkerPool([reference], "cpu", lambda: None, self.launches, PATIENCE_S)
        self.runner.run(self.pool.start())
        self.runner.run(self.pool.reshape(Parallelism()))

    @property
    def zygote(self) -> psutil.Process:
        return psutil.Process(self.pool.pids[0])

    def pids(self) -> list[int]:
        """Of the workers that get batches."""
        return [worker.pid for worker in self.pool.workers if not worker.retired]

    def close(self) -> None:
        self.runner.run(self.pool.close())
        self.runner.close()


@pytest.fixture(scope="module")
def serving(tmp_path_factory) -> Iterator[ServingPool]:
    pool = ServingPool(tmp_path_factory.mktemp("pool"))
    yield pool
    pool.close()


def test_a_refused_fork_harms_no_worker_that_serves(serving):
    before, zygote = serving.pids(), serving.zygote
    serving.no_fork_while.touch()
    with pytest.raises(ModelFailed, match=r"could not be forked: .*temporarily unavailable"):
        serving.runner.run(serving.pool.reshape(Parallelism(3)))
    serving.no_fork_while.unlink()
    assert serving.pids() == before
    assert psutil.pid_exists(before[0])
    assert serving.zygote == zygote
    assert zygote.is_running()


def test_a_change_that_must_be_made_is_made_once_it_can_be(serving):
    serving.no_fork_while.touch()
    serving.runner.run(serving.pool.reshape(Parallelism(3), insists=True))
    assert len(serving.pids()) == 1
    serving.no_fork_while.unlink()
    serving.runner.run(eventually(lambda: len(serving.pids()) == 3))
    serving.runner.run(serving.pool.reshape(Parallelism(1)))


def test_a_further_model_that_cannot_be_built_changes_nothing(serving):
    before, zygote = serving.pids(), serving.zygote
    with pytest.raises(ModelFailed, match="no_such_model"):
        serving.runner.run(serving.pool.reshape(Parallelism(), models=[ModelReference("no_such_model")]))
    assert serving.pids() == before
    assert serving.zygote == zygote
    assert zygote.is_running()


def test_workers_hold_a_further_model_from_a_change_on(serving):
    before, zygote = serving.pids(), serving.zygote
    model = ModelReference("noop")
    serving.runner.run(serving.pool.reshape(Parallelism(), models=[model]))
    assert serving.pool.index_of(model) == 1
    assert not set(serving.pids()) & set(before)
    again = serving.pids()
    serving.runner.run(serving.pool.reshape(Parallelism(), models=[model]))
    assert serving.pids() == again
    serving.runner.run(eventually(lambda: not zygote.is_running()))


def test_a_further_model_that_must_be_held_is_held_once_it_can_be(serving):
    pool, launches, model, before = serving.pool, serving.launches, ModelReference("sleep"), serving.pids()
    launches.failing = {launches.count + 1, launches.count + 2}
    serving.runner.run(pool.reshape(Parallelism(), insists=True, models=[model]))
    assert serving.pids() == before
    assert not pool.next_holds(model)
    serving.runner.run(eventually(lambda: pool.next_holds(model) and len(serving.pids()) == 1))
    assert pool.index_of(model) > 0
    assert serving.pids() != before


def test_the_reason_why_a_worker_does_not_come_up_is_told(serving):
    before = serving.pids()
    with pytest.raises(ModelFailed, match="MemoryError: no room for so many threads"):
        serving.runner.run(serving.pool.reshape(Parallelism(intra_op_threads=NO_ROOM_THREADS)))
    assert serving.pids() == before


def test_a_worker_that_hangs_while_it_starts_is_ended(serving):
    (worker,) = serving.pool.workers
    worker.zygote.start_timeout_s = 0.5
    with pytest.raises(ModelFailed, match=r"not ready within 0.5 s and was ended"):
        serving.runner.run(serving.pool.reshape(Parallelism(intra_op_threads=HANGING_THREADS)))
    worker.zygote.start_timeout_s = PATIENCE_S
    serving.runner.run(eventually(lambda: [p.pid for p in serving.zygote.children()] == serving.pids()))


def test_a_worker_that_dies_while_others_take_its_place_does_not_break_the_change(serving):
    pool, before = serving.pool, serving.pids()
    serving.runner.run(pool.reshape(Parallelism(intra_op_threads=JEALOUS_THREADS)))
    serving.runner.run(eventually(lambda: {worker.kind for worker in pool.workers} == {(1, JEALOUS_THREADS)}))
    assert not set(before) & set(serving.pids())
    serving.runner.run(pool.reshape(Parallelism()))
    assert len(serving.pids()) == 1


def test_a_hung_worker_is_killed_though_its_zygote_hangs_too(serving):
    (worker,), zygote = serving.pool.workers, serving.zygote
    process = psutil.Process(worker.pid)
    zygote.send_signal(signal.SIGSTOP)
    serving.pool.stop(worker)
    serving.pool.kill(worker)
    serving.runner.run(eventually(lambda: process.status() == psutil.STATUS_ZOMBIE))
    serving.runner.run(eventually(lambda: not serving.pool.can_serve))
    zygote.send_signal(signal.SIGCONT)
    serving.runner.run(eventually(lambda: serving.pool.can_serve))


def test_a_stopped_zygote_is_replaced_and_its_worker_serves_until_then(serving, monkeypatch):
    pool, launches, before, zygote = serving.pool, serving.launches, serving.pids(), serving.zygote
    launched = launches.count
    monkeypatch.setattr(zygote_handle, "ANSWER_TIMEOUT_S", 0.2)

    async def scenario() -> None:
        zygote.send_signal(signal.SIGSTOP)
        change = asyncio.create_task(pool.reshape(Parallelism(2)))
        await eventually(lambda: launches.count > launched)
        monkeypatch.setattr(zygote_handle, "ANSWER_TIMEOUT_S", PATIENCE_S)
        await eventually(lambda: change.done() or not pool.can_serve)
        await change
        assert len(serving.pids()) == 2
        assert not set(before) & set(serving.pids())
        await eventually(lambda: not zygote.is_running())
        await pool.reshape(Parallelism())

    serving.runner.run(scenario())


def test_a_zygote_whose_first_restarts_fail_is_back_at_last(serving):
    launches = serving.launches
    launches.failing = {launches.count + 1, launches.count + 2}
    serving.zygote.kill()
    serving.runner.run(eventually(lambda: not serving.pool.can_serve))
    serving.runner.run(eventually(lambda: len(serving.pids()) == 1))
    assert launches.count > max(launches.failing)


def test_a_model_that_became_another_is_not_served(serving, monkeypatch, caplog):
    monkeypatch.setenv(WIDTH_VARIABLE, "8")
    serving.zygote.kill()
    says = "other inputs or outputs than when the server started"
    serving.runner.run(eventually(lambda: says in caplog.text))
    assert not serving.pool.can_serve
    monkeypatch.delenv(WIDTH_VARIABLE)
    serving.runner.run(eventually(lambda: serving.pool.can_serve))


@pytest.fixture
def open_fifo(tmp_path) -> Iterator[str]:
    """A FIFO that somebody writes to until the test is over."""
    path = str(tmp_path / "fifo")
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    yield path
    os.close(descriptor)


def test_an_end_is_noticed_though_processes_that_the_model_forked_live_on(open_fifo, monkeypatch):
    monkeypatch.setattr(zygote_handle, "ANSWER_TIMEOUT_S", 10 * PATIENCE_S)
    model = ModelReference("tests.support.models.forking_models:forking", (("fifo", open_fifo),))

    async def scenario() -> None:
        pool = WorkerPool([model], "cpu", lambda: None, launch_zygote, PATIENCE_S)
        await pool.start()
        await pool.reshape(Parallelism())
        zygote, worker = pool.pids
        os.kill(worker, signal.SIGKILL)
        await eventually(lambda: pool.can_serve and pool.pids[1] != worker)
        assert pool.pids[0] == zygote
        os.kill(zygote, signal.SIGKILL)
        await eventually(lambda: pool.can_serve and pool.pids[0] != zygote)
        await pool.close()

    asyncio.run(scenario())


def test_a_pool_ends_at_once_though_its_model_is_being_built():
    async def scenario() -> None:
        pool = WorkerPool([ModelReference("sleep")], "cpu", lambda: None, launch_zygote, PATIENCE_S)
        starting = asyncio.create_task(pool.start())
        await eventually(lambda: pool.pids[0] > 0)
        await pool.close()
        with pytest.raises(ModelFailed, match="shutting down"):
            await starting
        assert not psutil.pid_exists(pool.pids[0])

    asyncio.run(scenario())


class WatchedJob:
    """A batch that counts its answers, and keeps whether its workers ended with their nodes."""

    dispatched_ns = 0
    answers = 0

    def __init__(self) -> None:
        self.lost_with_node: list[bool] = []

    def worker_answered(self, outputs: object, reply: object) -> None:
        self.answers += 1

    def worker_died(self, with_node: bool = False) -> None:
        self.lost_with_node.append(with_node)

    def handed_back(self) -> None: ...


@pytest.fixture
def told(monkeypatch) -> Iterator[list[socket.socket]]:
    """The other ends of the channels of a pool's workers, which the test is."""
    ends: list[socket.socket] = []

    async def start(zygote: zygote_handle.ZygoteHandle) -> object:
        zygote.is_serving = True
        return SimpleNamespace(has_parallel_branches=False)

    async def fork(zygote: zygote_handle.ZygoteHandle, order: object, kind: tuple[int, ...]) -> WorkerHandle:
        ours, theirs = socket_pair()
        ends.append(theirs)
        return WorkerHandle(ours, Arena.create("inputs"), Arena.create("outputs"), kind, zygote)

    monkeypatch.setattr(zygote_handle.ZygoteHandle, "start", start)
    monkeypatch.setattr(zygote_handle.ZygoteHandle, "fork", fork)
    yield ends
    for end in ends:
        end.close()


def test_a_worker_whose_outputs_are_read_while_its_pool_ends_is_not_used_again(told, monkeypatch):
    read, job = threading.Event(), WatchedJob()
    monkeypatch.setattr(workers_of_a_model, "MOST_BYTES_ON_LOOP", -1)
    monkeypatch.setattr(workers_of_a_model, "CopiedOutputs", lambda *_: read.wait(PATIENCE_S))

    async def scenario() -> None:
        pool = WorkerPool([ModelReference("noop")], "cpu", lambda: None, launch_zygote, PATIENCE_S)
        await pool.reshape(Parallelism())
        worker = pool.idle.pop()
        pool.run(worker, job, [], 1)
        messages.send(told[0], BatchOutputs([], 0, ComputeTimes(0, 0, 0), worker.number))
        await eventually(lambda: worker.is_copied)
        await pool.close()
        read.set()
        await eventually(lambda: not worker.is_copied)
        assert (pool.idle, job.answers) == ([], 0)

    asyncio.run(scenario())


def test_a_worker_that_fails_at_once_does_not_draw_the_batches(told):
    job = WatchedJob()

    async def scenario() -> None:
        pool = WorkerPool([ModelReference("noop")], "cpu", lambda: None, launch_zygote, PATIENCE_S)
        await pool.reshape(Parallelism(2))
        failing = pool.idle.pop()
        pool.run(failing, job, [], 1)
        messages.send(told[pool.workers.index(failing)], BatchError("the device is lost", number=1))
        await eventually(lambda: job.answers == 1)
        assert pool.idle[-1] is not failing
        assert failing in pool.idle
        await pool.close()

    asyncio.run(scenario())


async def busy_on(*nodes: str) -> tuple[WorkerPool, list[WatchedJob]]:
    """A pool with a busy worker on each of these nodes, and what the workers hold."""
    pool = WorkerPool([ModelReference("noop")], "cpu", lambda: None, launch_zygote, PATIENCE_S)
    await pool.reshape(Parallelism(len(nodes)))
    jobs = [WatchedJob() for _ in nodes]
    for worker, job, node in zip(list(pool.workers), jobs, nodes, strict=True):
        worker.node, worker.nodes = node, (node,)
        pool.idle.remove(worker)
        pool.run(worker, job, [], 1)
    return pool, jobs


def test_a_batch_is_told_whether_its_worker_ended_alone_or_with_its_node(told, monkeypatch):
    monkeypatch.setattr(zygote_handle.ZygoteHandle, "has_ended", False)

    async def scenario() -> None:
        pool, jobs = await busy_on("first", "second", "second")
        messages.send(told[1], NodeEnded("second"))
        await eventually(lambda: [job.lost_with_node for job in jobs] == [[], [True], [True]])
        told[0].shutdown(socket.SHUT_RDWR)
        await eventually(lambda: jobs[0].lost_with_node == [False])
        await pool.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("node", "with_node"), [("first", True), ("", False)])
def test_the_end_of_what_reaches_the_nodes_is_no_end_of_a_worker_alone(told, monkeypatch, node, with_node):
    monkeypatch.setattr(zygote_handle.ZygoteHandle, "has_ended", True)

    async def scenario() -> None:
        pool, jobs = await busy_on(node, node)
        told[0].shutdown(socket.SHUT_RDWR)
        await eventually(lambda: [job.lost_with_node for job in jobs] == [[with_node]] * 2)
        assert bool(pool.cluster_changes) == with_node
        assert pool.cluster_changed_share == pytest.approx(pool.cluster_changes)  # both workers, each time
        await pool.close()

    asyncio.run(scenario())
