"""How slow the machine was in each interval of a run, over what is usual at its end.

    s_t = ln S of interval t - ln S as it usually is, by all that was seen until the end

What is usual may become another while a run lasts, as where the machine stays slower. So ln S is kept, of one
entry of the table of service times. Intervals that the belief remembers are told anew by each later one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rrl.belief.belief import Belief
from rrl.belief.several_models.joint import JointBelief


class SlownessByInterval:
    """Grows with what the belief of one model learns."""

    def __init__(self, belief: Belief, start: int) -> None:
        """The entry is the one that matters most to `start`, once something is known."""
        self._belief, self._start = belief, start
        self._entry: int | None = None
        self._intervals: list[int] = []  # by change and interval: the belief's number of it
        self._log_times: dict[int, float] = {}  # ln S by that number

    def take_in(self, parts: int) -> None:
        """The belief has taken in an interval of so many parts: with the change before it, or alone."""
        belief = self._belief
        self._intervals += [belief.intervals] * parts
        if not belief.known:
            return
        if self._entry is None:
            self._entry = belief.typical_entry(self._start)
        told = {belief.intervals: belief.log_slowness} | belief.service_times.log_slowness_told
        self._log_times |= {number: self._usual + log for number, log in told.items()}

    def keep(self, positions: Sequence[int]) -> None:
        """Forgets all parts but these."""
        self._intervals = [self._intervals[k] for k in positions]
        kept = set(self._intervals)
        self._log_times = {number: log for number, log in self._log_times.items() if number in kept}

    def at_end(self) -> np.ndarray:
        """(parts,) s; 0 where nothing was known yet."""
        if self._entry is None:
            return np.zeros(len(self._intervals))
        usual = self._usual
        return np.array([self._log_times.get(number, usual) - usual for number in self._intervals])

    @property
    def _usual(self) -> float:
        return float(self._belief.service_times.log_times[self._entry])


def slowness_of_each(belief: Belief | JointBelief, start: int) -> list[SlownessByInterval]:
    """That of every model, by its part of the start."""
    if isinstance(belief, JointBelief):
        parts = belief.joint.parts(np.array([start]))[0].tolist()
        return [SlownessByInterval(*pair) for pair in zip(belief.members, parts, strict=True)]
    return [SlownessByInterval(belief, start)]
