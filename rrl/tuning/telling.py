"""The one mouthpiece of a run: what its listeners are told, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from rrl.guarding.guard import Admission
from rrl.measurement import Measurement, all_failed, has_traffic
from rrl.records import Kind, Record
from rrl.space import Configuration
from rrl.tuning.listener import Change, Listener


class Telling:
    """Tells every listener what the run does."""

    def __init__(self, listeners: Sequence[Listener], clock: Callable[[], float]) -> None:
        self.listeners = listeners
        self._clock = clock  # Unix time
        self._silent = False  # the last interval had no traffic, or no target

    def decided(self, kind: Kind, choice: Admission) -> None:
        for listener in self.listeners:
            listener.decided(kind, choice.number, choice.decision, choice.reason)

    def changed(self, before: Configuration, after: Configuration, decision: str, reason: str) -> None:
        change = Change(datetime.fromtimestamp(self._clock()), before, after, decision, reason)
        for listener in self.listeners:
            listener.changed(change)

    def measured(self, record: Record) -> None:
        self._silence(record.measurement)
        for listener in self.listeners:
            listener.measured(record)

    def replayed(self, record: Record) -> None:
        for listener in self.listeners:
            listener.replayed(record)

    def notice(self, text: str) -> None:
        for listener in self.listeners:
            listener.notice(text)

    def _silence(self, measurement: Measurement) -> None:
        """Says once that there is nothing to tune, and once that there is again."""
        if measurement.gap_by_others and not all_failed(measurement):
            self.notice(f"{measurement.gap}; nothing is learned from this interval")
            return
        silent = measurement.gap or ("" if has_traffic(measurement) else "no requests arrive")
        if silent and not self._silent:
            self.notice(f"{silent}: waiting, nothing is learned meanwhile")
        if not silent and self._silent:
            if not measurement.completions:
                return
            self.notice("requests are answered again")
        self._silent = bool(silent)
