"""What a run of the simulator gives: finished requests and batches, and summaries for a measurement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rrl.measurement import LatencySummary, ServiceTimes
from rrl.queueing.kernels import service_times, summaries_ms


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
        latency, queue, service = summaries_ms(self.arrival_s, self.start_s, self.finish_s).tolist()
        return LatencySummary(*latency), LatencySummary(*queue), LatencySummary(*service)

    def telemetry(self) -> tuple[ServiceTimes, ...]:
        """By (busy instances, batch size), ascending."""
        rows = service_times(self.batch_busy, self.batch_size, self.batch_start_s, self.batch_finish_s)
        return tuple(
            [ServiceTimes(int(n), int(b), int(count), s, busy) for n, b, count, s, busy in rows.tolist()]
        )
