"""Who listens while a run tunes (the views, the log of changes, the state file), and what they hear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from rrl.knobs import change_in_words
from rrl.records import Decision, Kind, Record

TIME, TIME_LENGTH = "%Y-%m-%d %H:%M:%S", 19


@dataclass(frozen=True)
class Change:
    """A change of configuration, told just before it is made."""

    at: datetime  # local time
    before: Mapping[str, int]
    after: Mapping[str, int]
    # Who chose it: as in the journal, one of `decision_words`, or "restore" before a run.
    decision: str
    reason: str  # as a person would say it

    def __str__(self) -> str:
        return f"{self.at:{TIME}}  {self.what}  {self.reason}"

    @property
    def what(self) -> str:
        """The knobs that change: `instances 1 -> 2, batch 1 -> 4`."""
        return change_in_words(self.before, self.after)


class Listener:
    """Listens to a run. Subclasses override what they care for."""

    def decided(self, kind: Kind, number: int, decision: Decision, reason: str) -> None:
        """An interval is about to begin."""

    def changed(self, change: Change) -> None:
        """Another configuration is about to come into force."""

    def measured(self, record: Record) -> None:
        """An interval is over, and in the journal."""

    def rotated(self, kept: Sequence[int]) -> None:
        """Of the intervals heard of so far, by index, the journal keeps these alone."""

    def replayed(self, record: Record) -> None:
        """An interval of the run that is resumed was taken in again."""

    def away(self, reason: str) -> None:
        """The target is away, and waited for; told every few seconds."""

    def notice(self, text: str) -> None:
        """Something a person should know, e.g. that no requests arrive."""
