"""A discrete-event simulation of the queue, the batcher and the workers, compiled with numba.

| symbol | here | meaning |
|---|---|---|
| a_i | `arrival_s` | arrival time of request i; requests are served first come, first served |
| c | `instances` | batches that may be in service at once |
| B, d | `max_batch_size`, `max_queue_delay_us` | full with B requests, or due once its head waited d |
| s | `start_s` | dispatch of the batch headed by i: max(time an instance is free, min(a_[i+B-1], a_i + d)) |
| S[n, b] | `Machine.table` | service time of a batch of b requests with n in service, this one included |

The batch holds the requests that arrived by s, at most B. Its service time is fixed at its start: S[n, b] of
that moment, times the mean (where batches are padded, the largest) size of its requests, times a variation
factor.

Runs follow one another: what waits or is in service at the end of one is there at the start of the next, so a
run cut into slices is the same run. A run covers [now, until): an event at `until` belongs to the next.
A configuration holds for the batches that start under it. With fewer instances than batches in service none
starts until enough have finished; when an instance is free depends on the c latest finish times alone.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from rrl.queueing.machine import Machine
from rrl.queueing.outcome import Outcome
from rrl.space import Configuration

# Rows of the arrays that hold one request or one batch a column.
ARRIVAL, SIZE = 0, 1  # waiting requests
START, FINISH = 1, 2  # requests in service, and done; ARRIVAL is their row 0 too
B_START, B_FINISH, B_BUSY, B_SIZE, B_THREADS = range(5)  # batches

_NOT_ASCENDING = -1  # the kernel's answer to arrivals that do not


class Simulation:
    """A server in simulation: a machine, the requests that wait and the batches in service."""

    def __init__(
        self, machine: Machine, *, padded_batches: bool = False, service_factors: np.ndarray | None = None
    ) -> None:
        """`padded_batches`: a batch takes the time of its largest request, not that of its mean one.

        `service_factors`: variation; batch number k takes `factors[k % len(factors)]` times as long.
        """
        factors = np.ones(1) if service_factors is None else np.array(service_factors, dtype=np.float64)
        if factors.ndim != 1 or factors.size == 0 or not np.all(np.isfinite(factors) & (factors > 0)):
            raise ValueError("service factors must be a non-empty one-dimensional array of positive numbers")
        self.machine = machine
        self.now_s = 0.0
        self._padded_batches = padded_batches
        self._factors = factors
        self._batches_started = 0
        self._waiting = np.empty((2, 0))
        self._serving = np.empty((3, 0))
        self._running = np.empty((5, 0))
        self._waiting_count = self._serving_count = self._running_count = 0

    @property
    def backlog(self) -> int:
        """Requests in the server: waiting or in service."""
        return self._waiting_count + self._serving_count

    def drop_backlog(self) -> None:
        """Empties the server: nothing waits and nothing is in service from now on."""
        self._waiting_count = self._serving_count = self._running_count = 0

    def run(
        self,
        arrival_times_s: np.ndarray,
        sizes: np.ndarray | None,
        configuration: Configuration,
        until_s: float,
    ) -> Outcome:
        """Simulates [now, until) with these arrivals, ascending and inside it, and sizes (None: all 1).

        Knobs the configuration lacks: 1 instance, 1 thread, batches of 1, no delay. `until_s` may be inf.
        """
        table_s = self.machine.table(configuration)
        delay_s = 1e-6 * configuration.get("max_queue_delay_us", 0)
        threads = configuration.get("intra_op_threads", 1) * configuration.get("inter_op_threads", 1)
        arrivals = np.ascontiguousarray(arrival_times_s, dtype=np.float64)
        count = len(arrivals)
        if delay_s < 0:
            raise ValueError(f"max_queue_delay_us must not be negative, got {1e6 * delay_s:g}")
        if not until_s >= self.now_s:
            raise ValueError(f"the simulation is at {self.now_s:g} s already and cannot run to {until_s:g} s")
        if count and not (arrivals[0] >= self.now_s and arrivals[-1] < until_s):
            raise ValueError(
                f"arrivals must lie in [{self.now_s:g}, {until_s:g}) s, "
                f"got {arrivals[0]:g} to {arrivals[-1]:g} s"
            )
        self._reserve(self.backlog + count)
        done = np.empty((3, self.backlog + count))
        batches = np.empty((4, self._running_count + self._waiting_count + count))
        state = _run(
            self.now_s,
            float(until_s),
            delay_s,
            float(threads),
            self._padded_batches,
            table_s,
            self._factors,
            self._batches_started,
            arrivals,
            _NO_SIZES if sizes is None else _checked_sizes(sizes, count),
            self._waiting,
            self._waiting_count,
            self._serving,
            self._serving_count,
            self._running,
            self._running_count,
            np.full(len(table_s), -np.inf),
            done,
            batches,
        )
        n_done, n_batches, waiting, serving, running, started, busy_thread_s = state
        if n_done == _NOT_ASCENDING:
            raise ValueError("arrivals must be numbers in ascending order")
        self._waiting_count, self._serving_count, self._running_count = waiting, serving, running
        self._batches_started = started
        self.now_s = float(until_s)
        requests, rows = done[:, :n_done], batches[:, :n_batches]
        return Outcome(*requests, *rows, busy_thread_s)  # type: ignore[call-arg]

    def _reserve(self, requests: int) -> None:
        """Makes room for so many requests to wait, or to be in service one by one."""
        if requests > self._waiting.shape[1]:
            for name in ("_waiting", "_serving", "_running"):
                old = getattr(self, name)
                new = np.empty((len(old), 2 * requests))
                new[:, : old.shape[1]] = old
                setattr(self, name, new)


_NO_SIZES = np.empty(0)


def _checked_sizes(sizes: np.ndarray, count: int) -> np.ndarray:
    checked = np.ascontiguousarray(sizes, dtype=np.float64)
    if checked.shape != (count,) or not np.all(np.isfinite(checked) & (checked > 0)):
        raise ValueError(f"sizes must be {count} positive numbers, one for each arrival")
    return checked


@numba.njit(cache=True, nogil=True)
def _occupy(finishes_s: np.ndarray, finish_s: float) -> None:
    """Enters a finish time among the latest ones, ascending, in place of the earliest."""
    if finish_s <= finishes_s[0]:
        return
    k = 0
    while k + 1 < len(finishes_s) and finishes_s[k + 1] < finish_s:
        finishes_s[k] = finishes_s[k + 1]
        k += 1
    finishes_s[k] = finish_s


@numba.njit(cache=True, nogil=True)
def _run(
    now_s: float,
    until_s: float,
    delay_s: float,
    threads: float,
    padded_batches: bool,
    table_s: np.ndarray,  # (c, B)
    factors: np.ndarray,
    started: int,  # batches since the simulation began
    new_arrivals: np.ndarray,
    new_sizes: np.ndarray,  # empty: all 1
    waiting: np.ndarray,  # (2, capacity), changed in place; so are serving and running
    n_waiting: int,
    serving: np.ndarray,  # (3, capacity)
    n_serving: int,
    running: np.ndarray,  # (5, capacity)
    n_running: int,
    finishes_s: np.ndarray,  # (c,) scratch: when each instance is free
    done: np.ndarray,  # (3, enough), filled
    batches: np.ndarray,  # (4, enough), filled
) -> Any:
    """One run. Allocates nothing; changes nothing before it knows that the arrivals ascend."""
    arrival_s, size = waiting[ARRIVAL], waiting[SIZE]
    n = n_waiting
    for k in range(len(new_arrivals)):
        if k > 0 and not new_arrivals[k] >= new_arrivals[k - 1]:
            return _NOT_ASCENDING, 0, 0, 0, 0, 0, 0.0
        arrival_s[n] = new_arrivals[k]
        size[n] = new_sizes[k] if len(new_sizes) else 1.0
        n += 1

    # What was in service: finish it, or keep it for the next run.
    n_done = n_batches = kept = 0
    for k in range(n_serving):
        if serving[FINISH, k] < until_s:
            done[:, n_done] = serving[:, k]
            n_done += 1
        else:
            serving[:, kept] = serving[:, k]
            kept += 1
    n_serving, kept = kept, 0
    busy_thread_s = 0.0
    for k in range(n_running):
        finish = running[B_FINISH, k]
        _occupy(finishes_s, finish)
        busy_thread_s += (min(finish, until_s) - now_s) * running[B_THREADS, k]
        if finish < until_s:
            batches[:, n_batches] = running[:B_THREADS, k]
            n_batches += 1
        else:
            running[:, kept] = running[:, k]
            kept += 1
    n_running = kept

    c, full_size = table_s.shape
    head = 0
    while head < n:
        ready = arrival_s[head] + delay_s
        last = head + full_size - 1
        if last < n and arrival_s[last] < ready:
            ready = arrival_s[last]
        start = max(now_s, finishes_s[0], ready)
        if not start < until_s:
            break
        tail = head + 1
        while tail <= last and tail < n and arrival_s[tail] <= start:
            tail += 1
        free = 1
        while free < c and finishes_s[free] <= start:
            free += 1
        work = 0.0
        for k in range(head, tail):
            work = max(work, size[k]) if padded_batches else work + size[k]
        if not padded_batches:
            work /= tail - head
        finish = start + table_s[c - free, tail - head - 1] * work * factors[started % len(factors)]
        started += 1
        _occupy(finishes_s, finish)
        busy_thread_s += (min(finish, until_s) - start) * threads

        if finish < until_s:
            for k in range(head, tail):
                done[ARRIVAL, n_done], done[START, n_done], done[FINISH, n_done] = arrival_s[k], start, finish
                n_done += 1
            batches[B_START, n_batches], batches[B_FINISH, n_batches] = start, finish
            batches[B_BUSY, n_batches], batches[B_SIZE, n_batches] = c - free + 1, tail - head
            n_batches += 1
        else:
            for k in range(head, tail):
                serving[ARRIVAL, n_serving], serving[START, n_serving] = arrival_s[k], start
                serving[FINISH, n_serving] = finish
                n_serving += 1
            running[B_START, n_running], running[B_FINISH, n_running] = start, finish
            running[B_BUSY, n_running], running[B_SIZE, n_running] = c - free + 1, tail - head
            running[B_THREADS, n_running] = threads
            n_running += 1
        head = tail

    for k in range(head, n):
        arrival_s[k - head], size[k - head] = arrival_s[k], size[k]
    return n_done, n_batches, n - head, n_serving, n_running, started, busy_thread_s
