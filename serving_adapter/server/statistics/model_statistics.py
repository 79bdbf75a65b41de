"""Counters of one model: the one source of ModelStatistics, of the metrics page and of telemetry."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from serving_adapter.latency_histogram import BucketHistogram
from serving_adapter.server.statistics.arrival_ring import ArrivalRing
from serving_adapter.server.statistics.node_times import NodeTimes

# Clients choose the sizes of batches, and every cell is a line of each metrics page.
MAX_CELLS = 2048


class FailureReason(StrEnum):
    """Why a request has no answer, in Triton's words."""

    REJECTED = "REJECTED"  # there was no room for it, or for its answer
    CANCELED = "CANCELED"  # the client did not wait for it
    BACKEND = "BACKEND"  # the model or its worker failed
    OTHER = "OTHER"


class ComputeTimes(NamedTuple):
    """How long a worker took for one batch: to map the inputs, run the model, write the outputs."""

    input_ns: int
    infer_ns: int
    output_ns: int


@dataclass
class Tally:
    """A count and a summed duration, like Triton's StatisticDuration."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns


@dataclass
class TelemetryTally:
    """Batches of one size that began with one number of instances busy."""

    count: int = 0
    ns: int = 0
    mean_busy: float = 0.0  # summed: instances busy on average while each ran

    def add(self, service_ns: int, mean_busy: float) -> None:
        self.count += 1
        self.ns += service_ns
        self.mean_busy += mean_busy


@dataclass
class BatchTally:
    """The three parts of computing a batch."""

    compute_input: Tally = field(default_factory=Tally)
    compute_infer: Tally = field(default_factory=Tally)
    compute_output: Tally = field(default_factory=Tally)

    def add(self, times: ComputeTimes, count: int = 1) -> None:
        self.compute_input.add(times.input_ns * count, count)
        self.compute_infer.add(times.infer_ns * count, count)
        self.compute_output.add(times.output_ns * count, count)


class ModelStatistics:
    """Counts and sums since the server's start, which only ever grow."""

    def __init__(self) -> None:
        self.success, self.queue = Tally(), Tally()
        self.failures = {reason: Tally() for reason in FailureReason}
        self.compute = BatchTally()
        self.batches: dict[int, BatchTally] = defaultdict(BatchTally)
        self.inference_count = 0
        self.execution_count = 0
        self.last_inference_ms = 0
        self.latency, self.queueing, self.service = (
            BucketHistogram(),
            BucketHistogram(),
            BucketHistogram(),
        )
        self.telemetry: dict[tuple[int, int], TelemetryTally] = defaultdict(TelemetryTally)
        self.arrivals = ArrivalRing()
        self.answers: Counter[str] = Counter()  # of requests, by where their answer came from
        self.nodes = NodeTimes()  # of a cluster
        self.copies_count = 0  # batches run again, as replicas or hedges or because their worker died

    def record_batch(
        self, rows: int, busy_instances: int, mean_busy: float, service_ns: int, compute: ComputeTimes
    ) -> None:
        self.execution_count += 1
        self.batches[rows].add(compute)
        cell = (busy_instances, rows)
        if cell in self.telemetry or len(self.telemetry) < MAX_CELLS:
            self.telemetry[cell].add(service_ns, mean_busy)

    def record_success(
        self, rows: int, queue_ns: int, service_ns: int, compute: ComputeTimes, origin: str
    ) -> None:
        total_ns = queue_ns + service_ns
        self.answers[origin] += 1
        self.inference_count += rows
        self.last_inference_ms = time.time_ns() // 1_000_000
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.compute.add(compute)
        self.latency.observe(total_ns * 1e-9)
        self.queueing.observe(queue_ns * 1e-9)
        self.service.observe(service_ns * 1e-9)

    def record_failure(self, total_ns: int, reason: FailureReason) -> None:
        self.failures[reason].add(total_ns)

    @property
    def failure(self) -> Tally:
        """Of requests without an answer, whatever the reason."""
        tallies = self.failures.values()
        return Tally(sum(tally.count for tally in tallies), sum(tally.ns for tally in tallies))
