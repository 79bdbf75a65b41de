"""What tuning cost the users: the requests that were slower than before, and what the guard prevented.

It is counted against what the start would have cost in the same intervals, in two parts: the search and the
validation. What the baseline costs is not counted, as users would have borne it anyway. Nothing measures what
the last change costs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from rrl.measurement import has_traffic, nodes_changed
from rrl.records import Kind, Record

Part = Literal["search", "validation"]

_PARTS: Mapping[Kind, Part] = {"tune": "search", "wait": "search", "validation": "validation"}


StartLatencies = Sequence[Sequence[float]]
"""By record, of its change (if it has one) and of itself: the start's mean latency in ms to count against."""


class CostOfExploration(NamedTuple):
    """What tuning cost the users, against leaving the target as it was found."""

    search_request_s: float  # Latency above the start's, summed over the requests of worse intervals.
    validation_request_s: float  # The same of the validation's turns.
    worse_share: float  # The part of the search's intervals whose mean latency was above the start's.
    intervals: int  # Of the search.
    turns: int  # Intervals of the validation.
    aborted: int
    rollbacks: int  # Intervals that the guard ran in the best known configuration.
    refused: int
    failures: int  # Failed requests, in all intervals and while changes settled.
    gaps: int  # Intervals in which the target was away or began anew: they do not even tell of failures.

    @property
    def extra_request_s(self) -> float:
        return self.search_request_s + self.validation_request_s


def part_of(record: Record) -> Part | None:
    """The part of exploration that an interval belongs to, if any. A wait belongs to the search."""
    return _PARTS.get(record.kind) if record.counted else None


def cost_of_exploration(records: Sequence[Record], start_ms: StartLatencies | float) -> CostOfExploration:
    """Counts the cost over the intervals of both parts. One figure for `start_ms` stands for all of them."""
    parts = [part_of(r) for r in records]
    excess_s = excess_request_s(records, start_ms)

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
        gaps=sum(_was_away(r) for r in records),
    )


def _was_away(record: Record) -> bool:
    """A target that refused a change was there. It counted where others changed something, or all failed.

    What users saw of a configuration that another client had set is no cost of the run.
    """
    seen = record.measurement
    counted = seen.gap_by_others and (has_traffic(seen) or nodes_changed(seen) or record.left_to_others)
    return bool(seen.gap) and not (record.not_taken or counted)


def excess_request_s(records: Sequence[Record], start_ms: StartLatencies | float) -> list[float]:
    """Request-seconds beyond the start's, of each interval with its change. Below it they are negative.

    An interval that belongs to no part has 0.
    """
    if isinstance(start_ms, float):
        start_ms = [[start_ms] * len(record.with_settling) for record in records]
    return [
        0.0
        if part_of(record) is None
        else sum(
            _or_zero((seen.latency.mean_ms - of_start_ms) * seen.completions / 1e3)
            for seen, of_start_ms in zip(record.with_settling, beside, strict=True)
        )
        for record, beside in zip(records, start_ms, strict=True)
    ]


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) else 0.0
