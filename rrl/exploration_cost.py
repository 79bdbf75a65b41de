"""What tuning cost the users: the requests that were slower than before, and what the guard prevented."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rrl.journal import Record


class CostOfExploration(NamedTuple):
    """What tuning cost the users, against leaving the target as it was found."""

    extra_request_s: float  # latency above the start's mean, summed over requests
    worse_share: float  # of the tuning intervals whose mean latency was above the start's
    intervals: int
    aborted: int
    rollbacks: int  # intervals that the guard ran in the best known configuration
    refused: int
    failures: int  # failed requests, in all intervals


def cost_of_exploration(records: Sequence[Record], start_latency_ms: float) -> CostOfExploration:
    """Counts over the tuning intervals, waits too (settling parts are not measured, so not counted)."""
    tuning = [r for r in records if r.kind in ("tune", "wait") and r.counted]
    excess_ms = [_or_zero(r.measurement.latency.mean_ms - start_latency_ms) for r in tuning]
    extra_s = [
        max(0.0, ms) * r.measurement.completions / 1e3 for ms, r in zip(excess_ms, tuning, strict=True)
    ]
    return CostOfExploration(
        extra_request_s=sum(extra_s),
        worse_share=sum(ms > 0 for ms in excess_ms) / len(tuning) if tuning else 0.0,
        intervals=len(tuning),
        aborted=sum(bool(r.measurement.aborted) for r in tuning),
        rollbacks=sum(r.decision == "rollback" for r in tuning),
        refused=sum(r.decision == "refused" for r in tuning),
        failures=sum(r.measurement.failures for r in records),
    )


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
