"""A reading: the cumulative counters of one model of one server at one moment.

How it is read is each target's own (`open_inference.readings`, `ray_serve`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from serving_adapter.latency_histogram import CumulativeHistogram


class BatchTotals(NamedTuple):
    """Telemetry of one (busy instances, batch size)."""

    batches: int
    total_s: float  # summed service time
    mean_busy: float = math.nan  # summed: instances busy on average while each ran; NaN: not told


class RecentArrivals(NamedTuple):
    """When the newest requests came."""

    at_s: np.ndarray  # (arrivals,) ascending, monotonic clock of the reader
    rows: np.ndarray  # (arrivals,)
    complete_since_s: float  # from then on no arrival is missing


@dataclass(frozen=True)
class Reading:
    """Everything counts from the server's start, gauges excepted; None where the server does not tell."""

    at_s: float  # monotonic clock of the reader
    success: int  # requests answered
    failure: int  # requests refused or failed
    inference_count: int  # items answered (a request may hold several)
    execution_count: int  # batches executed
    request_s: float  # summed over requests: arrival to answer
    queue_s: float  # summed over requests: arrival to start of service; NaN where the server does not tell
    service_s: float  # summed over requests: the time in service; NaN where the server does not tell
    timed: int | None = None  # the requests that `request_s` sums, where failed ones are among them
    start_time_s: float | None = None  # when the server started, its wall clock
    in_flight: int | None = None  # gauge: queued and executing requests
    pending: int | None = None  # gauge: queued requests
    latency: CumulativeHistogram | None = None
    queue: CumulativeHistogram | None = None
    service: CumulativeHistogram | None = None
    telemetry: Mapping[tuple[int, int], BatchTotals] = field(default_factory=dict)
    """(busy instances, batch size) -> totals; 0 busy instances where the server does not tell how many."""
    executions_since_load: int | None = None  # batches since the model was last loaded, warm-up included
    success_since_load: int | None = None  # requests answered; a full reload starts both counts again
    cpu_busy_s: float | None = None  # core-seconds used: the server's, or the whole machine's
    cpu_available_s: float | None = None  # core-seconds the machine had, busy or not
    cores: int | None = None  # gauge: what the server may use of its machine
    cpus_by_node: tuple[int, ...] = ()  # gauge: of each node that serves, where the server is on a cluster
    gpu_utilisation: float | None = None  # gauge: mean over all GPUs, 0 .. 1
    cluster_changed_share: float | None = None  # of the workers that nodes took, or that came back: their sum
    recent_arrivals: RecentArrivals | None = field(default=None, compare=False)
    clients: CumulativeHistogram | None = None  # latencies that clients saw, where the load is the tuner's
    models: Mapping[str, Reading] = field(default_factory=dict)  # of each, where several are read together
    is_whole: bool = False  # what is told of requests is of one model, which the `models` are parts of
    comes_in_lumps: bool = False  # it was counted up to some seconds before, so looks tell no dispersion

    @property
    def backlog(self) -> int:
        """Requests in the server, as far as it tells."""
        gauge = self.in_flight if self.in_flight is not None else self.pending
        return gauge or 0

    @property
    def answered(self) -> int:
        """Requests that left the server, one way or the other."""
        return self.success + self.failure

    @property
    def arrivals(self) -> int:
        return self.answered + self.backlog

    @property
    def answered_by_earlier_loads(self) -> int | None:
        """It grows at a reload, and goes on growing while the instances from before it drain their queue."""
        return None if self.success_since_load is None else self.success - self.success_since_load


def read_together(models: Mapping[str, Reading]) -> Reading:
    """The reading of several models of one server: the sums. Latencies are only told by those of each."""
    each = list(models.values())
    first = each[0]
    starts = {reading.start_time_s for reading in each}
    changed = [reading.cluster_changed_share for reading in each]
    return Reading(
        at_s=max(reading.at_s for reading in each),
        success=sum(reading.success for reading in each),
        failure=sum(reading.failure for reading in each),
        inference_count=sum(reading.inference_count for reading in each),
        execution_count=sum(reading.execution_count for reading in each),
        request_s=sum(reading.request_s for reading in each),
        queue_s=sum(reading.queue_s for reading in each),
        service_s=sum(reading.service_s for reading in each),
        start_time_s=first.start_time_s if len(starts) == 1 else None,
        in_flight=_sum(reading.in_flight for reading in each),
        pending=_sum(reading.pending for reading in each),
        latency=None if any(reading.latency is None for reading in each) else first.latency,
        executions_since_load=_sum(reading.executions_since_load for reading in each),
        success_since_load=_sum(reading.success_since_load for reading in each),
        cpu_busy_s=first.cpu_busy_s,
        cpu_available_s=first.cpu_available_s,
        cores=first.cores,
        cpus_by_node=first.cpus_by_node,
        gpu_utilisation=first.gpu_utilisation,
        cluster_changed_share=None if None in changed else sum(share or 0.0 for share in changed),
        models=dict(models),
    )


def read_as_whole(whole: Reading, parts: Mapping[str, Reading]) -> Reading:
    """The reading of a model that others are parts of. Its requests wait in the queues of those."""
    together = read_together(parts)
    return replace(
        whole,
        in_flight=together.in_flight,
        pending=together.pending,
        telemetry={},
        models=dict(parts),
        is_whole=True,
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one is not told."""
    told = list(counts)
    return None if None in told else sum(count or 0 for count in told)
