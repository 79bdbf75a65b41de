"""When a run that measures nothing gives up: others are at its target, its nodes come and go, or all fails.

A stock Triton has no leases. So two runs of different containers or machines would undo each other's changes
for ever there, and measure nothing. The one that has explored nothing yet gives way first.
"""

from __future__ import annotations

from rrl.measurement import all_failed, nodes_changed
from rrl.records import Record

MAX_CHANGED_BY_OTHERS = 8  # intervals in a row
MAX_CHANGED_BEFORE_EXPLORING = 3
MAX_ALL_FAILED = MAX_NODES_CHANGED = 20


class GivenUp(Exception):
    """The run would measure nothing for ever; the text is one sentence for the user."""


class Patience:
    """Counts the intervals in a row that say nothing of their configurations."""

    def __init__(self) -> None:
        self._changed_by_others = self._nodes_changed = self._all_failed = 0

    def check(self, record: Record, has_explored: bool) -> None:
        """GivenUp after an interval with which there were too many."""
        measurement = record.measurement
        says_nothing, fails = measurement.gap_by_others, all_failed(measurement)
        by_nodes = nodes_changed(measurement) and not fails
        by_others = says_nothing and not by_nodes and not fails
        self._changed_by_others = self._changed_by_others + 1 if by_others else 0
        self._nodes_changed = self._nodes_changed + 1 if by_nodes else 0
        self._all_failed = self._all_failed + 1 if says_nothing and fails else 0
        most = MAX_CHANGED_BY_OTHERS if has_explored else MAX_CHANGED_BEFORE_EXPLORING
        if self._changed_by_others >= most:
            raise GivenUp(
                f"others changed the target in {self._changed_by_others} intervals in a row "
                f"({measurement.gap}); another tuner may be at work: let one of the two end"
            )
        if self._nodes_changed >= MAX_NODES_CHANGED:
            raise GivenUp(
                f"nodes of the cluster went or came in {self._nodes_changed} intervals in a row, and none "
                "was measured: give shorter intervals (--interval-s), or tune it once its nodes stay"
            )
        if self._all_failed >= MAX_ALL_FAILED:
            raise GivenUp(
                f"all requests failed in {self._all_failed} intervals in a row, whatever was in force: "
                "see what the server's log and its clients say, then tune it again"
            )
