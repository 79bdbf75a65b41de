"""What a configuration would cost: one stream of arrivals, simulated under many configurations at once.

The same physics as `rrl.queueing.simulator`, whose kernel it calls, without what a measurement needs beside
latencies. All configurations see the same arrivals and service-time factors (common random numbers), so
that their differences are the configurations' and not chance.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from rrl.queueing.simulator import ARRIVAL, FINISH, _run


class Candidates(NamedTuple):
    """K configurations with the service times they would have."""

    instances: np.ndarray  # (K,) int
    max_batch_size: np.ndarray  # (K,) int
    delay_s: np.ndarray  # (K,) max_queue_delay
    service_time_s: (
        np.ndarray
    )  # (K, N, B) with n = 1..N busy, of b = 1..B requests; beyond its own n, b unused


def interval_latencies_ms(
    candidates: Candidates, arrivals_s: np.ndarray, requests_per_interval: int, factors: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(K, intervals) mean and p95 latency in ms of every `requests_per_interval` requests in turn.

    `arrivals_s` (requests,) ascend from 0; `factors` vary the service time of one batch after another.
    """
    intervals = len(arrivals_s) // requests_per_interval
    if intervals < 1:
        raise ValueError(f"at least {requests_per_interval} arrivals make an interval, got {len(arrivals_s)}")
    mean_ms, p95_ms = _latencies_ms(
        candidates.instances,
        candidates.max_batch_size,
        candidates.delay_s,
        np.ascontiguousarray(candidates.service_time_s),
        np.ascontiguousarray(arrivals_s[: intervals * requests_per_interval]),
        requests_per_interval,
        factors,
    )
    return mean_ms, p95_ms


@numba.njit(cache=True, nogil=True)
def _latencies_ms(
    instances: np.ndarray,
    max_batch_size: np.ndarray,
    delay_s: np.ndarray,
    service_time_s: np.ndarray,
    arrivals_s: np.ndarray,
    requests_per_interval: int,
    factors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    requests = len(arrivals_s)
    intervals = requests // requests_per_interval
    mean_ms = np.empty((len(instances), intervals))
    p95_ms = np.empty((len(instances), intervals))
    waiting, serving = np.empty((2, requests)), np.empty((3, requests))
    running, done = np.empty((5, requests)), np.empty((3, requests))
    batches = np.empty((4, requests))
    no_sizes = np.empty(0)
    position = 0.95 * (requests_per_interval - 1)
    low = int(position)
    for k in range(len(instances)):
        c, full_size = instances[k], max_batch_size[k]
        table_s = np.ascontiguousarray(service_time_s[k, :c, :full_size])
        _run(
            0.0,
            np.inf,
            delay_s[k],
            1.0,
            False,
            table_s,
            factors,
            0,
            arrivals_s,
            no_sizes,
            waiting,
            0,
            serving,
            0,
            running,
            0,
            np.full(c, -np.inf),
            done,
            batches,
        )
        for interval in range(intervals):
            first = interval * requests_per_interval
            last = first + requests_per_interval
            latencies_s = done[FINISH, first:last] - done[ARRIVAL, first:last]
            mean_ms[k, interval] = 1e3 * latencies_s.mean()
            latencies_s.sort()
            high = min(low + 1, requests_per_interval - 1)
            p95_ms[k, interval] = 1e3 * (
                latencies_s[low] + (position - low) * (latencies_s[high] - latencies_s[low])
            )
    return mean_ms, p95_ms
