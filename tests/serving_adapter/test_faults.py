"""The fault injector: its file, what happens when, to whom, and what a worker's process makes of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import select
import selectors
import socket
import subprocess
import sys
import urllib.request
from types import SimpleNamespace

import grpc
import numpy as np
import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving_adapter import messages
from serving_adapter.server.arena import Arena, place
from serving_adapter.server.faults import (
    Delay,
    Fault,
    Faults,
    episodes,
    inject,
    parse_faults,
    pick,
    read_faults,
)

log = logging.getLogger(__name__)


def uniform(low_ms: float, high_ms: float) -> Delay:
    return Delay("uniform", low_ms, high_ms)


def first(count: int, *faults: Fault, seed: int = 0):
    return list(itertools.islice(episodes(Faults(faults, seed)), count))


# --- the file ----------------------------------------------------------------------------------------


def test_a_file_is_read_whole(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text(
        """
        seed: 7
        faults:
          - {kind: slow, workers: 2, delay_ms: [5, 40], always: 4, for_s: [0.5, 1.5]}
          - {kind: stall, pool: redundant, mean_gap_s: 1e-1, for_s: 1}
          - {kind: kill, pool: deployed, at_s: [5, 1.0]}
          - {kind: kill, every_s: 2}
        """
    )
    assert read_faults(path) == Faults(
        seed=7,
        faults=(
            Fault("slow", workers=2, delay_ms=uniform(5.0, 40.0), always=4, for_s=(0.5, 1.5)),
            Fault("stall", pool="redundant", mean_gap_s=0.1, for_s=(1.0, 1.0)),
            Fault("kill", pool="deployed", at_s=(1.0, 5.0)),
            Fault("kill", every_s=2.0),
        ),
    )


def test_no_faults_are_no_error():
    assert parse_faults({"faults": []}) == Faults((), seed=0)


BAD_DOCUMENTS = [
    (None, "must hold `key: value` lines (seed, faults), got None"),
    ([], "must hold `key: value` lines (seed, faults), got []"),
    ({}, "needs a list `faults`"),
    ({"seed": 1}, "needs a list `faults`"),
    ({"faults": {"kind": "kill"}}, "faults must be a list, got {'kind': 'kill'}"),
    ({"faults": [], "sed": 1}, "the key 'sed' is unknown; the keys are seed, faults"),
    ({"faults": [], "seed": -1}, "seed must be a whole number from 0, got -1"),
    ({"faults": [], "seed": True}, "seed must be a whole number from 0, got True"),
    ({"faults": ["kill"]}, "fault 1: must hold `key: value` lines (kind, "),
]

BAD_FAULTS = [
    ({"every_s": 1}, "needs a kind (slow, stall, kill)"),
    ({"kind": "maim", "every_s": 1}, "kind must be one of slow, stall, kill, got 'maim'"),
    ({"kind": ["kill"], "every_s": 1}, "kind must be one of slow, stall, kill, got ['kill']"),
    ({"kind": "kill", "every": 1}, "the key 'every' is unknown; the keys are kind, workers"),
    ({"kind": "kill", 1: 1}, "the key 1 is unknown"),
    ({"kind": "kill"}, "needs exactly one schedule (at_s, every_s, mean_gap_s, always), got none"),
    ({"kind": "kill", "at_s": [1], "every_s": 1}, "needs exactly one schedule"),
    ({"kind": "kill", "at_s": [1], "every_s": 1}, "got at_s and every_s"),
    ({"kind": "kill", "at_s": [1, -1]}, "at_s must be a list of numbers from 0 to 86400, got [1, -1]"),
    ({"kind": "kill", "at_s": []}, "at_s must be a list of numbers from 0 to 86400, got []"),
    ({"kind": "kill", "at_s": 3}, "at_s must be a list of numbers from 0 to 86400, got 3"),
    ({"kind": "kill", "every_s": 0}, "every_s must be a number from 0.001 to 86400, got 0"),
    ({"kind": "kill", "every_s": -2}, "every_s must be a number from 0.001 to 86400, got -2"),
    ({"kind": "kill", "every_s": None}, "every_s must be a number from 0.001 to 86400, got None"),
    ({"kind": "kill", "every_s": 10**400}, "every_s must be a number from 0.001 to 86400, got 1000"),
    ({"kind": "kill", "mean_gap_s": float("nan")}, "mean_gap_s must be a number from 0.001"),
    ({"kind": "kill", "mean_gap_s": float("inf")}, "mean_gap_s must be a number from 0.001"),
    ({"kind": "kill", "mean_gap_s": "soon"}, "mean_gap_s must be a number from 0.001"),
    ({"kind": "kill", "always": 1}, "a kill has no end, so `always` does not fit it"),
    ({"kind": "kill", "every_s": 1, "for_s": 1}, "for_s is for slow and stall, not for a kill"),
    ({"kind": "kill", "every_s": 1, "workers": 0}, "workers must be a whole number from 1 to 1000, got 0"),
    (
        {"kind": "kill", "every_s": 1, "workers": 1.5},
        "workers must be a whole number from 1 to 1000, got 1.5",
    ),
    ({"kind": "kill", "every_s": 1, "pool": "none"}, "pool must be one of all, deployed, redundant"),
    ({"kind": "stall", "every_s": 1}, "a stall needs for_s"),
    ({"kind": "stall", "every_s": 1, "for_s": 0}, "for_s must be a number from 0.001 to 86400 or a range"),
    ({"kind": "stall", "every_s": 1, "for_s": [2, 1]}, "or a range [LOW, HIGH] of such, got [2, 1]"),
    ({"kind": "stall", "every_s": 1, "for_s": [1, 2, 3]}, "or a range [LOW, HIGH] of such, got [1, 2, 3]"),
    ({"kind": "stall", "every_s": 1, "for_s": 1, "delay_ms": 5}, "delay_ms is for slow, not for a stall"),
    ({"kind": "stall", "always": 0, "for_s": 1}, "always must be a whole number from 1 to 1000, got 0"),
    ({"kind": "slow", "every_s": 1, "for_s": 1}, "a slow needs delay_ms"),
    ({"kind": "slow", "every_s": 1, "delay_ms": 1}, "a slow needs for_s"),
    ({"kind": "slow", "every_s": 1, "for_s": 1, "delay_ms": [-5, 5]}, "delay_ms must be a number from 0"),
]


@pytest.mark.parametrize(
    ("document", "sentence"),
    BAD_DOCUMENTS + [({"faults": [{"kind": "kill", "every_s": 1}, bad]}, text) for bad, text in BAD_FAULTS],
)
def test_a_bad_document_is_refused_in_one_sentence(document, sentence):
    with pytest.raises(ValueError, match=r"^.*\Z") as refused:
        parse_faults(document)
    assert sentence in str(refused.value)
    assert len(str(refused.value)) < 250


def test_a_bad_fault_is_named_by_its_number_and_file(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text(yaml.safe_dump({"faults": [{"kind": "kill", "every_s": 1}, {"kind": "kill"}]}))
    with pytest.raises(ValueError, match=f"^{path}: fault 2: needs exactly one schedule"):
        read_faults(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot read the faults file .*: No such file or directory"),
        (b"\xff\xfe\xff", "is not a YAML file: it is not UTF-8 text"),
        (b"faults: [", "is not a YAML file: while parsing"),
        (b"faults: 2001-99-99", "is not a YAML file: month must be in 1..12"),
        (b"", "must hold `key: value` lines"),
    ],
)
def test_what_is_no_yaml_file_is_refused_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "faults.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence) as refused:
        read_faults(path)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


# --- what happens when -------------------------------------------------------------------------------


def test_a_list_of_times_is_kept_and_then_over():
    fault = Fault("kill", at_s=(1.0, 1.0, 5.0))
    assert first(10, fault) == [(1.0, fault, 0.0), (1.0, fault, 0.0), (5.0, fault, 0.0)]


def test_a_period_does_not_drift():
    assert [episode.when_s for episode in first(1000, Fault("kill", every_s=0.1))] == [
        i * 0.1 for i in range(1, 1001)
    ]


def test_random_gaps_are_exponential():
    gaps_s = np.diff([0.0] + [episode.when_s for episode in first(20_000, Fault("kill", mean_gap_s=0.5))])
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.03)
    assert gaps_s.std() == pytest.approx(0.5, rel=0.03)
    assert (gaps_s > 0.5).mean() == pytest.approx(np.exp(-1), rel=0.03)


def test_durations_are_uniform():
    durations_s = [e.duration_s for e in first(20_000, Fault("stall", every_s=1.0, for_s=(0.5, 1.5)))]
    assert np.quantile(durations_s, [0, 0.25, 0.5, 0.75, 1]) == pytest.approx(
        [0.5, 0.75, 1, 1.25, 1.5], abs=0.02
    )


@given(count=st.integers(1, 6), seed=st.integers(0, 10**30))
def test_always_means_that_many_at_any_time(count, seed):
    fault = Fault("slow", always=count, for_s=(0.5, 1.5), delay_ms=uniform(5.0, 40.0))
    known = first(60, fault, seed=seed)
    for time_s in np.linspace(0.0, known[-1].when_s, 50):
        assert sum(episode.when_s <= time_s < episode.end_s for episode in known) == count


KILL = Fault("kill", mean_gap_s=0.7)
STALL = Fault("stall", every_s=0.4, for_s=(0.1, 0.2))
SLOW = Fault("slow", always=3, for_s=(0.5, 1.5), delay_ms=uniform(5.0, 40.0), workers=2)


@given(faults=st.lists(st.sampled_from([KILL, STALL, SLOW]), max_size=4), seed=st.integers(0, 2**64))
def test_the_same_file_makes_the_same_episodes_in_order(faults, seed):
    known = first(100, *faults, seed=seed)
    assert known == first(100, *faults, seed=seed)
    assert [episode.when_s for episode in known] == sorted(episode.when_s for episode in known)


def test_another_seed_makes_other_episodes():
    assert first(10, KILL, seed=1) != first(10, KILL, seed=2)


def test_equal_faults_are_independent_and_a_further_one_changes_none():
    alone, together = first(50, KILL), first(150, KILL, KILL)
    assert set(alone) < set(together)
    assert len({episode.when_s for episode in together}) == 150


# --- to whom it happens ------------------------------------------------------------------------------


class FakeWorker:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.slow: Delay | None = None


class FakePool:
    """Notes what is done to it and when, in the order it happens."""

    def __init__(self, *pids: int, is_redundant: bool = False) -> None:
        self.is_redundant = is_redundant
        self.workers = {FakeWorker(pid) for pid in pids}
        self.done: list[tuple[float, str, int]] = []

    def stop(self, worker: FakeWorker) -> None:
        self._note("stop", worker)

    def resume(self, worker: FakeWorker) -> None:
        self._note("resume", worker)

    def kill(self, worker: FakeWorker) -> None:
        self._note("kill", worker)
        self.workers.discard(worker)

    def _note(self, what: str, worker: FakeWorker) -> None:
        self.done.append((round(asyncio.get_running_loop().time(), 6), what, worker.pid))


def picked_pids(fault: Fault, pools: list[FakePool], seed: int = 0) -> list[int]:
    return [worker.pid for _, worker in pick(fault, pools, np.random.default_rng(seed))]


@pytest.mark.parametrize(
    ("pool", "concerned"), [("all", {1, 2, 3, 4, 5}), ("deployed", {1, 2, 3}), ("redundant", {4, 5})]
)
def test_only_workers_of_the_pools_concerned_are_picked_and_each_once(pool, concerned):
    pools = [FakePool(1, 2, 3), FakePool(4, 5, is_redundant=True)]
    for workers in (1, 2, 9):
        fault = Fault("kill", every_s=1.0, pool=pool, workers=workers)
        seen = set()
        for seed in range(50):
            pids = picked_pids(fault, pools, seed)
            assert len(pids) == len(set(pids)) == min(workers, len(concerned))
            seen |= set(pids)
        assert seen == concerned


def test_picking_is_seeded():
    fault = Fault("kill", every_s=1.0, workers=2)
    several = [picked_pids(fault, [FakePool(*range(20))], seed=3) for _ in range(5)]
    assert several == several[:1] * 5


# --- letting it happen -------------------------------------------------------------------------------


class TimelessLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when there is nothing else to do."""

    class Selector(selectors.DefaultSelector):
        now_s = 0.0

        def select(self, timeout=None):
            ready = super().select(0)
            if not ready:
                assert timeout is not None, "all wait for each other"
                self.now_s += timeout
            return ready

    def __init__(self) -> None:
        self._timeless = self.Selector()
        super().__init__(self._timeless)

    def time(self) -> float:
        return self._timeless.now_s


def injected(
    pools: list[FakePool], *faults: Fault, until_s: float = 1000.0, seed: int = 0, watch=None
) -> None:
    """What `inject` does to the pools in so many seconds of a clock that nobody waits for."""

    async def drive() -> None:
        task = asyncio.create_task(inject(Faults(faults, seed), lambda: pools, log))
        if watch is not None:
            watching = asyncio.create_task(watch())
        await asyncio.wait([task], timeout=until_s)
        if watch is not None:
            await watching
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            task.result()

    with asyncio.Runner(loop_factory=TimelessLoop) as runner:
        runner.run(drive())


def test_kills_happen_on_schedule():
    pool = FakePool(1, 2, 3, 4)
    injected([pool], Fault("kill", every_s=2.0), until_s=7.0)
    assert [(when_s, what) for when_s, what, _ in pool.done] == [(2.0, "kill"), (4.0, "kill"), (6.0, "kill")]
    assert len({pid for *_, pid in pool.done}) == 3


def test_a_stall_stops_and_resumes():
    pool = FakePool(1, 2)
    injected([pool], Fault("stall", at_s=(1.0,), for_s=(0.5, 0.5), workers=2))
    assert sorted(pool.done) == [(1.0, "stop", 1), (1.0, "stop", 2), (1.5, "resume", 1), (1.5, "resume", 2)]


def test_overlapping_stalls_of_a_worker_end_with_the_last():
    pool = FakePool(1)
    long, short = Fault("stall", at_s=(0.0,), for_s=(3.0, 3.0)), Fault("stall", at_s=(1.0,), for_s=(1.0, 1.0))
    injected([pool], long, short)
    assert pool.done == [(0.0, "stop", 1), (3.0, "resume", 1)]


def test_a_stalled_worker_is_resumed_though_its_pool_has_let_go_of_it():
    pool = FakePool(1)
    injected([pool], Fault("stall", at_s=(0.0,), for_s=(3.0, 3.0)), Fault("kill", at_s=(1.0,)))
    assert pool.done == [(0.0, "stop", 1), (1.0, "kill", 1), (3.0, "resume", 1)]


def test_overlapping_slow_episodes_nest_and_the_larger_delay_holds():
    pool = FakePool(1)
    (worker,) = pool.workers
    seen = []

    async def watch() -> None:
        for _ in range(5):
            await asyncio.sleep(0.5)
            seen.append(worker.slow)
            await asyncio.sleep(0.5)

    injected(
        [pool],
        Fault("slow", at_s=(1.0,), for_s=(3.0, 3.0), delay_ms=uniform(5.0, 10.0)),
        Fault("slow", at_s=(2.0,), for_s=(1.0, 1.0), delay_ms=uniform(20.0, 40.0)),
        watch=watch,
    )
    assert seen == [None, uniform(5.0, 10.0), uniform(20.0, 40.0), uniform(5.0, 10.0), None]


def test_cancelled_it_leaves_no_worker_slow_or_stopped():
    pool = FakePool(*range(1, 13))
    injected(
        [pool],
        Fault("slow", always=4, workers=2, for_s=(0.5, 1.5), delay_ms=uniform(5.0, 40.0)),
        Fault("stall", always=2, for_s=(0.5, 1.5)),
        until_s=10.25,
    )
    assert {worker.slow for worker in pool.workers} == {None}
    for pid in range(1, 13):
        whats = [what for _, what, of in pool.done if of == pid]
        assert whats == ["stop", "resume"] * (len(whats) // 2)
    assert pool.done[-1][:2] == (10.25, "resume")


def test_background_slowness_concerns_as_many_workers_as_it_says():
    pool = FakePool(*range(1, 101))
    seen = []

    async def watch() -> None:
        for _ in range(40):
            await asyncio.sleep(0.25)
            seen.append(sum(worker.slow is not None for worker in pool.workers))

    injected(
        [pool],
        Fault("slow", always=4, workers=2, for_s=(0.5, 1.5), delay_ms=uniform(5.0, 40.0)),
        until_s=10.5,
        watch=watch,
    )
    assert set(seen) <= {6, 7, 8}  # fewer than 8 where two episodes meet on a worker
    assert 8 in seen


def test_the_same_seed_does_the_same_to_the_same_workers():
    faults = (Fault("stall", mean_gap_s=0.3, for_s=(0.1, 0.9), workers=2), Fault("kill", every_s=2.0))
    pools = [FakePool(*range(1, 9)) for _ in range(3)]
    for pool, seed in zip(pools, (5, 5, 6), strict=True):
        injected([pool], *faults, until_s=9.9, seed=seed)
    first, second, other = (sorted(pool.done) for pool in pools)  # what ends at one moment has no order
    assert first == second != other


def test_without_workers_nothing_happens():
    injected([], Fault("kill", at_s=(1.0,)))
    injected([FakePool(is_redundant=True)], Fault("stall", at_s=(1.0,), for_s=(1.0, 1.0)))


def test_pools_are_asked_for_each_time():
    pools = [FakePool(1)]

    async def watch() -> None:
        await asyncio.sleep(1.5)
        pools[0] = FakePool(2)

    injected(pools, Fault("kill", at_s=(2.0,)), watch=watch)
    assert pools[0].done == [(2.0, "kill", 2)]


# --- a real zygote and its workers -------------------------------------------------------------------


class RealWorker:
    """A worker as the front holds it, spoken to over its channel."""

    def __init__(self, zygote: RealZygote) -> None:
        self.channel, theirs = messages.socket_pair()
        self.inputs, self.outputs = Arena.create("inputs"), Arena.create("outputs")
        settings = {"inter_op_threads": 1, "intra_op_threads": 1}
        descriptors = (theirs.fileno(), self.inputs.fd, self.outputs.fd)
        messages.send(zygote.control, settings, descriptors)
        theirs.close()
        self.pid = messages.receive(self.channel)["ready"]
        self.process = psutil.Process(self.pid)

    def send_batch(self, value: float, **more: float) -> None:
        (placed,), _ = place([("x", "FP32", (1, 16))])
        self.inputs.array(placed)[...] = value
        batch = {
            "model": 0,
            "inputs": [placed],
            "capacity": self.inputs.capacity_bytes,
            "intra_op_threads": 1,
        }
        messages.send(self.channel, batch | more)

    def answer(self) -> SimpleNamespace:
        message = messages.receive(self.channel)
        (placed,), _ = place([("x", "FP32", (1, 16))])
        infer_ms = 1e-6 * message["compute_ns"][1]
        return SimpleNamespace(value=float(self.outputs.array(placed)[0, 0]), infer_ms=infer_ms)

    def await_status(self, *statuses: str) -> None:
        while self.process.status() not in statuses:
            pass

    def has_said_something(self) -> bool:
        return bool(select.select([self.channel], [], [], 0)[0])

    def close(self) -> None:
        self.channel.close()
        self.inputs.close()
        self.outputs.close()


class RealZygote:
    """A zygote of `noop` as `WorkerPool` starts it, its workers forked on demand."""

    def __init__(self) -> None:
        self.control, theirs = messages.socket_pair()
        command = [sys.executable, "-m", "serving_adapter.server.zygote", str(theirs.fileno())]
        environment = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"} | dict(os.environ)
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        theirs.close()
        messages.send(self.control, {"models": [{"reference": "noop", "options": {}}], "device": "cpu"})
        assert "model" in messages.receive(self.control)
        self.workers: list[RealWorker] = []

    def worker(self) -> RealWorker:
        self.workers.append(RealWorker(self))
        return self.workers[-1]

    def order(self, what: str, pid: int) -> None:
        messages.send(self.control, {what: pid})

    def close(self) -> None:
        self.control.close()
        self.process.wait(30)
        for worker in self.workers:
            worker.close()


@pytest.fixture(scope="module")
def zygote():
    running = RealZygote()
    yield running
    running.close()


def test_a_stopped_worker_answers_once_it_is_resumed(zygote):
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    worker.send_batch(7.0)
    assert worker.process.status() == psutil.STATUS_STOPPED
    assert not worker.has_said_something()
    zygote.order("resume", worker.pid)
    assert worker.answer().value == 7.0


def test_a_stopped_worker_can_be_killed(zygote):
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    worker.send_batch(7.0)
    zygote.order("kill", worker.pid)
    assert messages.receive(worker.channel) is None
    assert not psutil.wait_procs([worker.process], timeout=30)[1]


def test_orders_for_a_worker_that_is_gone_are_no_error(zygote):
    gone = zygote.worker()
    zygote.order("kill", gone.pid)
    assert not psutil.wait_procs([gone.process], timeout=30)[1]
    for what in ("stop", "resume", "kill"):
        zygote.order(what, gone.pid)
    worker = zygote.worker()
    worker.send_batch(1.0)
    assert worker.answer().value == 1.0


def test_a_worker_let_go_of_while_stopped_ends_once_it_is_resumed(zygote):
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    worker.channel.shutdown(socket.SHUT_RDWR)
    zygote.order("resume", worker.pid)
    assert not psutil.wait_procs([worker.process], timeout=30)[1]


def test_only_the_zygotes_own_children_take_its_orders(zygote):
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        for what in ("stop", "kill"):
            zygote.order(what, stranger.pid)
        worker = zygote.worker()  # by now the orders are read
        assert psutil.Process(stranger.pid).status() != psutil.STATUS_STOPPED
        stranger.communicate(b"\n")
        assert stranger.returncode == 0
    finally:
        stranger.kill()
        stranger.wait()
    worker.send_batch(2.0)
    assert worker.answer().value == 2.0


def test_a_stopped_worker_does_not_outlive_its_zygote():
    zygote = RealZygote()
    worker = zygote.worker()
    zygote.order("stop", worker.pid)
    worker.await_status(psutil.STATUS_STOPPED)
    zygote.close()
    assert not psutil.wait_procs([worker.process], timeout=30)[1]


def test_a_slowed_batch_takes_that_much_longer_in_its_compute_time(zygote):
    worker = zygote.worker()
    worker.send_batch(3.0, slow_ms=80.0)
    slowed = worker.answer()
    assert slowed.value == 3.0
    assert slowed.infer_ms >= 80.0


# --- a whole server ----------------------------------------------------------------------------------


def request_of(value: float) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name="sleep")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(np.full((1, 16), value, np.float32).tobytes())
    return request


def metric(server, name: str) -> float:
    page = urllib.request.urlopen(server.metrics_url, timeout=10).read().decode()
    return sum(float(row.rpartition(" ")[2]) for row in page.splitlines() if row.startswith(name + "{"))


@pytest.fixture
def server_with(start_server, tmp_path):
    """Starts a server of `sleep` with faults to inject."""

    def start(*arguments: object, **fault: object):
        path = tmp_path / "faults.yaml"
        path.write_text(yaml.safe_dump({"faults": [fault]}))
        return start_server("--model", "sleep", "--model-option", "ms=2", "--faults", path, *arguments)

    return start


def ask_until(server, name: str, least: float) -> None:
    """Sends one request after the other until a counter is there; each must get its own answer."""
    with grpc.insecure_channel(server.address) as channel:
        infer = GRPCInferenceServiceStub(channel).ModelInfer
        value = 0.0
        while metric(server, name) < least:
            value += 1
            answer = infer(request_of(value), timeout=60)
            assert np.frombuffer(answer.raw_output_contents[0], np.float32)[0] == value


def test_no_request_fails_though_workers_are_killed(server_with):
    server = server_with("--instances", 2, kind="kill", every_s=0.2)
    ask_until(server, "rrl_worker_replacements", 5)
    assert metric(server, "nv_inference_request_failure") == 0


def test_a_worker_stalled_for_good_is_found_hung_and_replaced(server_with):
    server = server_with("--worker-timeout-s", 0.2, kind="stall", at_s=[0], for_s=1000)
    ask_until(server, "rrl_worker_replacements", 1)
    assert metric(server, "nv_inference_request_failure") == 0


def test_a_server_refuses_a_bad_faults_file_in_one_sentence(tmp_path):
    path = tmp_path / "faults.yaml"
    path.write_text("faults: [{kind: kill}]")
    command = [sys.executable, "-m", "serving_adapter.server.command_line", "--faults", path]
    ended = subprocess.run([*command, "--port", "0"], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    sentence = "fault 1: needs exactly one schedule (at_s, every_s, mean_gap_s, always), got none"
    assert ended.stderr == f"{path}: {sentence}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20", Delay("uniform", 20.0, 20.0)),
        ("[5, 40]", Delay("uniform", 5.0, 40.0)),
        ("{median: 5, sigma: 1}", Delay("log-normal", 5.0, 1.0)),
        ("{mean: 10}", Delay("exponential", 10.0, 0.0)),
    ],
)
def test_the_distributions_of_a_delay_have_the_mean_that_they_say(text, expected):
    document = f"faults: [{{kind: slow, at_s: [0], for_s: 1, delay_ms: {text}}}]"
    (fault,) = parse_faults(yaml.safe_load(document)).faults
    assert fault.delay_ms == expected
    rng = np.random.default_rng(0)
    drawn_ms = [expected.draw_ms(rng) for _ in range(20_000)]
    assert np.mean(drawn_ms) == pytest.approx(expected.mean_ms, rel=0.05)
    assert min(drawn_ms) >= 0


@pytest.mark.parametrize("text", ["{median: 5}", "{mean: 5, sigma: 1}", "{median: -1, sigma: 1}", "[1]", "x"])
def test_a_delay_of_no_known_distribution_is_refused(text):
    document = f"faults: [{{kind: slow, at_s: [0], for_s: 1, delay_ms: {text}}}]"
    with pytest.raises(ValueError, match="delay_ms must be a number from 0"):
        parse_faults(yaml.safe_load(document))
