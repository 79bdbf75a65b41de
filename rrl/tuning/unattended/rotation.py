"""Keeps the journal of a run that watches within bounds, without forgetting what it knows.

| intervals kept | at most | why |
|---|---|---|
| the newest | `newest` | belief, guard and pictures live by them |
| of each configuration at each load level, the newest that told a cost | `each` | table, guard's memory |
| the first of the start | `each` | what the run compares with |

The last two are together at most `old`. Whatever leaves the newest is summed up in `history.csv`: a line
for each hour, or part of one. A replay of what is kept gives agent, guard and reference table what they
had, but for what they had forgotten themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rrl.guarding.interval_memory import IntervalMemory
from rrl.journal import Journal
from rrl.load_levels import newest_of_each
from rrl.records import Record
from rrl.tuning.change_limits import HOUR_S
from rrl.tuning.telling import Telling
from rrl.tuning.unattended.history import summed_up


@dataclass(frozen=True)
class RotationSettings:
    """So many intervals. At 5 s each, the newest are those of 83 minutes."""

    newest: int = 1000
    each: int = 4
    old: int = 1000
    slack: int = 1000  # by how many more the journal grows before it is written anew

    @property
    def most(self) -> int:
        """Intervals in the journal, at most."""
        return self.newest + self.old + self.slack


ROTATION = RotationSettings()


class Rotation:
    """Writes the journal anew whenever it has grown by `slack` intervals."""

    def __init__(
        self, journal: Journal, memory: IntervalMemory, telling: Telling, settings: RotationSettings
    ) -> None:
        self._journal, self._memory, self._telling, self._settings = journal, memory, telling, settings
        self._next_at = settings.most

    def after_interval(self) -> None:
        """Shortens the journal if it is time, and with it what guard and listeners remember.

        Where the files cannot be written it says so, and tries again after `slack` more.
        """
        if len(self._journal.records) <= self._next_at:
            return
        try:
            kept = self._shortened()
        except OSError as error:  # the next line of the journal fails, too, if the disk is full
            self._telling.notice(f"the journal could not be shortened: {error}")
            return
        self._memory.forget(self._settings.newest, self._settings.each)
        self._telling.rotated(kept)

    def _shortened(self) -> list[int]:
        """The intervals kept, by their index before it."""
        journal, settings = self._journal, self._settings
        count = len(journal.records)
        self._next_at = count + settings.slack
        earlier = dict(journal.header.earlier or {})
        leaving = journal.records[int(earlier.get("kept", 0)) : count - settings.newest]
        summed_up(journal.path.parent, leaving)
        old = kept_of_old(journal.records[: count - settings.newest], settings)
        kept = [*old, *range(count - settings.newest, count)]
        journal.keep(kept, _with_dropped(earlier, journal.records, set(kept)) | {"kept": len(old)})
        self._next_at = max(settings.most, len(kept) + settings.slack)
        return kept


def kept_of_old(records: Sequence[Record], settings: RotationSettings) -> list[int]:
    """Which of the intervals before the newest are kept, by index, ascending."""
    learned = [i for i, record in enumerate(records) if record.learned]
    first = [i for i in learned if records[i].kind == "baseline"][: settings.each]
    others = [i for i in learned if i not in first]
    measured = [(records[i].number, records[i].measurement.arrival_rate_per_s) for i in others]
    newest = [others[k] for k in newest_of_each(measured, settings.each)]
    return sorted([*first, *newest[: max(0, settings.old - len(first))]])


def _with_dropped(earlier: dict[str, Any], records: Sequence[Record], kept: set[int]) -> dict[str, Any]:
    """What the header says of intervals that the journal does not have any more."""
    dropped = [record for i, record in enumerate(records) if i not in kept]
    counted = Counter(dict(earlier.get("dropped", {})))
    counted.update(record.kind for record in dropped if record.counted)
    silent = int(earlier.get("silent", 0)) + sum(record.silent for record in dropped)
    changed_at_s = [*earlier.get("changed_at_s", ()), *(s for record in dropped for s in record.changed_at_s)]
    newest_s = records[-1].wall_time_s  # What is later was told by a clock that was set back since.
    in_last_hour_s = [min(at_s, newest_s) for at_s in changed_at_s if at_s + HOUR_S > newest_s]
    return {"dropped": dict(counted), "silent": silent, "changed_at_s": in_last_hour_s}
