"""What the sections of the report show, gathered once from a run's journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rrl.objective import slo_violated
from rrl.records import EMBEDDED, SIMULATION, Header, Record
from rrl.tuning.decision_words import KEPT, PUT_BACK, TAKEN_OVER, reason_in_words
from rrl.tuning.listener import Change
from rrl.views import time_axis
from rrl.views.by_load import groups_by_load
from rrl.views.exploration_cost import excess_request_s
from rrl.views.summary import RunSummary
from rrl.views.tradeoff import Tradeoff
from rrl.views.what_if import Learned


@dataclass(frozen=True)
class PlacedChange:
    """A change of configuration, and the interval that it began (None: what the run kept at its end)."""

    change: Change
    interval: int | None


class LeftOut(NamedTuple):
    """What is not shown of a run whose journal was shortened: all before the first interval that is."""

    tuned: int  # tuning intervals done
    lasted_s: float


@dataclass(frozen=True)
class RunView:
    header: Header
    records: Sequence[Record]
    summary: RunSummary
    ended: bool  # The run has put in force what the summary says. Else what is in force is unknown.
    left_out: LeftOut | None = None  # None: the run began with the first record.

    @cached_property
    def ends_min(self) -> np.ndarray:
        return time_axis.ends_min(self.records, self.header.interval_s)

    @cached_property
    def begins_min(self) -> np.ndarray:
        return np.concatenate([[0.0], self.ends_min[:-1]]) if len(self.records) else self.ends_min

    @cached_property
    def counted(self) -> list[Record]:
        return [r for r in self.records if r.counted]

    @cached_property
    def by_load(self) -> list[list[Record]]:
        """The intervals that tell a cost, by load; the largest group first."""
        return groups_by_load(self.records, self.header.concurrency is not None)

    @cached_property
    def tradeoff(self) -> Tradeoff:
        return Tradeoff.of(self.header, self.records)

    @cached_property
    def learned(self) -> Learned | None:
        """The run, to be asked what it expects; None where it can expect nothing."""
        return Learned.of(self.header, self.records, self.summary.belief, self.summary.kept)

    @property
    def length_min(self) -> float:
        return float(self.ends_min[-1]) if len(self.records) else 0.0

    @property
    def _lasted_s(self) -> float:
        """Of what the duration planned is of: the run, or what came since it was resumed with one."""
        since_s = self.header.resumed_at_s
        if since_s is None:
            before_s = 0.0 if self.left_out is None else self.left_out.lasted_s
            return before_s + 60 * self.length_min
        since = [record for record in self.records if record.wall_time_s > since_s]
        ends_min = time_axis.ends_min(since, self.header.interval_s)
        return 60 * float(ends_min[-1]) if len(ends_min) else 0.0

    @cached_property
    def tuned(self) -> int:
        """Tuning intervals done, of `header.intervals`."""
        before = 0 if self.left_out is None else self.left_out.tuned
        return before + sum(r.kind == "tune" and r.counted for r in self.records)

    @property
    def searched(self) -> bool:
        """True once all tuning intervals were done, or their time was up but for an interval.

        Their time is what the run's duration holds beside the validation, as `Tuning` counts it.
        """
        h = self.header
        if h.duration_s is None:
            return self.tuned >= h.intervals
        return self._lasted_s >= h.duration_s - (2 * h.validation + 1) * h.interval_s

    @property
    def complete(self) -> bool:
        summary = self.summary
        is_start = summary.best.configuration == summary.start.configuration
        nothing_to_validate = not self.header.validation or is_start or summary.needs_no_turns
        return summary.validated or (self.searched and nothing_to_validate)

    @property
    def kept_as_found(self) -> bool:
        """False also where the start is kept, and a pinned knob makes that another than what was found."""
        found = {**self.header.start, **self.header.found}
        return all(found[name] == value for name, value in self.summary.kept.items())

    @property
    def tells_percentiles(self) -> bool:
        return any(np.isfinite(r.measurement.latency.p95_ms) for r in self.counted)

    @cached_property
    def extra_request_s(self) -> np.ndarray:
        """(n,) request-seconds beyond the start's, negative below it, of each interval explored; else 0."""
        return np.array(excess_request_s(self.records, self.summary.start_ms))

    @property
    def target(self) -> str:
        if self.header.target == EMBEDDED:
            return "the embedded server"
        return "a simulated machine" if self.header.target == SIMULATION else self.header.target

    @cached_property
    def changes(self) -> list[PlacedChange]:
        """Every change, from the configuration found, or the first one shown, to the one kept."""
        changes = []
        before: Mapping[str, int] | None = None
        if self.left_out is None:
            before = _on_knobs(self.header.found, self.header)
        for i, record in enumerate(self.records):
            if not record.was_in_force:
                continue
            if before is None:
                before = record.configuration
            elif dict(record.configuration) != dict(before):
                at = _moment(record.changed_at_s[-1] if record.changed_at_s else self._begin_s(i))
                decision, why = self._who_and_why(i)
                changes.append(PlacedChange(Change(at, before, record.configuration, decision, why), i))
                before = record.configuration
            elif record.changed_at_s:
                at = _moment(record.changed_at_s[-1])
                why = self._why_put_back(i)
                changes.append(PlacedChange(Change(at, {}, record.configuration, PUT_BACK, why), i))
        if self.ended and self.records and before is not None and dict(before) != self.summary.kept:
            at = _moment(self.records[-1].wall_time_s)
            why = f"left in force: {self.summary.why_kept}"
            changes.append(PlacedChange(Change(at, before, self.summary.kept, KEPT, why), None))
        return changes

    def _who_and_why(self, i: int) -> tuple[str, str]:
        """Whose decision the change before an interval was, and the reason.

        Where the run made no change itself, another client did it, in an interval that was lost by it.
        """
        record = self.records[i]
        if i and not record.changed_at_s and (lost := self.records[i - 1].measurement).gap_by_others:
            return TAKEN_OVER, lost.gap
        return record.decision, reason_in_words(record.kind, record.decision, record.reason)

    def _why_put_back(self, i: int) -> str:
        gap = self.records[i].measurement.gap or (self.records[i - 1].measurement.gap if i else "")
        return f"another was in force meanwhile{f' ({gap})' if gap else ''}: puts back that of this run"

    @property
    def ends_in_a_change(self) -> bool:
        """True if the last change came after the last interval, so that nothing tells what it cost."""
        return bool(self.changes) and self.changes[-1].interval is None

    def broke_limit(self, record: Record) -> bool:
        return slo_violated(record.measurement, self.header.slo_p95_ms)

    def share(self, minutes: float) -> float:
        """Where a moment is on the time axis, 0 .. 1."""
        return minutes / self.length_min if self.length_min else 0.0

    def _begin_s(self, i: int) -> float:
        return self.records[i].wall_time_s - 60 * float(self.ends_min[i] - self.begins_min[i])


def _on_knobs(configuration: Mapping[str, int], header: Header) -> dict[str, int]:
    """The values of the knobs tuned. One that is not told is as at the start."""
    return {name: configuration.get(name, header.start[name]) for name in header.space.names}


def _moment(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s).astimezone()  # Local time, as in the log of changes.
