"""When a run that measures nothing gives up: others are at its target, or all requests fail there.

A stock Triton has no leases. So two runs of different containers or machines would undo each other's changes
for ever there, and measure nothing. The one that has explored nothing yet gives way first.
"""

from __future__ import annotations

from rrl.measurement import all_failed
from rrl.records import Record

MAX_CHANGED_BY_OTHERS = 8  # intervals in a row
MAX_CHANGED_BEFORE_EXPLORING = 3
MAX_ALL_FAILED = 20


class GivenUp(Exception):
    """The run would measure nothing for ever; the text is one sentence for the user."""


class Patience:
    """Counts the intervals in a row that say nothing of their configurations."""

    def __init__(self) -> None:
        self._changed_by_others = self._all_failed = 0

    def check(self, record: Record, has_explored: bool) -> None:
        """GivenUp after an interval with which there were too many."""
        measurement = record.measurement
        says_nothing, fails = measurement.gap_by_others, all_failed(measurement)
        self._changed_by_others = self._changed_by_others + 1 if says_nothing and not fails else 0
        self._all_failed = self._all_failed + 1 if says_nothing and fails else 0
        most = MAX_CHANGED_BY_OTHERS if has_explored else MAX_CHANGED_BEFORE_EXPLORING
        if self._changed_by_others >= most:
            raise GivenUp(
                f"others changed the target in {self._changed_by_others} intervals in a row "
                f"({measurement.gap}); another tuner may be at work: let one of the two end"
            )
        if self._all_failed >= MAX_ALL_FAILED:
            raise GivenUp(
                f"all requests failed in {self._all_failed} intervals in a row, whatever was in force: "
                "see what the server's log and its clients say, then tune it again"
            )
