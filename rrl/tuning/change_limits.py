"""When the configuration of a target may be changed: at most so often, and only at certain hours.

Pure logic over Unix times. The hours are those of the local clock, whatever daylight saving does to it.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, time, timedelta

HOUR_S = 3600.0
MOST_REMEMBERED = 1000  # changes; from then on those of two hours are enough
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_MIN = 24 * 60
HORIZON_DAYS = 9  # every window opens within a week
EXPECTED = "expected HH:MM-HH:MM, with days before it if it is not for all, e.g. 'Mon-Fri 22:00-06:00'"


@dataclass(frozen=True)
class ChangeWindow:
    """Hours of the local day, which may cross midnight. The weekdays are those on which it opens."""

    opens_min: int  # minutes after midnight
    closes_min: int  # after the same midnight, so it is over 24 h where the window crosses the next one
    weekdays: frozenset[int] = frozenset(range(7))  # Monday is 0

    @property
    def length_s(self) -> float:
        return 60.0 * (self.closes_min - self.opens_min)

    @classmethod
    def parse(cls, texts: Sequence[str]) -> tuple[ChangeWindow, ...]:
        """Windows such as `22:00-06:00` or `Mon-Fri 22:00-06:00`; ValueError for anything else."""
        windows: list[ChangeWindow] = []
        days: frozenset[int] | None = None
        words = " ".join(texts).split()
        for word in words:
            hours = re.fullmatch(r"(\d{1,2}):(\d\d)-(\d{1,2}):(\d\d)", word)
            if hours:
                windows.append(cls._of_hours(word, [int(part) for part in hours.groups()], days))
                days = None
            elif days is None:
                days = _weekdays(word)
            else:
                raise ValueError(f"cannot read --change-window {' '.join(words)!r}: {EXPECTED}")
        if days is not None:
            raise ValueError(f"--change-window {words[-1]!r} names days without hours: {EXPECTED}")
        return tuple(windows)

    @classmethod
    def _of_hours(cls, word: str, parts: list[int], days: frozenset[int] | None) -> ChangeWindow:
        hour, minute, to_hour, to_minute = parts
        opens_min, closes_min = 60 * hour + minute, 60 * to_hour + to_minute
        if opens_min >= DAY_MIN or closes_min > DAY_MIN or max(minute, to_minute) > 59:
            raise ValueError(f"cannot read --change-window {word!r}: the hours are 00:00 to 24:00")
        if opens_min == closes_min:
            raise ValueError(f"--change-window {word!r} is empty; the whole day is 00:00-24:00")
        if closes_min < opens_min:
            closes_min += DAY_MIN
        return cls(opens_min, closes_min, frozenset(range(7)) if days is None else days)


def _weekdays(word: str) -> frozenset[int]:
    """`Mon`, `Mon-Fri`, `Fri-Mon` or `Tue,Thu`."""
    days: set[int] = set()
    for part in word.split(","):
        names = [name.strip().capitalize() for name in part.split("-")]
        if len(names) > 2 or not set(names) <= set(DAYS):
            raise ValueError(f"cannot read --change-window {word!r}: {EXPECTED}")
        first, last = DAYS.index(names[0]), DAYS.index(names[-1])
        days |= {day % 7 for day in range(first, last + 1 + 7 * (last < first))}
    return frozenset(days)


@dataclass
class ChangeLimits:
    """Counts the changes, and says from when on the next ones are allowed."""

    per_hour: int | None = None  # changes in any 60 minutes, at most
    windows: tuple[ChangeWindow, ...] = ()  # none: changes are allowed at all hours
    _changed_at_s: list[float] = field(default_factory=list)  # ascending

    def __post_init__(self) -> None:
        if self.per_hour is not None and self.per_hour < 1:
            raise ValueError(f"--max-changes-per-hour must be at least 1, got {self.per_hour}")

    def without_hourly_limit(self) -> ChangeLimits:
        """The same windows, and changes at any rate, which are counted here, too."""
        return replace(self, per_hour=None)  # Both have one list, which changes only in place.

    def changed(self, at_s: float) -> None:
        bisect.insort(self._changed_at_s, at_s)
        if len(self._changed_at_s) > MOST_REMEMBERED:
            newest_s = self._changed_at_s[-1]
            self._changed_at_s[:] = [s for s in self._changed_at_s if s + 2 * HOUR_S > newest_s]

    def not_made(self, at_s: float) -> None:
        """The change that was counted at this moment was not made after all."""
        with suppress(ValueError):  # forgotten by now
            self._changed_at_s.remove(at_s)

    def none_after(self, now_s: float) -> None:
        """Changes of a moment to come were told by a clock that was set back since: they count from now."""
        self._changed_at_s[:] = [min(at_s, now_s) for at_s in self._changed_at_s]

    def shift(self, by_s: float) -> None:
        """The clock was set by so much: what was changed so long ago still was."""
        self._changed_at_s[:] = [at_s + by_s for at_s in self._changed_at_s]

    def next_s(self, now_s: float, changes: int = 1, lasting_s: float = 0.0) -> float:
        """The earliest moment from now on at which so many changes are allowed, if none is made before.

        The window must stay open for `lasting_s` after it. Where an hour may never have so many changes, it
        is the moment for as many as it may have.
        """
        return self._open_from(self._free_from(now_s, changes), lasting_s)

    def pause(self, now_s: float, changes: int = 1, lasting_s: float = 0.0) -> str:
        """Why the changes are not allowed now, and when they are; empty if they are."""
        next_s = self.next_s(now_s, changes, lasting_s)
        if next_s <= now_s:
            return ""
        if next_s == self._free_from(now_s, changes):
            many = "1 change" if self.per_hour == 1 else f"{self.per_hour} changes"
            why = f"no more than {many} in an hour"
        elif self._open_from(now_s, 0.0) > now_s:
            why = "outside the change window"
        else:
            why = "the change window is about to close"
        return f"{why}: the next at {_moment(next_s, now_s)}"

    def may_return(self, now_s: float, lasting_s: float) -> bool:
        """True if a change back to what is safe is allowed.

        The last one before a window closes is allowed whatever else was changed in the hour.
        """
        closes = self._open_from(now_s, lasting_s) > now_s
        return self._open_from(now_s, 0.0) <= now_s and (closes or self._free_from(now_s, 1) <= now_s)

    def _free_from(self, now_s: float, changes: int) -> float:
        """An hour is half-open: a change made exactly an hour ago does not count any more."""
        if self.per_hour is None:
            return now_s
        counted = [at_s for at_s in self._changed_at_s if at_s + HOUR_S > now_s]
        too_many = len(counted) + min(changes, self.per_hour) - self.per_hour
        return counted[too_many - 1] + HOUR_S if too_many > 0 else now_s

    def _open_from(self, from_s: float, lasting_s: float) -> float:
        if not self.windows:
            return from_s
        for opens_s, closes_s in self._spans(from_s):
            begin_s = max(opens_s, from_s)
            if begin_s < closes_s and begin_s + lasting_s <= closes_s:
                return begin_s
        return math.inf

    def _spans(self, from_s: float) -> Iterator[tuple[float, float]]:
        """When changes are allowed in the days around a moment, in order. Windows that touch are one span."""
        edges = sorted(self._openings(from_s))
        opens_s, closes_s = edges[0]
        for next_opens_s, next_closes_s in edges[1:]:
            if next_opens_s > closes_s:
                yield opens_s, closes_s
                opens_s = next_opens_s
                closes_s = next_closes_s
            closes_s = max(closes_s, next_closes_s)
        yield opens_s, closes_s

    def _openings(self, from_s: float) -> Iterator[tuple[float, float]]:
        today = datetime.fromtimestamp(from_s).date()
        for day in range(-2, HORIZON_DAYS):
            midnight = datetime.combine(today + timedelta(days=day), time())
            for window in self.windows:
                if midnight.weekday() in window.weekdays:
                    opens = midnight + timedelta(minutes=window.opens_min)
                    closes = midnight + timedelta(minutes=window.closes_min)
                    yield _in_unix_time_s(opens), _in_unix_time_s(closes)


def _in_unix_time_s(local: datetime) -> float:
    """The moment of a local time. Of one that the clock leaves out, it is the moment at which it is set."""
    after_s = local.timestamp()
    if datetime.fromtimestamp(after_s) == local:
        return after_s
    before_s = local.replace(fold=1).timestamp()
    offset = _utc_offset(before_s)
    while after_s - before_s > 1.0:
        middle_s = before_s + (after_s - before_s) // 2
        if _utc_offset(middle_s) == offset:
            before_s = middle_s
        else:
            after_s = middle_s
    return after_s


def _utc_offset(at_s: float) -> timedelta | None:
    return datetime.fromtimestamp(at_s).astimezone().utcoffset()


def _moment(at_s: float, now_s: float) -> str:
    """A moment to come by the local clock, with its day if that is not today."""
    if math.isinf(at_s):
        return "no time"
    at, now = datetime.fromtimestamp(at_s), datetime.fromtimestamp(now_s)
    if at.date() == now.date():
        return f"{at:%H:%M:%S}"
    return f"{DAYS[at.weekday()]} {at:%Y-%m-%d %H:%M:%S}"
