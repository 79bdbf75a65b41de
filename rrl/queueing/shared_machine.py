"""Several models on the cores of one machine, from event to event: the truth that joint tuning is tried on.

| symbol | here | meaning |
|---|---|---|
| C | `cores` | cores of the machine |
| n(t), T(t) | | batches in service of all models at the moment t, and the threads that they put to work |
| A_m[b] | `alone_s` | service time of a batch of b requests of model m that is alone on the machine |
| v(t) | `speed` | speed of every batch: 1 / (max(1, T/C)^ω · (1 + μ (n - 1) / C)) |
| ω, μ | `over_subscription`, `memory` | loss where threads take turns; interference by memory |
| r_k | `LEFT` | seconds alone that are left of batch k: dr_k/dt = -v(t) |

Each model has a queue and a batcher of its own, as in `kernels`. All of it is in this one module because of
numba's cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from rrl.queueing.compiling import compiled as _compiled
from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.space import Configuration

MODEL, START, LEFT, BUSY, SIZE = range(5)  # rows of what runs


class Contention(NamedTuple):
    """How batches slow each other down."""

    cores: float = 4.0
    over_subscription: float = 1.1  # ω
    memory: float = 0.2  # μ


class _Rules(NamedTuple):
    """(M,) what the configuration says of each model."""

    instances: np.ndarray
    full_size: np.ndarray
    delay_s: np.ndarray
    threads: np.ndarray
    alone_s: np.ndarray  # (M, B)


class _State(NamedTuple):
    """What is kept from run to run; arrays are changed in place."""

    waiting: np.ndarray  # (M, capacity) arrival times
    waits: np.ndarray  # (M,) int: how many wait
    running: np.ndarray  # (5, most batches)
    held: np.ndarray  # (most batches, B) arrival times of the requests in each


class _Done(NamedTuple):
    """What finished: arrays filled in place."""

    requests: np.ndarray  # (M, 3, capacity): arrival, start, finish
    batches: np.ndarray  # (M, 4, capacity): start, finish, busy, size
    counts: np.ndarray  # (M, 2) int: requests and batches


@_compiled
def _run(
    span_s: Any, contention: Any, rules: Any, state: Any, done: Any, factors: np.ndarray, counts: Any
) -> Any:
    """One run. `counts` are the batches that run, and those started so far.

    Returns those then, and the core-seconds used.
    """
    now_s, until_s = span_s
    cores, over_subscription, memory = contention
    instances, full_size, delay_s, threads, alone_s = rules
    waiting, waits, running, held = state
    requests, batches, finished = done
    n_running, started = counts
    models = len(instances)
    head = np.zeros(models, np.int64)
    busy = np.zeros(models, np.int64)
    for k in range(n_running):
        busy[int(running[MODEL, k])] += 1
    thread_s = 0.0
    while True:
        ready_s = np.inf
        for m in range(models):
            while busy[m] < instances[m] and head[m] < waits[m]:
                due_s = waiting[m, head[m]] + delay_s[m]
                last = head[m] + full_size[m] - 1
                if last < waits[m]:
                    due_s = min(due_s, waiting[m, last])
                if due_s > now_s:
                    ready_s = min(ready_s, due_s)
                    break
                tail = head[m]
                while tail < waits[m] and tail - head[m] < full_size[m] and waiting[m, tail] <= now_s:
                    held[n_running, tail - head[m]] = waiting[m, tail]
                    tail += 1
                size = tail - head[m]
                busy[m] += 1
                running[MODEL, n_running] = m
                running[START, n_running] = now_s
                running[LEFT, n_running] = alone_s[m, size - 1] * factors[started % len(factors)]
                running[BUSY, n_running] = busy[m]
                running[SIZE, n_running] = size
                n_running += 1
                started += 1
                head[m] = tail
        at_work, least = 0.0, np.inf
        for k in range(n_running):
            at_work += threads[int(running[MODEL, k])]
            least = min(least, running[LEFT, k])
        taking_turns = max(1.0, at_work / cores) ** over_subscription
        speed = 1.0 / (taking_turns * (1 + memory * max(0, n_running - 1) / cores))
        finish_s = now_s + least / speed
        event_s = min(finish_s, ready_s, until_s)
        if event_s == np.inf:
            break
        thread_s += (event_s - now_s) * min(at_work, cores)
        for k in range(n_running):
            if now_s + running[LEFT, k] / speed <= event_s:
                running[LEFT, k] = 0.0
            else:
                running[LEFT, k] -= (event_s - now_s) * speed
        now_s = event_s
        if not event_s < until_s:
            break
        kept = 0
        for k in range(n_running):
            m, size = int(running[MODEL, k]), int(running[SIZE, k])
            if running[LEFT, k] > 0.0:
                for row in range(5):
                    running[row, kept] = running[row, k]
                held[kept, :size] = held[k, :size]
                kept += 1
                continue
            busy[m] -= 1
            for j in range(size):
                place = finished[m, 0]
                requests[m, 0, place] = held[k, j]
                requests[m, 1, place] = running[START, k]
                requests[m, 2, place] = now_s
                finished[m, 0] = place + 1
            place = finished[m, 1]
            batches[m, 0, place] = running[START, k]
            batches[m, 1, place] = now_s
            batches[m, 2, place] = running[BUSY, k]
            batches[m, 3, place] = size
            finished[m, 1] = place + 1
        n_running = kept
    for m in range(models):
        left = waits[m] - head[m]
        waiting[m, :left] = waiting[m, head[m] : waits[m]]
        waits[m] = left
    return n_running, started, thread_s


class SharedMachine:
    """The machine with its models, and what waits and runs there. Time goes on from run to run."""

    def __init__(
        self, machines: Sequence[Machine], contention: Contention, factors: np.ndarray | None = None
    ) -> None:
        """`machines` tell what each model's batches take alone: of these tables, one busy instance counts.

        Batch k of all takes factors[k % len(factors)] times as long.
        """
        self.now_s = 0.0
        self._machines, self._contention = list(machines), contention
        self._factors = np.ones(1) if factors is None else np.ascontiguousarray(factors, dtype=float)
        self._waits = np.zeros(len(self._machines), np.int64)
        self._waiting = np.empty((len(self._machines), 0))
        self._running, self._held = np.empty((5, 0)), np.empty((0, 1))
        self._counts = 0, 0

    @property
    def backlogs(self) -> np.ndarray:
        """(M,) requests of each model in the server: waiting or in service."""
        n_running = self._counts[0]
        of = self._running[MODEL, :n_running].astype(int)
        in_service = np.bincount(of, self._running[SIZE, :n_running], len(self._machines))
        return np.asarray(self._waits + in_service.astype(int))

    def now_on(self, machines: Sequence[Machine]) -> None:
        """From now on batches that start take what these machines say."""
        self._machines = list(machines)

    def run(
        self, arrivals_s: Sequence[np.ndarray], configurations: Sequence[Configuration], until_s: float
    ) -> list[Outcome]:
        """Simulates [now, until) with these arrivals of each model, ascending and inside it.

        `until_s` may be infinite. What is in service goes on as it started. Knobs that a configuration lacks
        count as 1 (no delay).
        """
        rules = self._rules(configurations)
        self._make_room(arrivals_s, rules)
        room = int((self.backlogs + [len(each) for each in arrivals_s]).max()) + 1
        for m, times_s in enumerate(arrivals_s):
            waits = int(self._waits[m])
            self._waiting[m, waits : waits + len(times_s)] = times_s
            self._waits[m] = waits + len(times_s)
        models = len(self._machines)
        done = _Done(
            np.empty((models, 3, room)), np.empty((models, 4, room)), np.zeros((models, 2), np.int64)
        )
        state = (self._waiting, self._waits, self._running, self._held)
        span_s = self.now_s, float(until_s)
        contention = tuple(map(float, self._contention))
        *counts, thread_s = _run(
            span_s, contention, tuple(rules), state, tuple(done), self._factors, self._counts
        )
        self._counts = int(counts[0]), int(counts[1])
        self.now_s = float(until_s)
        return [
            Outcome(  # type: ignore[call-arg]
                *done.requests[m, :, : done.counts[m, 0]], *done.batches[m, :, : done.counts[m, 1]], thread_s
            )
            for m in range(models)
        ]

    def _rules(self, configurations: Sequence[Configuration]) -> _Rules:
        def of(name: str, default: int = 1) -> np.ndarray:
            return np.array([c.get(name, default) for c in configurations])

        full_size = of("max_batch_size")
        alone_s = np.full((len(configurations), int(full_size.max())), np.nan)
        for m, (machine, configuration) in enumerate(zip(self._machines, configurations, strict=True)):
            alone_s[m, : full_size[m]] = machine.table({**configuration, "instances": 1})[0]
        threads = of("intra_op_threads") * of("inter_op_threads")
        delay_s = 1e-6 * of("max_queue_delay_us", 0)
        return _Rules(of("instances"), full_size, delay_s, threads.astype(float), alone_s)

    def _make_room(self, arrivals_s: Sequence[np.ndarray], rules: _Rules) -> None:
        """For all requests to wait, and for as many batches as may run, those of before among them."""
        most = int((self._waits + [len(each) for each in arrivals_s]).max())
        if most > self._waiting.shape[1]:
            self._waiting = _wider(self._waiting, (len(self._machines), 2 * most))
        batches = int(rules.instances.sum()) + self._counts[0]
        size = max(int(rules.full_size.max()), self._held.shape[1])
        if batches > self._running.shape[1]:
            self._running = _wider(self._running, (5, batches))
        if batches > len(self._held) or size > self._held.shape[1]:
            self._held = _wider(self._held, (max(batches, len(self._held)), size))


def _wider(rows: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    wide = np.zeros(shape)
    wide[: rows.shape[0], : rows.shape[1]] = rows
    return wide
