"""The compiled parts of the simulator: one run of one server, and of many servers in turn.

`simulator` says what is simulated. All of it is in this one module because of numba's cache. That notices a
change of the file that a function is in, but not of the files that the function calls into.

What belongs together travels as a named tuple, which numba compiles to plain variables. The arrays in one are
changed in place, while counts are returned. Loops take values out of their tuples first, which is faster.
The cache remembers the tuples' classes by name: when one is renamed, delete `__pycache__/kernels.*.nbi`.

Limited processor sharing ("ps"):

| symbol | here | meaning |
|---|---|---|
| c | `instances` | batches that may be in service at once; the others wait, first come, first served |
| n(t) | `Counts.running` | batches in service at the moment t |
| S[n, b] | `table_s` | service time of a batch of b requests that had n in service all the time |
| w_k | | work of batch k: the mean size of its requests (padded: the largest) times its variation |
| r_k | `LEFT` | work of batch k that is left: dr_k/dt = -1 / S[n(t), b_k], from w_k to 0 |

A batch slows down whenever another starts beside it, and speeds up whenever one finishes. A new configuration
holds at once for the batches in service too: they share the processors with its number of threads.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rrl.queueing.compiling import compiled as _compiled
from rrl.queueing.windows import Windows

# What the innermost loops call is put into them: calls with arrays cost a tenth of the simulator's speed.
_inlined = partial(_compiled, inline="always")

# Rows of the arrays in which a column is a request or a batch.
ARRIVAL, SIZE = 0, 1  # waiting requests
START, FINISH = 1, 2  # requests in service and finished requests, whose row 0 is ARRIVAL too
B_START, B_FINISH, B_BUSY, B_SIZE, B_THREADS = range(5)  # batches
LEFT = 1  # batches that share the processors, in place of B_FINISH

NOT_ASCENDING = -1  # stands for a number of requests where arrivals do not ascend


class Rules(NamedTuple):
    """How one server serves: its discipline, and what the configuration in force says."""

    sharing: bool  # True: "ps", limited processor sharing; False: "fcfs", times fixed at the start
    padded: bool  # a batch takes the time of its largest request, not that of its mean one
    delay_s: float  # d
    threads: float  # that one batch keeps busy
    instances: int  # c
    full_size: int  # B


class Service(NamedTuple):
    """How long batches take."""

    table_s: np.ndarray  # S: at least (c, B); for "ps" at least what is in service, too
    factors: np.ndarray  # variation: batch number k takes factors[k % len(factors)] times as long


class NewRequests(NamedTuple):
    """New requests of one run."""

    times_s: np.ndarray  # (requests,) ascending
    sizes: np.ndarray  # (requests,), or empty: all 1


class Buffers(NamedTuple):
    """The arrays that a run works on. Each has room for all requests, so that a run allocates nothing."""

    waiting: np.ndarray  # (2, capacity), kept from run to run, and so are the next two
    serving: np.ndarray  # (3, capacity): requests in service; for "ps" in the order of their batches
    running: np.ndarray  # (5, capacity): batches in service
    free_s: np.ndarray  # (c or more,) scratch: when each instance is free
    done: np.ndarray  # (3, enough), filled with the requests that finish
    batches: np.ndarray  # (4, enough), filled with the batches that finish


class Counts(NamedTuple):
    """How much of the buffers is in use: the rest of a server's state."""

    waiting: int = 0  # requests
    serving: int = 0  # requests
    running: int = 0  # batches
    started: int = 0  # batches since the simulation began


class Finished(NamedTuple):
    """What finished in a run."""

    requests: int
    batches: int
    busy_thread_s: float  # thread-seconds in service within the run, of unfinished batches too


# What both disciplines do alike


@_compiled
def _queued(arrivals: NewRequests, waiting: np.ndarray, n_waiting: int) -> int:
    """Puts new requests behind those that wait; how many wait then, or `NOT_ASCENDING`."""
    times_s, sizes = arrivals.times_s, arrivals.sizes
    n = n_waiting
    for k in range(len(times_s)):
        if k > 0 and not times_s[k] >= times_s[k - 1]:
            return NOT_ASCENDING
        waiting[ARRIVAL, n] = times_s[k]
        waiting[SIZE, n] = sizes[k] if len(sizes) else 1.0
        n += 1
    return n


@_inlined
def _ready_s(arrival_s: np.ndarray, head: int, n: int, delay_s: float, full_size: int) -> float:
    """When the batch headed by request `head` of n is full or due."""
    last = head + full_size - 1
    due_s = arrival_s[head] + delay_s
    return min(due_s, arrival_s[last]) if last < n else due_s


@_inlined
def _tail(arrival_s: np.ndarray, head: int, n: int, full_size: int, start_s: float) -> int:
    """Where the batch headed by request `head` ends, if it starts then: it takes all that is there."""
    end = min(head + full_size, n)
    tail = head + 1
    while tail < end and arrival_s[tail] <= start_s:
        tail += 1
    return tail


@_inlined
def _work(size: np.ndarray, head: int, tail: int, padded: bool) -> float:
    """What a batch multiplies its service time by, for the sizes of its requests."""
    work = 0.0
    for k in range(head, tail):
        work = max(work, size[k]) if padded else work + size[k]
    return work if padded else work / (tail - head)


@_inlined
def _enter_requests(
    rows: np.ndarray, n: int, arrival_s: np.ndarray, head: int, tail: int, served_s: tuple[float, float]
) -> int:
    """Enters the requests of one batch, from `head` to `tail`, behind n others; how many there are then."""
    start_s, finish_s = served_s
    for k in range(head, tail):
        rows[ARRIVAL, n], rows[START, n], rows[FINISH, n] = arrival_s[k], start_s, finish_s
        n += 1
    return n


@_inlined
def _enter_batch(rows: np.ndarray, n: int, start_s: float, finish_s: float, busy: float, size: float) -> int:
    """Enters a batch behind n others; how many there are then."""
    rows[B_START, n], rows[B_FINISH, n], rows[B_BUSY, n], rows[B_SIZE, n] = start_s, finish_s, busy, size
    return n + 1


@_inlined
def _copy(rows: np.ndarray, k: int, to: np.ndarray, n: int) -> int:
    """Copies column k of some rows to column n of others, as far as they have rows; returns n + 1."""
    for row in range(len(to)):
        to[row, n] = rows[row, k]
    return n + 1


@_inlined
def _close_up(waiting: np.ndarray, head: int, n: int) -> int:
    """Moves the requests from `head` on to the front of the queue; how many there are."""
    for k in range(head, n):
        waiting[ARRIVAL, k - head], waiting[SIZE, k - head] = waiting[ARRIVAL, k], waiting[SIZE, k]
    return n - head


# First come, first served


@_compiled
def _occupy(finishes_s: np.ndarray, finish_s: float) -> None:
    """Enters a finish time among the latest ones, ascending, in place of the earliest."""
    if finish_s <= finishes_s[0]:
        return
    k = 0
    while k + 1 < len(finishes_s) and finishes_s[k + 1] < finish_s:
        finishes_s[k] = finishes_s[k + 1]
        k += 1
    finishes_s[k] = finish_s


@_inlined
def _busy(finishes_s: np.ndarray, start_s: float) -> int:
    """How many instances are busy once a batch has started then, its own included."""
    c = len(finishes_s)
    free = 1
    while free < c and finishes_s[free] <= start_s:
        free += 1
    return c - free + 1


@_compiled
def _finish_earlier(now_s: float, until_s: float, buffers: Buffers, counts: Counts) -> Any:
    """Finishes what was in service when the run began, or keeps it for the next run."""
    serving, running, done, batches = buffers.serving, buffers.running, buffers.done, buffers.batches
    n_done = n_batches = kept_requests = kept = 0
    for k in range(counts.serving):
        if serving[FINISH, k] < until_s:
            n_done = _copy(serving, k, done, n_done)
        else:
            kept_requests = _copy(serving, k, serving, kept_requests)
    busy_thread_s = 0.0
    for k in range(counts.running):
        finish_s = running[B_FINISH, k]
        _occupy(buffers.free_s, finish_s)
        busy_thread_s += (min(finish_s, until_s) - now_s) * running[B_THREADS, k]
        if finish_s < until_s:
            n_batches = _copy(running, k, batches, n_batches)
        else:
            kept = _copy(running, k, running, kept)
    kept_counts = Counts(counts.waiting, kept_requests, kept, counts.started)
    return kept_counts, Finished(n_done, n_batches, busy_thread_s)


@_compiled
def _run_fcfs(
    now_s: float, until_s: float, rules: Rules, service: Service, buffers: Buffers, counts: Counts
) -> Any:
    """One run; `counts.waiting` includes the new requests, and `buffers.free_s` is (c,), all -inf."""
    counts, finished = _finish_earlier(now_s, until_s, buffers, counts)
    n, n_serving, n_running, started = counts
    n_done, n_batches, busy_thread_s = finished
    arrival_s, size = buffers.waiting[ARRIVAL], buffers.waiting[SIZE]
    serving, running, done, batches = buffers.serving, buffers.running, buffers.done, buffers.batches
    finishes_s, table_s, factors = buffers.free_s, service.table_s, service.factors
    _, padded, delay_s, threads, _, full_size = rules
    head = 0
    while head < n:
        start_s = max(now_s, finishes_s[0], _ready_s(arrival_s, head, n, delay_s, full_size))
        if not start_s < until_s:
            break
        tail = _tail(arrival_s, head, n, full_size, start_s)
        busy = _busy(finishes_s, start_s)
        time_s = table_s[busy - 1, tail - head - 1] * _work(size, head, tail, padded)
        finish_s = start_s + time_s * factors[started % len(factors)]
        started += 1
        _occupy(finishes_s, finish_s)
        busy_thread_s += (min(finish_s, until_s) - start_s) * threads
        if finish_s < until_s:
            n_done = _enter_requests(done, n_done, arrival_s, head, tail, (start_s, finish_s))
            n_batches = _enter_batch(batches, n_batches, start_s, finish_s, busy, tail - head)
        else:
            n_serving = _enter_requests(serving, n_serving, arrival_s, head, tail, (start_s, finish_s))
            running[B_THREADS, n_running] = threads
            n_running = _enter_batch(running, n_running, start_s, finish_s, busy, tail - head)
        head = tail
    n_waiting = _close_up(buffers.waiting, head, n)
    return Counts(n_waiting, n_serving, n_running, started), Finished(n_done, n_batches, busy_thread_s)


# Limited processor sharing


@_inlined
def _next_finish_s(now_s: float, running: np.ndarray, n_running: int, table_s: np.ndarray) -> float:
    """When the next batch finishes if none starts before; infinite if none is in service."""
    finish_s = np.inf
    for k in range(n_running):
        size = int(running[B_SIZE, k])
        finish_s = min(finish_s, now_s + running[LEFT, k] * table_s[n_running - 1, size - 1])
    return finish_s


@_inlined
def _work_off(now_s: float, event_s: float, running: np.ndarray, n_running: int, table_s: np.ndarray) -> None:
    """Takes what is done until the event from what is left of each batch; 0.0 is left of what finishes."""
    size, time_s, done = 0, 0.0, 0.0
    for k in range(n_running):
        if running[B_SIZE, k] != size:  # A division takes long, and most are as large as the one before.
            size = int(running[B_SIZE, k])
            time_s = table_s[n_running - 1, size - 1]
            done = (event_s - now_s) / time_s
        if now_s + running[LEFT, k] * time_s <= event_s:
            running[LEFT, k] = 0.0
        else:
            running[LEFT, k] -= done


@_inlined
def _finish_sharing(now_s: float, buffers: Buffers, n_running: int, finished: tuple[int, int]) -> Any:
    """Finishes the batches of which nothing is left; the others close up."""
    serving, running, done, batches = buffers.serving, buffers.running, buffers.done, buffers.batches
    arrival_s = serving[ARRIVAL]
    n_done, n_batches = finished
    first = kept = kept_requests = 0
    for k in range(n_running):
        start_s, busy, size = running[B_START, k], running[B_BUSY, k], running[B_SIZE, k]
        last = first + int(size)
        if running[LEFT, k] == 0.0:
            n_done = _enter_requests(done, n_done, arrival_s, first, last, (start_s, now_s))
            n_batches = _enter_batch(batches, n_batches, start_s, now_s, busy, size)
        else:
            kept = _copy(running, k, running, kept)
            for j in range(first, last):
                kept_requests = _copy(serving, j, serving, kept_requests)
        first = last
    return kept_requests, kept, (n_done, n_batches)


@_compiled
def _run_sharing(
    now_s: float, until_s: float, rules: Rules, service: Service, buffers: Buffers, counts: Counts
) -> Any:
    """One run, from event to event; `counts.waiting` includes the new requests."""
    arrival_s, size = buffers.waiting[ARRIVAL], buffers.waiting[SIZE]
    serving, running, table_s, factors = buffers.serving, buffers.running, service.table_s, service.factors
    n, n_serving, n_running, started = counts
    _, padded, delay_s, threads, instances, full_size = rules
    finished, busy_thread_s, head = (0, 0), 0.0, 0
    while True:
        ready_s = np.inf  # when the next batch is full or due
        while n_running < instances and head < n:
            ready_s = _ready_s(arrival_s, head, n, delay_s, full_size)
            if ready_s > now_s:
                break
            tail = _tail(arrival_s, head, n, full_size, now_s)
            n_serving = _enter_requests(serving, n_serving, arrival_s, head, tail, (now_s, np.nan))
            left = _work(size, head, tail, padded) * factors[started % len(factors)]
            n_running = _enter_batch(running, n_running, now_s, left, n_running + 1, tail - head)
            started += 1
            head, ready_s = tail, np.inf
        finish_s = _next_finish_s(now_s, running, n_running, table_s)
        event_s = min(finish_s, ready_s, until_s)
        if event_s == np.inf:
            break
        _work_off(now_s, event_s, running, n_running, table_s)
        busy_thread_s += (event_s - now_s) * n_running * threads
        now_s = event_s
        if not event_s < until_s:
            break
        if finish_s <= event_s:
            n_serving, n_running, finished = _finish_sharing(now_s, buffers, n_running, finished)
    n_waiting = _close_up(buffers.waiting, head, n)
    counts = Counts(n_waiting, n_serving, n_running, started)
    return counts, Finished(finished[0], finished[1], busy_thread_s)


# Both disciplines


@_compiled
def run_one(
    span_s: tuple[float, float],  # from now on, until then
    rules: Rules,
    service: Service,
    arrivals: NewRequests,
    buffers: Buffers,
    counts: Counts,
) -> Any:
    """One run of one server: its counts then, and what finished.

    Where the arrivals do not ascend, nothing changes, and `NOT_ASCENDING` requests finish.
    """
    now_s, until_s = span_s
    n = _queued(arrivals, buffers.waiting, counts.waiting)
    if n == NOT_ASCENDING:
        return counts, Finished(NOT_ASCENDING, 0, 0.0)
    queued = Counts(n, counts.serving, counts.running, counts.started)
    if rules.sharing:
        return _run_sharing(now_s, until_s, rules, service, buffers, queued)
    free_s = buffers.free_s[: rules.instances]
    free_s[:] = -np.inf
    b = buffers
    own = Buffers(b.waiting, b.serving, b.running, free_s, b.done, b.batches)
    return _run_fcfs(now_s, until_s, rules, service, own, queued)


@_compiled
def run_tuples(
    span_s: tuple[float, float], rules: Any, service: Any, arrivals: Any, buffers: Any, counts: Any
) -> Any:
    """`run_one` for Python, with plain tuples: named ones take 1.5 µs each to get into compiled code."""
    counts, finished = run_one(
        span_s, Rules(*rules), Service(*service), NewRequests(*arrivals), Buffers(*buffers), Counts(*counts)
    )
    n_waiting, n_serving, n_running, started = counts
    n_done, n_batches, busy_thread_s = finished
    return (n_waiting, n_serving, n_running, started), (n_done, n_batches, busy_thread_s)


# Summaries


@_inlined
def _percentile(ascending: np.ndarray, fraction: float) -> float:
    """np.percentile's default, of values that are sorted."""
    position = fraction * (len(ascending) - 1)
    low = int(position)
    high = min(low + 1, len(ascending) - 1)
    return ascending[low] + (position - low) * (ascending[high] - ascending[low])


@_compiled
def _replace_least(heap: np.ndarray, value: float) -> None:
    """Puts a value in place of the least of a heap, its first: number k is at most 2k + 1 and 2k + 2."""
    k, count = 0, len(heap)
    while True:
        child = 2 * k + 1
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if child >= count or heap[child] >= value:
            break
        heap[k] = heap[child]
        k = child
    heap[k] = value


@_compiled
def _p95(values: np.ndarray) -> float:
    """np.percentile's default, of values in any order: the largest twentieth is kept in a heap."""
    position = 0.95 * (len(values) - 1)
    low = int(position)
    largest = np.full(len(values) - low, -np.inf)
    for value in values:
        if value > largest[0]:
            _replace_least(largest, value)
    above = largest[1:3].min() if len(largest) > 1 else largest[0]
    return largest[0] + (position - low) * (above - largest[0])


@_compiled
def summaries_ms(arrival_s: np.ndarray, start_s: np.ndarray, finish_s: np.ndarray) -> np.ndarray:
    """(3, 4): mean, p50, p95, p99 of latency, queue, service; np.percentile's default, much faster."""
    result = np.full((3, 4), np.nan)
    if len(arrival_s) == 0:
        return result
    for row, (earlier, later) in enumerate(
        ((arrival_s, finish_s), (arrival_s, start_s), (start_s, finish_s))
    ):
        values = later - earlier
        result[row, 0] = 1e3 * np.mean(values)
        values.sort()
        for column, fraction in enumerate((0.5, 0.95, 0.99)):
            result[row, 1 + column] = 1e3 * _percentile(values, fraction)
    return result


@_compiled
def _mean_busy(start_s: np.ndarray, finish_s: np.ndarray) -> np.ndarray:
    """(batches,) how many of them were in service on average while each was, itself included."""
    count = len(start_s)
    order = np.arange(count)
    for k in range(1, count):
        if start_s[k] < start_s[k - 1]:
            order = np.argsort(start_s)
            break
    together_s = np.zeros(count)  # what each shared with each other, summed
    for i in range(count):
        k = order[i]
        for j in order[i + 1 :]:
            if start_s[j] >= finish_s[k]:
                break
            shared_s = min(finish_s[k], finish_s[j]) - start_s[j]
            together_s[k] += shared_s
            together_s[j] += shared_s
    result = np.ones(count)
    for k in range(count):
        if finish_s[k] > start_s[k]:
            result[k] += together_s[k] / (finish_s[k] - start_s[k])
    return result


@_compiled
def service_times(
    busy: np.ndarray, size: np.ndarray, start_s: np.ndarray, finish_s: np.ndarray
) -> np.ndarray:
    """(rows, 5): what `ServiceTimes` tells of each pair of busy instances and batch size that there is."""
    if len(busy) == 0:
        return np.empty((0, 5))
    table = np.zeros((int(busy.max()) + 1, int(size.max()) + 1, 3))
    mean_busy = _mean_busy(start_s, finish_s)
    for k in range(len(busy)):
        cell = table[int(busy[k]), int(size[k])]
        cell[0] += 1
        cell[1] += finish_s[k] - start_s[k]
        cell[2] += mean_busy[k]
    rows = np.empty((np.count_nonzero(table[:, :, 0]), 5))
    row = 0
    for n in range(table.shape[0]):
        for b in range(table.shape[1]):
            count, total_s, summed = table[n, b]
            if count > 0:
                rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3] = n, b, count, total_s
                rows[row, 4] = summed / count
                row += 1
    return rows


@_compiled
def _by_latency(latency_s: np.ndarray, batches: np.ndarray) -> tuple[float, float]:
    """Busy instances and the size of a request's batch, on average by latency; both lie batch by batch."""
    first, total_s, busy, size = 0, 0.0, 0.0, 0.0
    for k in range(batches.shape[1]):
        last = first + int(batches[B_SIZE, k])
        sum_s = latency_s[first:last].sum()
        total_s += sum_s
        busy += sum_s * batches[B_BUSY, k]
        size += sum_s * batches[B_SIZE, k]
        first = last
    return busy / total_s, size / total_s


# One configuration, or several, in many intervals


class Intervals(NamedTuple):
    """The intervals in which configurations are simulated, one after the other."""

    arrival_s: np.ndarray  # (intervals · requests,)
    end_s: np.ndarray  # (intervals · requests,): the end of the gap that follows each arrival
    work: np.ndarray  # (intervals · requests,): sizes of the requests, or empty: all 1
    requests: int  # in each interval
    carries: bool  # what waits at an interval's end is there in the next; else each is served to its end


class Candidates(NamedTuple):
    """K configurations."""

    instances: np.ndarray  # (K,) int
    full_size: np.ndarray  # (K,) int
    delay_s: np.ndarray  # (K,)
    table: np.ndarray  # (K,) int: which table of service times
    scale: np.ndarray  # (K,): what the times of that table are multiplied by


@_compiled
def interval_latencies_ms(rules: Rules, service: Service, intervals: Intervals) -> np.ndarray:
    """(intervals, 2): mean and p95 latency of what finishes in each; NaN where nothing does."""
    arrival_s, end_s, work, requests, carries = intervals
    room = len(arrival_s) if carries else requests
    done = np.empty((3, room))
    buffers = Buffers(
        np.empty((2, room)),
        np.empty((3, room)),
        np.empty((5, room)),
        np.empty(rules.instances),
        done,
        np.empty((4, room)),
    )
    counts = Counts(0, 0, 0, 0)
    result = np.full((len(arrival_s) // requests, 2), np.nan)
    for k in range(len(result)):
        first, last = k * requests, (k + 1) * requests
        span_s = (arrival_s[first], end_s[last - 1] if carries else np.inf)
        arrivals = NewRequests(arrival_s[first:last], work[first:last])
        counts, finished = run_one(span_s, rules, service, arrivals, buffers, counts)
        n_done = finished.requests
        if n_done > 0:
            latency_s = done[FINISH, :n_done] - done[ARRIVAL, :n_done]
            result[k, 0] = 1e3 * np.mean(latency_s)
            result[k, 1] = 1e3 * _p95(latency_s)
    return result


@_compiled
def replayed_ms(
    candidates: Candidates,
    service_time_s: np.ndarray,  # (tables, N, B)
    factors: np.ndarray,
    windows: Windows,
    sharing: bool,
    by_latency: bool,
) -> np.ndarray:
    """(K, windows, 5): mean and p95 latency of what finishes in each window, how many did, and in what.

    The last two are busy instances and the size of a request's batch, on average by its latency, where that
    is asked for. All are NaN where nothing finishes, but for how many.
    """
    arrival_s, bounds, edge_s, slowness, together = windows
    instances, full_size, delay_s, table, scale = candidates
    room = len(arrival_s)
    done = np.empty((3, room))
    waiting, serving, running, batches = (
        np.empty((2, room)),
        np.empty((3, room)),
        np.empty((5, room)),
        np.empty((4, room)),
    )
    none = np.empty(0)
    result = np.full((len(instances), len(bounds) - 1, 5), np.nan)
    for k in range(len(instances)):
        rules = Rules(sharing, False, delay_s[k], 1.0, instances[k], full_size[k])
        times_s = scale[k] * service_time_s[table[k], : instances[k], : full_size[k]]
        buffers = Buffers(waiting, serving, running, np.empty(instances[k]), done, batches)
        counts = Counts(0, 0, 0, 0)
        for w in range(len(bounds) - 1):
            arrivals = NewRequests(arrival_s[bounds[w] : bounds[w + 1]], none)
            is_last = (w + 1) % together == 0 or w + 2 == len(bounds)
            span_s = (edge_s[w], np.inf if is_last else edge_s[w + 1])
            service = Service(slowness[w] * times_s, factors)
            counts, finished = run_one(span_s, rules, service, arrivals, buffers, counts)
            n_done = finished.requests
            result[k, w, 2] = n_done
            if n_done > 0:
                latency_s = done[FINISH, :n_done] - done[ARRIVAL, :n_done]
                result[k, w, 0] = 1e3 * np.mean(latency_s)
                result[k, w, 1] = 1e3 * _p95(latency_s)
                if by_latency:
                    result[k, w, 3], result[k, w, 4] = _by_latency(latency_s, batches[:, : finished.batches])
    return result


# Many servers


class ServerRules(NamedTuple):
    """`Rules` of every server, and what becomes of what is left at an interval's end."""

    sharing: bool
    padded: bool
    carries: bool  # what is left waits for the next interval; else it is served to its end
    delay_s: np.ndarray  # (servers,), and so are the next
    threads: np.ndarray
    instances: np.ndarray
    full_size: np.ndarray
    table: np.ndarray  # which table of service times


class ServerArrivals(NamedTuple):
    """The interval of every server and its arrivals."""

    now_s: np.ndarray  # (servers,)
    until_s: np.ndarray  # (servers,)
    times_s: np.ndarray  # (servers, room); those of the interval lie in first .. last - 1
    first: np.ndarray  # (servers,)
    last: np.ndarray  # (servers,)
    work: np.ndarray  # (servers, the most arrivals of an interval), or (servers, 0): all 1


class Servers(NamedTuple):
    """The state of every server, changed in place; its variation is fixed."""

    factors: np.ndarray  # (servers, factors)
    started: np.ndarray  # (servers,)
    counts: np.ndarray  # (servers, 3): `waiting`, `serving` and `running` of `Counts`
    waiting: np.ndarray  # (servers, 2, capacity)
    serving: np.ndarray  # (servers, 3, capacity)
    running: np.ndarray  # (servers, 5, capacity)


class ServerResults(NamedTuple):
    """What every server's interval gave, filled in place."""

    totals: np.ndarray  # (servers, 3): requests and batches that finished, thread-seconds
    summaries: np.ndarray  # (servers, 3, 4) as `summaries_ms`
    telemetry: np.ndarray  # (servers, N · B, 5) as `service_times`
    rows: np.ndarray  # (servers,): of the telemetry


@_inlined
def _joined(to: Buffers, finished: Finished, more: Buffers, drained: Finished) -> Any:
    """Adds what was drained after an interval to what finished in it, its thread-seconds excepted."""
    n_done, n_batches = finished.requests + drained.requests, finished.batches + drained.batches
    to.done[:, finished.requests : n_done] = more.done[:, : drained.requests]
    to.batches[:, finished.batches : n_batches] = more.batches[:, : drained.batches]
    return Finished(n_done, n_batches, finished.busy_thread_s)


@_compiled
def _tell(e: int, buffers: Buffers, finished: Finished, results: ServerResults) -> None:
    """Fills in what the interval of server e gave."""
    n_done, n_batches, busy_thread_s = finished
    done, batches = buffers.done, buffers.batches[:, :n_batches]
    totals = results.totals
    totals[e, 0], totals[e, 1], totals[e, 2] = n_done, n_batches, busy_thread_s
    results.summaries[e] = summaries_ms(done[ARRIVAL, :n_done], done[START, :n_done], done[FINISH, :n_done])
    times = service_times(batches[B_BUSY], batches[B_SIZE], batches[B_START], batches[B_FINISH])
    results.rows[e] = len(times)
    results.telemetry[e, : len(times)] = times


@_compiled
def run_servers(
    which: np.ndarray,  # (K,) int: servers
    configured: ServerRules,
    tables_s: np.ndarray,  # (tables, N, B)
    arrivals: ServerArrivals,
    servers: Servers,
    results: ServerResults,
) -> None:
    """One interval of each of these servers."""
    sharing, padded, carries, delay_s, threads, instances, full_size, table = configured
    now_s, until_s, times_s, first, last, work = arrivals
    factors, started, kept, waiting, serving, running = servers
    capacity = waiting.shape[2]
    free_s = np.empty(tables_s.shape[1])
    done, batches = np.empty((3, capacity)), np.empty((4, capacity))
    more_done, more_batches = np.empty((3, capacity)), np.empty((4, capacity))
    none = NewRequests(np.empty(0), np.empty(0))
    for e in which:
        rules = Rules(sharing, padded, delay_s[e], threads[e], instances[e], full_size[e])
        service = Service(tables_s[table[e]], factors[e])
        buffers = Buffers(waiting[e], serving[e], running[e], free_s, done, batches)
        if not carries:
            kept[e] = 0
        counts = Counts(kept[e, 0], kept[e, 1], kept[e, 2], started[e])
        new = NewRequests(times_s[e][first[e] : last[e]], work[e][: last[e] - first[e]])
        counts, finished = run_one((now_s[e], until_s[e]), rules, service, new, buffers, counts)
        if not carries and counts.waiting + counts.serving > 0:
            more = Buffers(waiting[e], serving[e], running[e], free_s, more_done, more_batches)
            counts, drained = run_one((until_s[e], np.inf), rules, service, none, more, counts)
            finished = _joined(buffers, finished, more, drained)
        kept[e, 0], kept[e, 1], kept[e, 2], started[e] = counts
        _tell(e, buffers, finished, results)
