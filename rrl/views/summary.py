"""What a run achieved and what it cost, computed from its journal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import yaml

from rrl.belief.belief import Belief
from rrl.belief.several_models.joint import JointBelief
from rrl.guarding.choice import ToKeep
from rrl.guarding.gain import UNKNOWN, Gain
from rrl.guarding.guard import Guard
from rrl.guarding.interval_memory import COMPARABLE_LOAD
from rrl.guarding.settings import GuardSettings
from rrl.measured_costs import costs_by_configuration
from rrl.objective import unit_of
from rrl.records import Header, Record
from rrl.space import Configuration
from rrl.views.exploration_cost import CostOfExploration, StartLatencies, cost_of_exploration
from rrl.views.reference_table import Origin, ReferenceTable
from rrl.views.same_arrivals import SameArrivals, at_same_arrivals
from serving_adapter.whole_files import written_whole

BEST_CONFIGURATION = "best_configuration.yaml"
NOT_KNOWN_IN_FORCE = (
    "# The configuration to use, by what this run measured; it is not known to have been left in force.\n"
)


@dataclass(frozen=True)
class Standing:
    """How a configuration did: means over its intervals, weighted by their completions (percentiles too)."""

    configuration: dict[str, int]
    intervals: int
    arrival_rate_per_s: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    queue_ms: float
    service_ms: float
    cost: float
    failure_share: float  # Of all requests answered in these intervals.
    answered_per_s: float  # Answers; failures are none.

    @classmethod
    def of(cls, records: Sequence[Record], configuration: Configuration) -> Standing:
        def mean(values: list[float]) -> float:
            pairs = [
                (v, r.measurement.completions)
                for v, r in zip(values, records, strict=True)
                if math.isfinite(v) and r.measurement.completions
            ]
            total = sum(weight for _, weight in pairs)
            return sum(value * weight for value, weight in pairs) / total if total else math.nan

        measured = [r.measurement for r in records]
        duration_s = sum(m.duration_s for m in measured)
        return cls(
            configuration=dict(configuration),
            intervals=len(records),
            arrival_rate_per_s=mean([m.arrival_rate_per_s for m in measured]),
            mean_ms=mean([m.latency.mean_ms for m in measured]),
            p50_ms=mean([m.latency.p50_ms for m in measured]),
            p95_ms=mean([m.latency.p95_ms for m in measured]),
            p99_ms=mean([m.latency.p99_ms for m in measured]),
            queue_ms=mean([m.queue.mean_ms for m in measured]),
            service_ms=mean([m.service.mean_ms for m in measured]),
            cost=mean([r.cost for r in records]),
            failure_share=sum(m.failures for m in measured) / max(1, sum(m.answered for m in measured)),
            answered_per_s=sum(m.completions for m in measured) / max(1e-9, duration_s)
            if measured
            else math.nan,
        )


KEPT_UNKNOWN = "Left in force, not known to be better than the start"
"""The title of a run whose start or best has no latency."""


@dataclass(frozen=True)
class RunSummary:
    start: Standing  # Over its validation intervals, or over the baseline where there are none.
    best: Standing  # Over its validation or tuning intervals. The start's again if nothing better is known.
    kept: dict[str, int]  # In force at the end, or the one to use where the run has not told.
    why_kept: str
    validated: bool  # The best was measured again in turns with the start.
    turns: Gain  # How many times lower the best's cost was in these turns. Unknown if not validated.
    expected: Gain  # The same of its intervals, beside what these would have cost with the start.
    needs_no_turns: bool  # The expected gain leaves no doubt, or the start is not expected to bear the load.
    exploration: CostOfExploration
    decision_ms: float  # The median.
    start_records: tuple[Record, ...]  # The intervals of `start`.
    best_records: tuple[Record, ...]  # The intervals of `best`.
    start_ms: StartLatencies  # Mean latency that the start would have had, by interval.
    start_beside_best_ms: float  # The same over those of `best`, or in the start's turns.
    belief: Belief | JointBelief | None = field(default=None, repr=False, compare=False)
    """What the guard believed at the end."""

    @property
    def found_better(self) -> bool:
        return self.kept != self.start.configuration

    @property
    def is_start_told_beside_best(self) -> bool:
        """Whether the start's mean latency is known at the arrivals that the best met."""
        return self.found_better and math.isfinite(self.start_beside_best_ms)

    @property
    def start_to_compare_ms(self) -> float:
        """The start's mean latency to hold beside the best's: at the same arrivals, or as it was measured."""
        return self.start_beside_best_ms if self.is_start_told_beside_best else self.start.mean_ms

    @property
    def loads_compare(self) -> bool:
        """Whether start and best met about the same load. Else their figures, as measured, say little."""
        lower_per_s, higher_per_s = sorted(self.loads_met_per_s)
        return not higher_per_s > COMPARABLE_LOAD * lower_per_s

    @property
    def loads_met_per_s(self) -> tuple[float, float]:
        """The mean rate of arrivals while the start, and while the best, was measured."""
        return self.start.arrival_rate_per_s, self.best.arrival_rate_per_s

    @property
    def gain(self) -> float:
        """How many times lower the best's cost is than the start's.

        It is told pair by pair where validated, else at the arrivals of the best's intervals.
        """
        if self.validated:
            return self.turns.estimate
        if math.isfinite(self.expected.estimate):
            return self.expected.estimate
        return self.start.cost / self.best.cost if self.best.cost > 0 else math.nan


def summarise(
    header: Header,
    records: Sequence[Record],
    settings: GuardSettings | None = None,
    kept: ToKeep | None = None,
    turns: int | None = None,
    same_arrivals: SameArrivals | None = None,
) -> RunSummary:
    """The figures of a run, finished or not.

    `kept` is what the run kept in force, and why. Without it, it is what a guard would keep that saw these
    records. Start and best are validated by `turns` intervals each at least, by default as many as the run
    planned. Fewer are enough where they show the gain, or that there is none. `same_arrivals` is known where
    the run has just ended; without it the records are replayed.
    """
    if same_arrivals is None:
        same_arrivals = at_same_arrivals(header, records, settings)
    records, guard = same_arrivals.records, same_arrivals.guard
    guard.turns.planned = header.validation if turns is None else turns
    validation = _LastValidation.of(records, guard)
    validated = validation.validates(guard.start) and (kept is None or kept.number in validation.costs)
    if kept is None:
        kept = guard.keeping(validation.costs if validated else _broken_off(guard, records))
    if validated:
        best = validation.other_than(guard.start)
    else:
        best = guard.choice.best_to_keep if kept.number == guard.start else kept.number
    compared = validation.records if validated else _learned(records)
    of_start = [r for r in compared if r.number == guard.start and (validated or r.kind == "baseline")]
    of_best = of_start if best == guard.start else [r for r in compared if r.number == best]
    return RunSummary(
        start=Standing.of(of_start, header.start),
        best=Standing.of(of_best, header.space.configuration(best)),
        kept=header.space.configuration(kept.number),
        why_kept=kept.reason,
        validated=validated,
        turns=guard.turns.gain(validation.costs) if validated else UNKNOWN,
        expected=same_arrivals.gain(of_best),
        needs_no_turns=guard.choice.is_proven(best) or guard.choice.avoids_start,
        exploration=cost_of_exploration(records, same_arrivals.start_ms),
        decision_ms=_median_decision_ms(records),
        start_records=tuple(of_start),
        best_records=tuple(of_best),
        start_ms=same_arrivals.start_ms,
        start_beside_best_ms=same_arrivals.start_latency_ms(of_start if validated else of_best),
        belief=same_arrivals.belief,
    )


class _LastValidation(NamedTuple):
    """The turns of the last validation that count."""

    records: list[Record]
    costs: dict[int, list[float]]  # By configuration.
    whole: bool  # As many turns as asked for, or no question open without them.

    @classmethod
    def of(cls, records: Sequence[Record], guard: Guard) -> _LastValidation:
        counted = whole_turns(records) if guard.turns.planned else []
        costs = costs_by_configuration((r.number, r.cost) for r in counted)
        return cls(counted, costs, guard.turns.validate(costs))

    def validates(self, start: int) -> bool:
        """True if another configuration was compared with the start."""
        return self.whole and start in self.costs

    def other_than(self, start: int) -> int:
        return next(number for number in self.costs if number != start)


def _learned(records: Sequence[Record]) -> list[Record]:
    """The intervals that tell a cost to learn from."""
    return [r for r in records if r.counted and r.learned and math.isfinite(r.cost)]


def _median_decision_ms(records: Sequence[Record]) -> float:
    """NaN where no decision was timed."""
    decisions_ms = sorted(r.decision_ms for r in records if math.isfinite(r.decision_ms))
    return decisions_ms[len(decisions_ms) // 2] if decisions_ms else math.nan


def _broken_off(guard: Guard, records: Sequence[Record]) -> dict[int, list[float]] | None:
    """No costs for both, if a validation ended because one of them failed in it. None if neither did."""
    numbers = {r.number for r in last_validation(records) if r.kind == "validation"}
    return None if all(map(guard.fitness.fits, numbers)) else {number: [] for number in numbers}


def whole_turns(records: Sequence[Record]) -> list[Record]:
    """The intervals of the last validation that count, in their order: both of a pair of turns, or none.

    A turn is an interval that was learned, or in which nothing was completed. Where the run waited after a
    turn and then measured the same configuration again, the second interval counts.
    """
    turns: list[Record] = []
    waited = False
    for record in last_validation(records):
        if record.kind == "wait":
            waited = True
        elif record.learned or (record.counted and math.isnan(record.cost)):
            if waited and turns and turns[-1].number == record.number:
                turns.pop()
            turns.append(record)
            waited = False
    pairs = zip(turns[::2], turns[1::2], strict=False)
    return [r for pair in pairs if all(math.isfinite(r.cost) for r in pair) for r in pair]


def last_validation(records: Sequence[Record]) -> list[Record]:
    """The validation's intervals, and its waits, that no tuning followed and no start of a resumed run."""
    after = max((i for i, r in enumerate(records) if r.kind in ("tune", "baseline")), default=-1)
    began = next((i for i, r in enumerate(records) if i > after and r.kind == "validation"), len(records))
    return list(records[began:])


def reference_table_of(header: Header, records: Sequence[Record]) -> ReferenceTable:
    origin = Origin.of(header.target, header.server)
    return ReferenceTable.of(
        records,
        header.space,
        header.objective,
        unit_of(header.objective),
        header.model,
        origin=origin,
        slo_p95_ms=header.slo_p95_ms,
    )


def write_best_configuration(path: Path, header: Header, summary: RunSummary, ended: bool) -> None:
    """The configuration kept in force, or to use where that is not known, with what it was chosen by."""
    values = {
        "model": header.model,
        "configuration": summary.kept,
        "found": header.found,
        "mean_latency_ms": _rounded(summary.best.mean_ms if summary.found_better else summary.start.mean_ms),
        "mean_latency_at_start_ms": _rounded(summary.start.mean_ms),
        "arrival_rate_per_s": _rounded(summary.best.arrival_rate_per_s),
    }
    text = "# The configuration that this run left in force.\n" if ended else NOT_KNOWN_IN_FORCE
    with written_whole(path) as file:
        file.write((text + yaml.safe_dump(values, sort_keys=False)).encode())


def _rounded(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None
