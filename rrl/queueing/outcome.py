"""What a run of the simulator gives: finished requests and batches, and summaries for a measurement."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from rrl.measurement import LatencySummary, ServiceTimes


class Outcome(NamedTuple):
    """What finished in one run; times in seconds since the simulation began."""

    arrival_s: np.ndarray  # (requests,) of each request that finished; may lie in an earlier run
    start_s: np.ndarray  # (requests,) of its service
    finish_s: np.ndarray  # (requests,)
    batch_start_s: np.ndarray  # (batches,) of each batch that finished
    batch_finish_s: np.ndarray  # (batches,)
    batch_busy: np.ndarray  # (batches,) float: instances busy at its start, its own included
    batch_size: np.ndarray  # (batches,) float
    busy_thread_s: float  # thread-seconds in service within the run, of unfinished batches too

    @classmethod
    def joined(cls, runs: list[Outcome]) -> Outcome:
        """The outcome of consecutive runs as one."""
        if len(runs) == 1:
            return runs[0]
        columns = {name: np.concatenate([getattr(run, name) for run in runs]) for name in cls._fields[:-1]}
        return cls(**columns, busy_thread_s=sum(run.busy_thread_s for run in runs))

    def summaries(self) -> tuple[LatencySummary, LatencySummary, LatencySummary]:
        """Of latency, queue and service time."""
        latency, queue, service = _summaries_ms(self.arrival_s, self.start_s, self.finish_s).tolist()
        return LatencySummary(*latency), LatencySummary(*queue), LatencySummary(*service)

    def telemetry(self) -> tuple[ServiceTimes, ...]:
        """Count and sum of service times by (busy instances, batch size), ascending."""
        rows = _service_times(self.batch_busy, self.batch_size, self.batch_start_s, self.batch_finish_s)
        return tuple([ServiceTimes(int(n), int(b), int(count), s) for n, b, count, s in rows.tolist()])


@numba.njit(cache=True, nogil=True)
def _summaries_ms(arrival_s: np.ndarray, start_s: np.ndarray, finish_s: np.ndarray) -> np.ndarray:
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
def _service_times(
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
