"""The one mouthpiece of a run: what its listeners are told, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from rrl.guarding.guard import Admission
from rrl.knobs import in_words
from rrl.measurement import Measurement, all_failed, has_traffic
from rrl.records import Kind, Record
from rrl.space import Configuration
from rrl.tuning.change_limits import HOUR_S
from rrl.tuning.listener import Change, Listener

DAY_S = 24 * HOUR_S
REMINDERS_S = (600.0, HOUR_S, 6 * HOUR_S)
AWAY_S = 10.0  # a target that is away for less is told of after its interval


class Telling:
    """Tells every listener what the run does."""

    def __init__(self, listeners: Sequence[Listener], clock: Callable[[], float]) -> None:
        self.listeners = listeners
        self._clock = clock  # Unix time
        self._silent = False  # the last interval had no traffic, or no target
        self._reminders = Reminders()
        self._away, self._told_away = Reminders(), False
        self._refused = ""  # what was told of the last interval, where the server refused its configuration
        self._others = ""  # what others did to the last interval
        self._others_lasting = Reminders()

    def decided(self, kind: Kind, choice: Admission) -> None:
        for listener in self.listeners:
            listener.decided(kind, choice.number, choice.decision, choice.reason)

    def changed(self, before: Configuration, after: Configuration, decision: str, reason: str) -> None:
        change = Change(datetime.fromtimestamp(self._clock()), before, after, decision, reason)
        for listener in self.listeners:
            listener.changed(change)

    def measured(self, record: Record) -> None:
        if record.not_taken:
            self._refusal(record)
        else:
            self._refused = ""
            self._silence(record.measurement)
        for listener in self.listeners:
            listener.measured(record)

    def rotated(self, kept: Sequence[int]) -> None:
        for listener in self.listeners:
            listener.rotated(kept)

    def replayed(self, record: Record) -> None:
        for listener in self.listeners:
            listener.replayed(record)

    def away(self, reason: str, lasting_s: float) -> None:
        """The target is waited for, since so long: said after a while, and now and then."""
        for listener in self.listeners:
            listener.away(reason)
        if lasting_s < self._away.lasted_s:
            self._away, self._told_away = Reminders(), False
        lasting = self._away.due(lasting_s)
        if not self._told_away and lasting_s >= AWAY_S:
            self._told_away = True
            self.notice(f"the target is away ({reason}): waits for it")
        elif lasting:
            self.notice(f"the target is still away, for {lasting} now ({reason})")

    def notice(self, text: str) -> None:
        for listener in self.listeners:
            listener.notice(text)

    def _refusal(self, record: Record) -> None:
        """Says once what the server refused: it kept what it had, and goes on answering."""
        refused = f"the server refused {in_words(record.configuration)}: {record.measurement.gap}"
        if refused != self._refused:
            self._refused = refused
            self.notice(refused)

    def _silence(self, measurement: Measurement) -> None:
        """Says once that there is nothing to tune, and once that there is again."""
        if measurement.gap_by_others and not all_failed(measurement):
            self._done_by_others(measurement)
            return
        self._others = ""
        silent = measurement.gap or ("" if has_traffic(measurement) else "no requests arrive")
        lasting = self._reminders.due(self._reminders.lasted_s + measurement.duration_s) if silent else ""
        if silent and not self._silent:
            self.notice(f"{silent}: waiting, nothing is learned meanwhile")
        elif lasting:
            self.notice(f"{silent}: still waiting, for {lasting} now")
        if not silent and self._silent:
            if not measurement.completions:
                return
            self.notice("requests are answered again")
        self._silent = bool(silent)
        if not silent:
            self._reminders = Reminders()

    def _done_by_others(self, measurement: Measurement) -> None:
        """Says once what others did, and now and then what lasts."""
        if measurement.gap != self._others:
            self._others, self._others_lasting = measurement.gap, Reminders()
            self.notice(f"{measurement.gap}; nothing is learned from this interval")
            return
        lasted_s = self._others_lasting.lasted_s + measurement.duration_s
        if lasting := self._others_lasting.due(lasted_s):
            self.notice(f"{measurement.gap}, for {lasting} now")


class Reminders:
    """When a state that lasts is told again: after 10 minutes, 1 hour and 6 hours, then once a day."""

    def __init__(self) -> None:
        self.lasted_s = 0.0
        self._told = 0

    def due(self, lasted_s: float) -> str:
        """How long it has lasted by now, if it is to be told again; else empty."""
        self.lasted_s = lasted_s
        due_s = REMINDERS_S[self._told] if self._told < len(REMINDERS_S) else DAY_S * (self._told - 2)
        if lasted_s < due_s:
            return ""
        self._told += 1
        return in_time_words(lasted_s)


def in_time_words(duration_s: float) -> str:
    """`10 minutes`, `6 hours`, `3 days`: in the largest unit of which there is more than one."""
    for unit, unit_s in (("days", DAY_S), ("hours", HOUR_S), ("minutes", 60.0)):
        if duration_s >= 2 * unit_s:
            return f"{duration_s / unit_s:.0f} {unit}"
    return f"{duration_s:.0f} seconds"
