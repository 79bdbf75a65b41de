"""Another client that changes the target in one interval after the other: the run gives way.

A stock Triton has no leases. So two runs of different containers or machines would undo each other's changes
for ever there, and measure nothing. The one that has explored nothing yet gives way first.
"""

from __future__ import annotations

from rrl.journal import Record
from rrl.tuning.restore import TargetTaken

MAX_IN_A_ROW = 8  # intervals in which another client changed the target
MAX_BEFORE_EXPLORING = 3


class Contention:
    """Counts the intervals in a row that others spoilt."""

    def __init__(self) -> None:
        self._in_a_row = 0

    def check(self, record: Record, has_explored: bool) -> None:
        """TargetTaken after an interval with which there were too many."""
        self._in_a_row = self._in_a_row + 1 if record.measurement.gap_by_others else 0
        if self._in_a_row >= (MAX_IN_A_ROW if has_explored else MAX_BEFORE_EXPLORING):
            raise TargetTaken(
                f"others changed the target in {self._in_a_row} intervals in a row "
                f"({record.measurement.gap}); another tuner may be at work: let one of the two end"
            )
