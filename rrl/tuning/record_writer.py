"""Turns each interval of a run into the record that its journal keeps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rrl.agent import Transition
from rrl.guarding.guard import Admission, Judgement
from rrl.interval import Interval
from rrl.journal import Journal
from rrl.records import Kind, Record, finished, silent_intervals
from rrl.space import ConfigurationSpace
from rrl.tuning.in_force import InForce


class RecordWriter:
    """Writes the journal, and knows the observation that the next decision goes by."""

    def __init__(
        self, journal: Journal, space: ConfigurationSpace, in_force: InForce, clock: Callable[[], float]
    ) -> None:
        self.observation: np.ndarray | None = None  # of the last interval that counted
        self._journal, self._space, self._in_force, self._clock = journal, space, in_force, clock
        self._finished = finished(journal.header, journal.records)
        self.silent = silent_intervals(journal.header, journal.records)
        """Intervals without requests."""
        self.silent_in_a_row = 0  # of them, the last ones

    def finished(self, kind: Kind) -> int:
        """How many of the run's intervals of this kind are in the journal."""
        return self._finished[kind]

    @property
    def last_gap(self) -> str:
        """Why the target was away in the last interval; empty where it was there, whatever it refused."""
        last = self._journal.records[-1] if self._journal.records else None
        was_there = last is None or last.not_taken or last.measurement.gap_by_others
        return "" if was_there or last is None else last.measurement.gap

    def write(
        self,
        kind: Kind,
        choice: Admission,
        interval: Interval,
        judgement: Judgement,
        decision_ms: float,
        left_to_others: bool,
    ) -> Record:
        """The record is on the disk when this returns.

        `left_to_others`: what another client had set stayed in force in it.
        """
        number, after = interval.number, interval.observation
        before = after if self.observation is None else self.observation
        action = self._space.action(number)
        record = Record(
            kind=kind,
            number=number,
            configuration=self._space.configuration(number),
            transition=Transition(before, action, interval.cost, after, interval.measurement),
            decision=choice.decision,
            reason=choice.reason,
            verdict=judgement.reason,
            rollback=judgement.rollback,
            learned=judgement.learn,
            wall_time_s=self._clock(),
            decision_ms=decision_ms,
            apply_ms=interval.apply_ms,
            changed_at_s=self._in_force.take_change_times(),
            not_taken=interval.refused,
            settling=interval.settling,
            share=interval.share,
            left_to_others=left_to_others,
        )
        self._journal.append(record)
        if record.counted:
            self._finished[kind] += 1
            self.observation = after
            self.silent_in_a_row = 0
        elif record.silent:
            self.silent += 1
            self.silent_in_a_row += 1
        return record
