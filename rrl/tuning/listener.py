"""Who listens while a run tunes (the views, the log of changes, the state file), and what they hear."""

from __future__ import annotations

from collections.abc import Mapping
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
    decision: str  # who chose it: as in the journal, `PUT_BACK`, or "leave" and "restore" around a run
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

    def replayed(self, record: Record) -> None:
        """An interval of the run that is resumed was taken in again."""

    def notice(self, text: str) -> None:
        """Something a person should know, e.g. that no requests arrive."""
