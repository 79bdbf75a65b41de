"""The highest load that a server bears within a limit: by steps and bisection, and confirmed. Pure logic.

A level is a rate of the open loop, or a concurrency of the closed one. A window of requests is sent at it,
and is borne if no more than one request in twenty of it is late or fails. That is what a limit of the p95
says. One window may be luck, good or bad. So a level is judged by the majority of up to three of them, and
what was found is sent again in fresh windows before it is called borne.

| phase | the next level |
|---|---|
| steps | twice the last one while it is borne; while none was, half of it, or what was answered of it |
| bisection | between the highest borne and the lowest broken, until they are within `resolution` |
| confirmation | the highest borne, again; where it breaks now, a little lower |

A bisection alone trusts each of its looks: one lucky window at a high level would shift all that follow. The
confirmation meets that, as it judges the answer itself, by windows that had no part in choosing it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

MAX_LATE_SHARE = 0.05  # of a window's requests: the p95 is within the limit while no more are late, or fail
MAJORITY = 2  # windows that agree judge a level
STEP = 2.0  # from one level to the next while only one side is known
MOST_STEP = STEP**3  # down to what was answered: less was answered of a window that was broken off early
LEAST_RATE_PER_S = 0.1
LEAST_CONCURRENCY = 1.0

Unit = Literal["rate", "concurrency"]


class FoundCapacity(NamedTuple):
    """What was found. `level` is 0 where even the least load broke the limit."""

    unit: Unit
    level: float  # requests per second, or requests under way
    confirmed: bool  # by windows that had no part in choosing it; False where the search was ended before
    broken: float  # the lowest level that broke the limit; infinite where none did

    def in_words(self, slo_p95_ms: float) -> str:
        """`bears 143/s at p95 <= 50 ms; 150/s breaks it`."""
        limit = f"p95 <= {slo_p95_ms:g} ms"
        if not self.level and math.isinf(self.broken):
            return f"what is borne at {limit} is not known: no load was sent for long enough to tell"
        if not self.level:
            return f"bears no load at {limit}: even {level_in_words(self.unit, self.broken)} breaks it"
        beyond = (
            f"; {level_in_words(self.unit, self.broken)} breaks it"
            if math.isfinite(self.broken)
            else " at least: no higher load was sent"
        )
        doubt = "" if self.confirmed else ", not confirmed"
        return f"bears {level_in_words(self.unit, self.level)} at {limit}{beyond}{doubt}"


def level_in_words(unit: Unit, level: float) -> str:
    """`143/s`, or `16 at once`."""
    return f"{level:.3g}/s" if unit == "rate" else f"{level:.0f} at once"


@dataclass
class CapacitySearch:
    """Says which level to send next, and is told whether its window was borne."""

    unit: Unit
    first: float  # the level to begin with
    most: float = math.inf  # no higher level is sent
    resolution: float = 0.05  # of a rate; a concurrency is found exactly while it is small
    _borne: float = 0.0  # the highest level judged so
    _broken: float = math.inf  # the lowest level judged so
    _votes: list[bool] = field(default_factory=list)  # of the windows at the present level
    _confirming: bool = False
    _over: bool = False
    _least: float = field(init=False)  # no lower level is sent
    _answered: float = math.inf  # in the last window

    def __post_init__(self) -> None:
        if not 0 < self.first < math.inf:
            raise ValueError(f"a search for the capacity begins at a level above 0, got {self.first:g}")
        self._least = LEAST_RATE_PER_S if self.unit == "rate" else LEAST_CONCURRENCY
        self.level = self._allowed(min(self.first, self.most))
        """The level of the next window."""

    @property
    def over(self) -> bool:
        return self._over

    @property
    def confirming(self) -> bool:
        """True while the answer itself is judged again."""
        return self._confirming and not self._over

    @property
    def found(self) -> FoundCapacity:
        """What is known by now; the answer once the search is `over`."""
        return FoundCapacity(self.unit, self._borne, self._over and self._borne > 0, self._broken)

    def tell(self, borne: bool, answered: float = math.inf, alone_late: bool = False) -> None:
        """Takes in the next window at `level`: whether it was borne, and how much of it was answered.

        `alone_late`: requests were late that met no other.
        """
        if self._over:
            raise ValueError("the search is over")
        if alone_late:
            self._least = self.level  # no lower one is borne
        self._answered = answered
        self._votes.append(borne)
        if max(self._votes.count(True), self._votes.count(False)) < MAJORITY:
            return
        held, self._votes = self._votes.count(True) >= MAJORITY, []
        if self._confirming:
            self._confirmed(held)
        else:
            self._judged(held)

    def cannot_send_more(self) -> None:
        """The client itself cannot send this level: the search stays below it."""
        self._votes = []
        lower = self._lower(self.level)
        if lower < self._least:
            self._over = True
            return
        self.most = min(self.most, lower)
        if self._confirming:
            self._borne, self.level = 0.0, self._allowed(lower)
        elif self._borne and self._is_fine_enough():
            self._confirming, self.level = True, self._borne
        else:
            self.level = self._next()

    def _judged(self, held: bool) -> None:
        if held:
            self._borne = max(self._borne, self.level)
        else:
            self._broken = min(self._broken, self.level)
        if not held and self.level <= self._least:
            self._over = True  # nothing is borne
        elif held and self._is_fine_enough():
            self._confirming = True
        elif not held and self._borne and self._is_fine_enough():
            self._confirming = True
            self.level = self._borne
        else:
            self.level = self._next()

    def _confirmed(self, held: bool) -> None:
        if held:
            self._borne, self._over = self.level, True
            return
        self._broken, self._borne = self.level, 0.0
        if self.level <= self._least:
            self._over = True
            return
        self.level = self._allowed(self._lower(self.level))

    def _next(self) -> float:
        if self._borne == 0:
            answered = max(self._answered, self._broken / MOST_STEP)
            return self._allowed(min(self._broken / STEP, answered, self.most))
        if math.isinf(self._broken):
            return self._allowed(min(self._borne * STEP, self.most))
        middle = math.sqrt(self._borne * self._broken)
        return self._allowed(middle if self.unit == "rate" else max(math.floor(middle), self._borne + 1))

    def _is_fine_enough(self) -> bool:
        if self._borne * (1 + self.resolution) >= self.most:
            return True
        if self.unit == "concurrency" and self._broken - self._borne <= 1:
            return True
        return self._broken <= self._borne * (1 + self.resolution)

    def _lower(self, level: float) -> float:
        lower = level / (1 + self.resolution)
        return lower if self.unit == "rate" else min(level - 1, math.floor(lower))

    def _allowed(self, level: float) -> float:
        level = max(level, self._least)
        return level if self.unit == "rate" else float(max(1, math.floor(level)))
