"""What a run of `rrl-tune` under real traffic is judged by, one row of a file a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from rrl.records import Record

REACH_RATIO = 1.10  # of the best of the sweep
REACH_SHARE = 0.9  # of all runs
MOST_CHANGES = 10
MOST_WORSENED = 0.02  # actions of the guard that made it worse, a run
ALIKE = 1.25  # Loads that differ by at most this factor are compared.
WORSE = 1.10


class TrafficCase(NamedTuple):
    """What is run once."""

    model: str
    agent: str
    arrivals: str
    load: str  # 0.4 (of what the rule of thumb serves) or 45/s
    seed: int


class GuardActions(NamedTuple):
    """Rollbacks and aborted intervals, and how many of them an interval followed that cost more."""

    rollbacks: int
    aborted: int
    worsened: int

    @classmethod
    def of(cls, records: Sequence[Record]) -> GuardActions:
        """An action made it worse if the next interval, at like load, cost over 10 % more."""
        seen = [record for record in records if record.counted]
        return cls(
            rollbacks=sum(record.rollback for record in seen),
            aborted=sum(bool(record.measurement.aborted) for record in seen),
            worsened=sum(
                (at.rollback or bool(at.measurement.aborted)) and _cost_more(after, at)
                for at, after in pairwise(seen)
            ),
        )


def _cost_more(after: Record, at: Record) -> bool:
    rates_per_s = [record.measurement.arrival_rate_per_s for record in (at, after)]
    return max(rates_per_s) <= ALIKE * min(rates_per_s) and after.cost > WORSE * at.cost


@dataclass(frozen=True)
class TrafficRow:
    """One run, and the sweep over its arrivals. Latencies are those that the clients saw."""

    model: str
    agent: str
    arrivals: str
    load: str
    seed: int
    rate_per_s: float
    variation: float  # coefficient of variation of the gaps of the run's arrivals
    start: str
    left: str
    best: str
    best_ms: float  # mean latency in the sweep
    ratio: float  # what was left over the best, mean latency
    ratio_error: float  # standard error of it, by the sweep's rounds; NaN with one
    start_ratio: float  # the start over the best
    rule_ratio: float  # the rule of thumb over the best
    changes: int
    rollbacks: int
    aborted: int
    worsened: int  # rollbacks and aborts after which the next interval cost more
    requests: int  # of the run
    failed: int
    latency_s: float  # of all requests of the run, summed
    untouched_s: float  # the same under the start left in force, at the same moments
    late_ms: float  # by which a load generator sent at worst
    began_at: str
    commit: str

    @property
    def cost_ratio(self) -> float:
        """Latency of the run over that of the start left alone."""
        return self.latency_s / self.untouched_s

    def __str__(self) -> str:
        return (
            f"{self.arrivals:12} load {self.load:5} seed {self.seed}: left / best {self.ratio:.3f} ± "
            f"{self.ratio_error:.3f} ({self.best_ms:.1f} ms; start {self.start_ratio:.2f}, rule "
            f"{self.rule_ratio:.2f}), {self.changes} changes, {self.latency_s:.0f} s of latency against "
            f"{self.untouched_s:.0f}, {self.rollbacks} rollbacks, {self.aborted} aborted, "
            f"{self.worsened} made it worse, {self.failed} failed, late by {self.late_ms:.0f} ms at worst; "
            f"left {self.left}, best {self.best}"
        )


def result(rows: Sequence[TrafficRow]) -> dict[str, Any]:
    """The last line of the benchmark."""
    if not rows:
        return {"value": None, "reach": REACH_SHARE, "holds": False, "runs": 0}
    within = fmean(row.ratio <= REACH_RATIO for row in rows)
    few_changes = fmean(row.changes <= MOST_CHANGES for row in rows)
    cheaper = fmean(row.cost_ratio < 1 for row in rows)
    return {
        "value": round(within, 3),
        "unit": f"share of runs that leave at most {REACH_RATIO:g} times the latency of the sweep's best",
        "reach": REACH_SHARE,
        "runs": len(rows),
        "worst_ratio": round(max(row.ratio for row in rows), 3),
        "rule_within": round(fmean(row.rule_ratio <= REACH_RATIO for row in rows), 3),
        "with_few_changes": round(few_changes, 3),
        "most_changes": max(row.changes for row in rows),
        "cheaper_than_start": round(cheaper, 3),
        "worsened": sum(row.worsened for row in rows),
        "worst_late_ms": round(max(row.late_ms for row in rows), 1),
        "commits": list(dict.fromkeys(row.commit for row in rows)),
        "holds": min(within, few_changes, cheaper) >= REACH_SHARE,
    }
