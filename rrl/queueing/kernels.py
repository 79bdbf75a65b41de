"""The compiled parts of the simulator. `simulator` says what they simulate; numba compiles them.

They are one module because numba's cache notices a change of the file that a function is in, but not of the
files that the function calls into.

Limited processor sharing ("ps"):

| symbol | here | meaning |
|---|---|---|
| c | `instances` | batches that may be in service at once; the others wait, first come, first served |
| n(t) | `n_running` | batches in service at the moment t |
| S[n, b] | `table_s` | service time of a batch of b requests that had n in service all the time |
| w_k | `WORK` | work of batch k: the mean size of its requests (padded: the largest) times its variation |
| r_k | `LEFT` | the share of batch k that is left: dr_k/dt = -1 / (S[n(t), b_k] · w_k), from 1 to 0 |

A batch slows down whenever another starts beside it, and speeds up whenever one finishes. A new configuration
holds at once for the batches in service too: they share the processors with its number of threads.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

# Rows of the arrays that hold one request or one batch a column.
ARRIVAL, SIZE = 0, 1  # waiting requests
START, FINISH = 1, 2  # requests in service, and done; ARRIVAL is their row 0 too
B_START, B_FINISH, B_BUSY, B_SIZE, B_THREADS = range(5)  # batches
LEFT, WORK = 1, 4  # of batches that share the processors, in place of B_FINISH and B_THREADS

NOT_ASCENDING = -1  # the answer to arrivals that do not


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
def _queued(new_arrivals: np.ndarray, new_sizes: np.ndarray, waiting: np.ndarray, n_waiting: int) -> int:
    """Puts new requests behind those that wait; how many wait then, or `NOT_ASCENDING`."""
    n = n_waiting
    for k in range(len(new_arrivals)):
        if k > 0 and not new_arrivals[k] >= new_arrivals[k - 1]:
            return NOT_ASCENDING
        waiting[ARRIVAL, n] = new_arrivals[k]
        waiting[SIZE, n] = new_sizes[k] if len(new_sizes) else 1.0
        n += 1
    return n


@numba.njit(cache=True, nogil=True)
def run_fcfs(
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
    finishes_s: np.ndarray,  # (c,) scratch, all -inf: when each instance is free
    done: np.ndarray,  # (3, enough), filled
    batches: np.ndarray,  # (4, enough), filled
) -> Any:
    """One run. Allocates nothing; changes nothing that counts before it knows that the arrivals ascend."""
    arrival_s, size = waiting[ARRIVAL], waiting[SIZE]
    n = _queued(new_arrivals, new_sizes, waiting, n_waiting)
    if n == NOT_ASCENDING:
        return NOT_ASCENDING, 0, 0, 0, 0, 0, 0.0

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


@numba.njit(cache=True, nogil=True)
def run_sharing(
    now_s: float,
    until_s: float,
    delay_s: float,
    threads: float,
    padded_batches: bool,
    instances: int,
    full_size: int,
    table_s: np.ndarray,  # (at least instances and batches in service, at least full_size and their size)
    factors: np.ndarray,
    started: int,  # batches since the simulation began
    new_arrivals: np.ndarray,
    new_sizes: np.ndarray,  # empty: all 1
    waiting: np.ndarray,  # (2, capacity), changed in place; so are serving and running
    n_waiting: int,
    serving: np.ndarray,  # (3, capacity): the requests of the batches in service, in the batches' order
    n_serving: int,
    running: np.ndarray,  # (5, capacity)
    n_running: int,
    done: np.ndarray,  # (3, enough), filled in order of finishing
    batches: np.ndarray,  # (4, enough), likewise
) -> Any:
    """One run, as `run_fcfs`."""
    arrival_s, size = waiting[ARRIVAL], waiting[SIZE]
    n = _queued(new_arrivals, new_sizes, waiting, n_waiting)
    if n == NOT_ASCENDING:
        return NOT_ASCENDING, 0, 0, 0, 0, 0, 0.0

    n_done = n_batches = head = 0
    busy_thread_s = 0.0
    while True:
        ready = np.inf  # when the next batch is full or due
        while n_running < instances and head < n:
            ready = arrival_s[head] + delay_s
            last = head + full_size - 1
            if last < n and arrival_s[last] < ready:
                ready = arrival_s[last]
            if ready > now_s:
                break
            tail, work = head, 0.0
            while tail <= last and tail < n and arrival_s[tail] <= now_s:
                work = max(work, size[tail]) if padded_batches else work + size[tail]
                serving[ARRIVAL, n_serving], serving[START, n_serving] = arrival_s[tail], now_s
                n_serving += 1
                tail += 1
            if not padded_batches:
                work /= tail - head
            running[B_START, n_running], running[LEFT, n_running] = now_s, 1.0
            running[B_BUSY, n_running], running[B_SIZE, n_running] = n_running + 1, tail - head
            running[WORK, n_running] = work * factors[started % len(factors)]
            n_running += 1
            started += 1
            head, ready = tail, np.inf

        finish = np.inf
        for k in range(n_running):
            whole_s = running[WORK, k] * table_s[n_running - 1, int(running[B_SIZE, k]) - 1]
            finish = min(finish, now_s + running[LEFT, k] * whole_s)
        event = min(finish, ready, until_s)
        if event == np.inf:
            break
        elapsed = event - now_s
        for k in range(n_running):
            whole_s = running[WORK, k] * table_s[n_running - 1, int(running[B_SIZE, k]) - 1]
            if now_s + running[LEFT, k] * whole_s <= event:
                running[LEFT, k] = 0.0
            else:
                running[LEFT, k] -= elapsed / whole_s
        busy_thread_s += elapsed * n_running * threads
        now_s = event
        if not event < until_s:
            break
        if finish <= event:
            first = kept = kept_requests = 0
            for k in range(n_running):
                members = int(running[B_SIZE, k])
                if running[LEFT, k] == 0.0:
                    for j in range(first, first + members):
                        done[ARRIVAL, n_done], done[START, n_done] = serving[ARRIVAL, j], serving[START, j]
                        done[FINISH, n_done] = event
                        n_done += 1
                    batches[B_START, n_batches], batches[B_FINISH, n_batches] = running[B_START, k], event
                    batches[B_BUSY, n_batches], batches[B_SIZE, n_batches] = running[B_BUSY, k], members
                    n_batches += 1
                else:
                    running[:, kept] = running[:, k]
                    kept += 1
                    for j in range(first, first + members):
                        serving[ARRIVAL, kept_requests] = serving[ARRIVAL, j]
                        serving[START, kept_requests] = serving[START, j]
                        kept_requests += 1
                first += members
            n_running, n_serving = kept, kept_requests

    for k in range(head, n):
        arrival_s[k - head], size[k - head] = arrival_s[k], size[k]
    return n_done, n_batches, n - head, n_serving, n_running, started, busy_thread_s


@numba.njit(cache=True, nogil=True)
def run_one(
    sharing: bool,  # the discipline
    now_s: float,
    until_s: float,
    delay_s: float,
    threads: float,
    padded_batches: bool,
    instances: int,
    full_size: int,
    table_s: np.ndarray,
    factors: np.ndarray,
    started: int,
    new_arrivals: np.ndarray,
    new_sizes: np.ndarray,
    waiting: np.ndarray,
    n_waiting: int,
    serving: np.ndarray,
    n_serving: int,
    running: np.ndarray,
    n_running: int,
    free_s: np.ndarray,  # (instances or more,) scratch
    done: np.ndarray,
    batches: np.ndarray,
) -> Any:
    """One run of one server under either discipline, its table as large as the configuration or larger."""
    if sharing:
        return run_sharing(
            now_s,
            until_s,
            delay_s,
            threads,
            padded_batches,
            instances,
            full_size,
            table_s,
            factors,
            started,
            new_arrivals,
            new_sizes,
            waiting,
            n_waiting,
            serving,
            n_serving,
            running,
            n_running,
            done,
            batches,
        )
    free_s[:instances] = -np.inf
    return run_fcfs(
        now_s,
        until_s,
        delay_s,
        threads,
        padded_batches,
        table_s[:instances, :full_size],
        factors,
        started,
        new_arrivals,
        new_sizes,
        waiting,
        n_waiting,
        serving,
        n_serving,
        running,
        n_running,
        free_s[:instances],
        done,
        batches,
    )


@numba.njit(cache=True, nogil=True)
def summaries_ms(arrival_s: np.ndarray, start_s: np.ndarray, finish_s: np.ndarray) -> np.ndarray:
    """(3, 4): mean, p50, p95, p99 of latency, queue, service; np.percentile's default, much faster."""
    result = np.full((3, 4), np.nan)
    n = len(arrival_s)
    if n == 0:
        return result
    for row, (earlier, later) in enumerate(
        ((arrival_s, finish_s), (arrival_s, start_s), (start_s, finish_s))
    ):
        values = later - earlier
        result[row, 0] = 1e3 * np.mean(values)
        values.sort()
        for column, fraction in enumerate((0.5, 0.95, 0.99)):
            position = fraction * (n - 1)
            low = int(position)
            high = min(low + 1, n - 1)
            result[row, 1 + column] = 1e3 * (values[low] + (position - low) * (values[high] - values[low]))
    return result


@numba.njit(cache=True, nogil=True)
def service_times(
    busy: np.ndarray, size: np.ndarray, start_s: np.ndarray, finish_s: np.ndarray
) -> np.ndarray:
    """(rows, 4): busy instances, batch size, batches, summed service time, for each pair there is."""
    if len(busy) == 0:
        return np.empty((0, 4))
    table = np.zeros((int(busy.max()) + 1, int(size.max()) + 1, 2))
    for k in range(len(busy)):
        cell = table[int(busy[k]), int(size[k])]
        cell[0] += 1
        cell[1] += finish_s[k] - start_s[k]
    rows = np.empty((np.count_nonzero(table[:, :, 0]), 4))
    row = 0
    for n in range(table.shape[0]):
        for b in range(table.shape[1]):
            if table[n, b, 0] > 0:
                rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3] = n, b, table[n, b, 0], table[n, b, 1]
                row += 1
    return rows


@numba.njit(cache=True, nogil=True)
def interval_latencies_ms(
    sharing: bool,
    carries: bool,
    arrival_s: np.ndarray,  # (intervals · requests,)
    end_s: np.ndarray,  # (intervals · requests,) of the gap that follows each arrival
    requests: int,  # an interval
    work: np.ndarray,  # (intervals · requests,), or empty: all 1
    delay_s: float,
    table_s: np.ndarray,  # (c, B)
    factors: np.ndarray,
) -> np.ndarray:
    """(intervals, 2) mean and p95 latency of intervals in turn; NaN where nothing was answered.

    `carries`: of what finishes in an interval; else an interval starts empty, and is served to its end.
    """
    intervals = len(arrival_s) // requests
    room = len(arrival_s) if carries else requests
    waiting, serving, running = np.empty((2, room)), np.empty((3, room)), np.empty((5, room))
    done, batches, free_s = np.empty((3, room)), np.empty((4, room)), np.empty(len(table_s))
    n_waiting = n_serving = n_running = started = 0
    result = np.full((intervals, 2), np.nan)
    for k in range(intervals):
        first, last = k * requests, (k + 1) * requests
        n_done, _, n_waiting, n_serving, n_running, started, _ = run_one(
            sharing,
            arrival_s[first],
            end_s[last - 1] if carries else np.inf,
            delay_s,
            1.0,
            False,
            table_s.shape[0],
            table_s.shape[1],
            table_s,
            factors,
            started,
            arrival_s[first:last],
            work[first:last],
            waiting,
            n_waiting,
            serving,
            n_serving,
            running,
            n_running,
            free_s,
            done,
            batches,
        )
        if n_done > 0:
            latency_s = done[FINISH, :n_done] - done[ARRIVAL, :n_done]
            result[k, 0] = 1e3 * np.mean(latency_s)
            latency_s.sort()
            position = 0.95 * (n_done - 1)
            low = int(position)
            high = min(low + 1, n_done - 1)
            result[k, 1] = 1e3 * (latency_s[low] + (position - low) * (latency_s[high] - latency_s[low]))
    return result


@numba.njit(cache=True, nogil=True)
def candidate_latencies_ms(
    carries: bool,
    instances: np.ndarray,  # (K,) int
    max_batch_size: np.ndarray,  # (K,) int
    delay_s: np.ndarray,  # (K,)
    table: np.ndarray,  # (K,) int: which table of service times
    scale: np.ndarray,  # (K,) what its times are multiplied by
    service_time_s: np.ndarray,  # (tables, N, B)
    arrival_s: np.ndarray,
    end_s: np.ndarray,
    requests: int,
    factors: np.ndarray,
) -> np.ndarray:
    """(K, intervals, 2) as `interval_latencies_ms` of K configurations, FCFS, under the same arrivals."""
    result = np.empty((len(instances), len(arrival_s) // requests, 2))
    work = np.empty(0)
    for k in range(len(instances)):
        times_s = service_time_s[table[k], : instances[k], : max_batch_size[k]]
        result[k] = interval_latencies_ms(
            False, carries, arrival_s, end_s, requests, work, delay_s[k], scale[k] * times_s, factors
        )
    return result


@numba.njit(cache=True, nogil=True)
def interval_ends_s(
    which: np.ndarray,  # (K,) int: servers
    arrival_s: np.ndarray,  # (servers, room); so many are known, from `first` on:
    first: np.ndarray,  # (servers,)
    known: np.ndarray,
    all_known: np.ndarray,  # bool
    begin_s: np.ndarray,
    requests: int,  # an interval, unless it has a length:
    interval_s: float,  # or NaN
    end_s: np.ndarray,  # (servers,) filled: the first arrival that is not in the interval
    last: np.ndarray,  # (servers,) filled: where the interval's arrivals end
) -> Any:
    """(servers,) bool: more arrivals must be known to tell. At the end of all arrivals the last has time."""
    unclear = np.zeros(len(first), np.bool_)
    for e in which:
        times_s = arrival_s[e, first[e] : known[e]]
        n = len(times_s)
        if np.isnan(interval_s):
            count = requests
            while count < n and times_s[count] <= begin_s[e]:  # so many at one moment: take them all
                count += 1
            if count < n:
                end_s[e] = times_s[count]
            elif all_known[e]:
                end_s[e] = times_s[n - 1] + max((times_s[n - 1] - begin_s[e]) / n, 1e-3)
            else:
                unclear[e] = True
        else:
            end_s[e] = begin_s[e] + interval_s
            unclear[e] = not all_known[e] and (n == 0 or times_s[n - 1] < end_s[e])
        if not unclear[e]:
            last[e] = first[e] + np.searchsorted(times_s, end_s[e])
    return unclear


@numba.njit(cache=True, nogil=True)
def run_servers(
    which: np.ndarray,  # (K,) int: servers
    sharing: bool,
    carries: bool,  # what is left waits for the next interval; else it is served to its end
    padded_batches: bool,
    now_s: np.ndarray,  # (servers,), and so are the next
    until_s: np.ndarray,
    delay_s: np.ndarray,
    threads: np.ndarray,
    instances: np.ndarray,
    full_size: np.ndarray,
    table: np.ndarray,  # which of the tables
    tables_s: np.ndarray,  # (tables, N, B)
    factors: np.ndarray,  # (servers, factors)
    arrival_s: np.ndarray,  # (servers, room)
    first: np.ndarray,
    last: np.ndarray,
    work: np.ndarray,  # (servers, the most arrivals of an interval), or (servers, 0): all 1
    started: np.ndarray,  # changed, and so are the next
    counts: np.ndarray,  # (servers, 3): waiting, in service, batches in service
    waiting: np.ndarray,  # (servers, 2, capacity)
    serving: np.ndarray,  # (servers, 3, capacity)
    running: np.ndarray,  # (servers, 5, capacity)
    totals: np.ndarray,  # (servers, 3) filled: requests and batches that finished, thread-seconds
    summaries: np.ndarray,  # (servers, 3, 4) filled as `summaries_ms`
    telemetry: np.ndarray,  # (servers, N · B, 4) filled as `service_times`
    rows: np.ndarray,  # (servers,) filled: of the telemetry
) -> None:
    """One interval of each server."""
    capacity = waiting.shape[2]
    free_s = np.empty(tables_s.shape[1])
    done, batches = np.empty((3, capacity)), np.empty((4, capacity))
    drained, drained_batches = np.empty((3, capacity)), np.empty((4, capacity))
    none = np.empty(0)
    for e in which:
        if not carries:
            counts[e] = 0
        arrivals = last[e] - first[e]
        n_done, n_batches, n_waiting, n_serving, n_running, begun, busy_thread_s = run_one(
            sharing,
            now_s[e],
            until_s[e],
            delay_s[e],
            threads[e],
            padded_batches,
            instances[e],
            full_size[e],
            tables_s[table[e]],
            factors[e],
            started[e],
            arrival_s[e][first[e] : last[e]],
            work[e][:arrivals],
            waiting[e],
            counts[e, 0],
            serving[e],
            counts[e, 1],
            running[e],
            counts[e, 2],
            free_s,
            done,
            batches,
        )
        if not carries and n_waiting + n_serving > 0:
            n_drained, n_drained_batches, n_waiting, n_serving, n_running, begun, _ = run_one(
                sharing,
                until_s[e],
                np.inf,
                delay_s[e],
                threads[e],
                padded_batches,
                instances[e],
                full_size[e],
                tables_s[table[e]],
                factors[e],
                begun,
                none,
                none,
                waiting[e],
                n_waiting,
                serving[e],
                n_serving,
                running[e],
                n_running,
                free_s,
                drained,
                drained_batches,
            )
            done[:, n_done : n_done + n_drained] = drained[:, :n_drained]
            batches[:, n_batches : n_batches + n_drained_batches] = drained_batches[:, :n_drained_batches]
            n_done += n_drained
            n_batches += n_drained_batches
        counts[e, 0], counts[e, 1], counts[e, 2] = n_waiting, n_serving, n_running
        started[e] = begun
        totals[e, 0], totals[e, 1], totals[e, 2] = n_done, n_batches, busy_thread_s
        summaries[e] = summaries_ms(done[ARRIVAL, :n_done], done[START, :n_done], done[FINISH, :n_done])
        times = service_times(
            batches[B_BUSY, :n_batches],
            batches[B_SIZE, :n_batches],
            batches[B_START, :n_batches],
            batches[B_FINISH, :n_batches],
        )
        rows[e] = len(times)
        telemetry[e, : len(times)] = times
