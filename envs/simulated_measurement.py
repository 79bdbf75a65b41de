"""What an interval on a simulated server measures."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from rrl.arrival_summary import dispersion_of_times, summarised
from rrl.measurement import Measurement
from rrl.queueing.outcome import Outcome


def measurement_of(
    outcome: Outcome,
    offsets_s: np.ndarray,
    duration_s: float,
    backlog: int,
    backlog_before: int,
    cores: float,
    aborted: str,
) -> Measurement:
    """That of an interval whose arrivals came so long after its beginning: `offsets_s` (arrivals,)."""
    latency, queue, service = outcome.summaries()
    completions, batches = len(outcome.finish_s), len(outcome.batch_size)
    return Measurement(
        duration_s=duration_s,
        arrivals=len(offsets_s),
        completions=completions,
        failures=0,
        latency=latency,
        queue=queue,
        service=service,
        mean_batch_size=completions / batches if batches else math.nan,
        backlog=backlog,
        backlog_growth=backlog - backlog_before,
        cpu_utilisation=min(1.0, outcome.busy_thread_s / (cores * duration_s)),
        telemetry=outcome.telemetry(),
        aborted=aborted,
        arrival_summary=partial(summarised, offsets_s),
        dispersion=partial(dispersion_of_times, offsets_s, duration_s),
    )
