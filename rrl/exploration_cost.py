"""What tuning cost the users: the requests that were slower than before, and what the guard prevented."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rrl.journal import Record
from rrl.measurement import Measurement


class CostOfExploration(NamedTuple):
    """What tuning cost the users, against leaving the target as it was found."""

    extra_request_s: float  # latency above the start's mean, summed over the requests of worse intervals
    worse_share: float  # of the tuning intervals whose mean latency was above the start's
    intervals: int
    aborted: int
    rollbacks: int  # intervals that the guard ran in the best known configuration
    refused: int
    failures: int  # failed requests, in all intervals and while changes settled


def cost_of_exploration(records: Sequence[Record], start_latency_ms: float) -> CostOfExploration:
    """Counts over the tuning intervals, waits too."""
    tuning = [r for r in records if r.kind in ("tune", "wait") and r.counted]
    excess_s = [excess_request_s(r, start_latency_ms) for r in tuning]
    return CostOfExploration(
        extra_request_s=sum(max(0.0, s) for s in excess_s),
        worse_share=sum(s > 0 for s in excess_s) / len(tuning) if tuning else 0.0,
        intervals=len(tuning),
        aborted=sum(bool(r.measurement.aborted) for r in tuning),
        rollbacks=sum(r.decision == "rollback" for r in tuning),
        refused=sum(r.decision == "refused" for r in tuning),
        failures=sum(part.failures for r in records for part in _parts(r)),
    )


def excess_request_s(record: Record, latency_ms: float) -> float:
    """Request-seconds above (or below: negative) a mean latency, of an interval and of its change."""
    return sum(
        _or_zero((part.latency.mean_ms - latency_ms) * part.completions / 1e3) for part in _parts(record)
    )


def _parts(record: Record) -> list[Measurement]:
    return [record.measurement] if record.settling is None else [record.settling, record.measurement]


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
