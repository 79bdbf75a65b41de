"""The fault injector: what happens when, and to whom."""

from __future__ import annotations

import asyncio
import itertools
import logging
import selectors

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving_adapter.server.workers.fault_file import Delay, Fault, Faults
from serving_adapter.server.workers.fault_injection import episodes, inject, pick
from serving_adapter.server.workers.tenant import Tenant

log = logging.getLogger(__name__)


def uniform(low_ms: float, high_ms: float) -> Delay:
    return Delay("uniform", low_ms, high_ms)


def first(count: int, *faults: Fault, seed: int = 0):
    return list(itertools.islice(episodes(Faults(faults, seed)), count))


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


class FakeWorker:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.slow: Delay | None = None
        self.tenant: Tenant | None = None


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


def test_each_worker_has_a_tenant_of_its_own_while_the_episode_lasts():
    pool = FakePool(1, 2, 3)
    seen: list[set[Tenant | None]] = []

    async def watch() -> None:
        for _ in range(3):
            await asyncio.sleep(0.5)
            seen.append({worker.tenant for worker in pool.workers})
            await asyncio.sleep(0.5)

    fault = Fault("tenant", at_s=(1.0,), for_s=(1.0, 1.0), workers=2, queries_per_s=8.0, query_ms=50.0)
    injected([pool], fault, watch=watch)
    assert seen[0] == seen[2] == {None}
    first, second = seen[1] - {None}
    assert first is not None
    assert second is not None
    assert first.seed != second.seed
    assert first[:2] == second[:2] == (8.0, 50.0)
    assert first.since_ns == second.since_ns == 1_000_000_000


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
