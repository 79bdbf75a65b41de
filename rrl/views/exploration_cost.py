"""What tuning cost the users: the requests that were slower than before, and what the guard prevented.

It is counted against the start's mean latency before the tuning, in two parts: the search, and the
validation, which puts the start in force again beside the winner. What the baseline costs, users would have
borne anyway; what the last change costs, nothing measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rrl.journal import Kind, Record

Part = Literal["search", "validation"]

_PARTS: Mapping[Kind, Part] = {"tune": "search", "wait": "search", "validation": "validation"}


class CostOfExploration(NamedTuple):
    """What tuning cost the users, against leaving the target as it was found."""

    search_request_s: float  # latency above the start's mean, summed over the requests of worse intervals ...
    validation_request_s: float  # ... and in the turns of the validation
    worse_share: float  # of the search's intervals whose mean latency was above the start's
    intervals: int  # of the search
    turns: int  # intervals of the validation
    aborted: int
    rollbacks: int  # intervals that the guard ran in the best known configuration
    refused: int
    failures: int  # failed requests, in all intervals and while changes settled
    gaps: int  # intervals that tell nothing, not even of failures: the target was away, or began anew

    @property
    def extra_request_s(self) -> float:
        return self.search_request_s + self.validation_request_s


def part_of(record: Record) -> Part | None:
    """The part of exploration that an interval is of, if any; a wait is the search's, also between turns."""
    return _PARTS.get(record.kind) if record.counted else None


def cost_of_exploration(records: Sequence[Record], start_latency_ms: float) -> CostOfExploration:
    """Counts over the intervals of both parts."""
    parts = [part_of(r) for r in records]
    excess_s = excess_request_s(records, start_latency_ms)

    def of(part: Part) -> list[float]:
        return [s for s, its_part in zip(excess_s, parts, strict=True) if its_part == part]

    search_s, validation_s = of("search"), of("validation")
    explored = [r for r, part in zip(records, parts, strict=True) if part is not None]
    return CostOfExploration(
        search_request_s=sum(max(0.0, s) for s in search_s),
        validation_request_s=sum(max(0.0, s) for s in validation_s),
        worse_share=sum(s > 0 for s in search_s) / len(search_s) if search_s else 0.0,
        intervals=len(search_s),
        turns=len(validation_s),
        aborted=sum(bool(r.measurement.aborted) for r in explored),
        rollbacks=sum(r.decision == "rollback" for r in explored),
        refused=sum(r.decision == "refused" for r in explored),
        failures=sum(r.failures for r in records),
        gaps=sum(bool(r.measurement.gap) and not r.not_taken for r in records),
    )


def excess_request_s(records: Sequence[Record], start_latency_ms: float) -> list[float]:
    """Request-seconds above (or below: negative) the start's mean, of each interval with its change; 0 where
    it is of no part."""
    return [
        0.0
        if part_of(record) is None
        else sum(
            _or_zero((seen.latency.mean_ms - start_latency_ms) * seen.completions / 1e3)
            for seen in record.with_settling
        )
        for record in records
    ]


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
