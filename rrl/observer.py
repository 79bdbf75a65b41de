"""Who looks on while a run tunes: the views, the log of changes, the state file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rrl.journal import Decision, Kind, Record

if TYPE_CHECKING:  # the log of changes is an observer itself
    from rrl.change_log import Change


class Observer:
    """Looks on. Subclasses override what they care for."""

    def decided(self, kind: Kind, number: int, decision: Decision, reason: str) -> None:
        """An interval is about to begin."""

    def changed(self, change: Change) -> None:
        """Another configuration is about to come into force."""

    def measured(self, record: Record) -> None:
        """An interval is over, and in the journal."""

    def notice(self, text: str) -> None:
        """Something a person should know, e.g. that no requests arrive."""
