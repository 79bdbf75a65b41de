"""Lets the faults of a fault file happen to the workers: slows them, gives them tenants, stalls, kills them.

When something happens is a pure function of the file (`episodes`), and `inject` lets it happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from serving_adapter.server.workers.fault_file import Delay, Fault, Faults
from serving_adapter.server.workers.tenant import NS_PER_S, Tenant

# --- what happens when -------------------------------------------------------------------------------


class FaultEpisode(NamedTuple):
    """A fault that begins `when_s` after the start and lasts `duration_s` (a kill: 0)."""

    when_s: float
    fault: Fault
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.when_s + self.duration_s


def episodes(faults: Faults) -> Iterator[FaultEpisode]:
    """Everything that is to happen, in order, often without end; the same for the same file."""
    generators = np.random.default_rng(faults.seed).spawn(len(faults.faults))
    each = [_episodes(fault, rng) for fault, rng in zip(faults.faults, generators, strict=True)]
    return _in_order(each)


def _episodes(fault: Fault, rng: np.random.Generator) -> Iterator[FaultEpisode]:
    if fault.always is not None:
        return _in_order([_back_to_back(fault, lane) for lane in rng.spawn(fault.always)])
    return (FaultEpisode(when_s, fault, _duration_s(fault, rng)) for when_s in _times_s(fault, rng))


def _back_to_back(fault: Fault, rng: np.random.Generator) -> Iterator[FaultEpisode]:
    """One episode at any time."""
    when_s = 0.0
    while True:
        episode = FaultEpisode(when_s, fault, _duration_s(fault, rng))
        yield episode
        when_s = episode.end_s


def _times_s(fault: Fault, rng: np.random.Generator) -> Iterator[float]:
    if fault.at_s is not None:
        yield from fault.at_s
    elif fault.every_s is not None:
        for i in itertools.count(1):
            yield i * fault.every_s
    elif fault.mean_gap_s is not None:
        when_s = 0.0
        while True:
            when_s += rng.exponential(fault.mean_gap_s)
            yield when_s


def _duration_s(fault: Fault, rng: np.random.Generator) -> float:
    return 0.0 if fault.for_s is None else float(rng.uniform(*fault.for_s))


def _in_order(several: Sequence[Iterator[FaultEpisode]]) -> Iterator[FaultEpisode]:
    return heapq.merge(*several, key=lambda episode: episode.when_s)


# --- to whom it happens ------------------------------------------------------------------------------


class FaultyWorker(Protocol):
    """A worker as its pool sees it; `slow` and `tenant` are read when a batch is handed to it."""

    pid: int
    slow: Delay | None
    tenant: Tenant | None


class FaultyPool(Protocol):
    """The workers of one model that are there for one purpose."""

    @property
    def is_redundant(self) -> bool: ...
    @property
    def workers(self) -> Collection[FaultyWorker]: ...
    def stop(self, worker: Any) -> None: ...
    def resume(self, worker: Any) -> None: ...
    def kill(self, worker: Any) -> None: ...


class Victim(NamedTuple):
    pool: FaultyPool
    worker: FaultyWorker


def pick(fault: Fault, pools: Sequence[FaultyPool], rng: np.random.Generator) -> list[Victim]:
    """Different workers for a fault, each as likely as the others; all of them where there are too few."""
    concerned = [
        Victim(pool, worker)
        for pool in pools
        if fault.pool == "all" or pool.is_redundant == (fault.pool == "redundant")
        for worker in sorted(pool.workers, key=lambda worker: worker.pid)
    ]
    chosen = rng.permutation(len(concerned))[: fault.workers]
    return [concerned[i] for i in chosen]


class _FaultsInForce:
    """The faults that workers suffer at the moment; episodes that overlap on one worker nest."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng  # draws the tenants' seeds
        self._delays: defaultdict[FaultyWorker, list[Delay]] = defaultdict(list)
        self._tenants: defaultdict[FaultyWorker, list[Tenant]] = defaultdict(list)
        self._stalls = Counter[FaultyWorker]()

    def entered(self, fault: Fault, victim: Victim) -> contextlib.AbstractContextManager[None]:
        if fault.delay_ms is not None:
            return self._slow(victim.worker, fault.delay_ms)
        if fault.queries_per_s is not None and fault.query_ms is not None:
            now_ns = round(NS_PER_S * asyncio.get_running_loop().time())
            seed = int(self._rng.integers(1 << 32))
            return self._shared(victim.worker, Tenant(fault.queries_per_s, fault.query_ms, seed, now_ns))
        return self._stall(victim)

    @contextlib.contextmanager
    def _slow(self, worker: FaultyWorker, delay: Delay) -> Iterator[None]:
        """The delay that is larger in the mean holds."""
        delays = self._delays[worker]
        delays.append(delay)
        worker.slow = max(delays, key=_mean_ms)
        try:
            yield
        finally:
            delays.remove(delay)
            worker.slow = max(delays, key=_mean_ms, default=None)
            if not delays:
                del self._delays[worker]

    @contextlib.contextmanager
    def _shared(self, worker: FaultyWorker, tenant: Tenant) -> Iterator[None]:
        """The tenant that came last counts."""
        tenants = self._tenants[worker]
        tenants.append(tenant)
        worker.tenant = tenant
        try:
            yield
        finally:
            tenants.remove(tenant)
            worker.tenant = tenants[-1] if tenants else None
            if not tenants:
                del self._tenants[worker]

    @contextlib.contextmanager
    def _stall(self, victim: Victim) -> Iterator[None]:
        pool, worker = victim
        self._stalls[worker] += 1
        if self._stalls[worker] == 1:
            pool.stop(worker)
        try:
            yield
        finally:
            self._stalls[worker] -= 1
            if not self._stalls[worker]:
                del self._stalls[worker]
                # Even if its pool has closed it: a stopped process does not see that it should end.
                pool.resume(worker)


def _mean_ms(delay: Delay) -> float:
    return delay.mean_ms


async def inject(faults: Faults, pools: Callable[[], Sequence[FaultyPool]], log: logging.Logger) -> None:
    """Lets the faults happen, counted from now; returns when all are over. Cancelled, it ends them all."""
    start_s = asyncio.get_running_loop().time()
    rng = np.random.default_rng([faults.seed, 1])  # `episodes` draws from children of the seed
    in_force = _FaultsInForce(np.random.default_rng([faults.seed, 2]))

    async def suffer(episode: FaultEpisode, victims: list[Victim]) -> None:
        with contextlib.ExitStack() as lasting:
            for victim in victims:
                lasting.enter_context(in_force.entered(episode.fault, victim))
            await _sleep_until(start_s + episode.end_s)

    async with asyncio.TaskGroup() as running:
        for episode in episodes(faults):
            await _sleep_until(start_s + episode.when_s)
            victims = pick(episode.fault, pools(), rng)
            log.info("injected fault: %s", _described(episode, victims))
            if episode.fault.kind == "kill":
                for pool, worker in victims:
                    pool.kill(worker)
            else:
                running.create_task(suffer(episode, victims))


async def _sleep_until(time_s: float) -> None:
    await asyncio.sleep(time_s - asyncio.get_running_loop().time())


def _described(episode: FaultEpisode, victims: list[Victim]) -> str:
    pids = ", ".join(str(worker.pid) for _, worker in victims) or "none there"
    lasting = f" for {episode.duration_s:.3f} s" if episode.duration_s else ""
    return f"{episode.fault.kind}{lasting}, workers: {pids}"
