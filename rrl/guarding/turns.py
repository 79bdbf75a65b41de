"""What the turns of the start and the best are to show, and whether they have shown it. Pure logic.

The intervals before the turns count, too. Where the best was better beyond noise there, its turns need only
agree, and users need not bear the start for longer than that takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rrl.guarding.gain import (
    GAIN_TO_TRUST_ALONE,
    MIN_TURN_SHARE_ALONE,
    UNKNOWN,
    Gain,
    Noise,
    gain_interval,
    is_between,
    pooled_noise,
    share_to_show,
    unpaired_gain,
)
from rrl.guarding.interval_memory import IntervalMemory, Seen, at_load_of, costs_of, mean
from rrl.journal import Kind
from rrl.measurement import SoFar

Costs = Mapping[int, Sequence[float]]
"""By configuration number: what the turns of the start and of the best cost, in their order."""


@dataclass
class Turns:
    """Compares the configuration `start` with one that is measured in turns with it."""

    start: int
    memory: IntervalMemory
    _first_share: float | None = None  # the share of an interval that the start's first turn lasted

    def told(self, number: int, kind: Kind, share: float) -> None:
        """Takes in every interval, and for what share of its usual time it was measured."""
        if kind in ("baseline", "tune"):  # another validation follows
            self._first_share = None
        elif kind == "validation" and number == self.start and self._first_share is None:
            self._first_share = share

    def best_of(self, costs: Costs) -> int:
        """What was measured in turns with the start; the start where nothing was."""
        return next((number for number in costs if number != self.start), self.start)

    def gain(self, costs: Costs) -> Gain:
        """How many times lower the best's cost is than the start's.

        It goes by their turns, and by the scatter of both that the run saw before.
        """
        best = self.best_of(costs)
        if best == self.start or self.start not in costs:
            return UNKNOWN
        return gain_interval(
            costs[self.start], costs[best], self._noise_before(best), self._first_share or 1.0
        )

    def gain_before(self, best: int) -> Gain:
        """The gain by the intervals of both before their turns, at the load of the start's own."""
        before = [seen for seen in self.memory.all if not seen.is_turn]
        costs = costs_of(at_load_of(self.start, before))
        return unpaired_gain(costs.get(self.start, []), costs.get(best, []))

    def are_settled(self, costs: Costs) -> bool:
        """True if A B A, one turn of the start between two of the best, leaves nothing open.

        The best must be better beyond noise in its turns and in the intervals before them. Where it was not
        before, it must be better by `GAIN_TO_TRUST_ALONE`. Users need not bear the start again then.
        """
        best = self.best_of(costs)
        if not is_between(costs.get(self.start, ()), costs.get(best, ())):
            return False
        return self.gain(costs).low > self._to_show(best)

    def share_for_first(self, best: int) -> float:
        """The share of an interval to measure the start for in its first turn.

        If the best was better beyond noise before, at a load like the present one, the turn is as long as it
        takes to show that again. Else it is a whole interval.
        """
        of_start = [seen for seen in self._near_before() if seen.number == self.start]
        gain = self.gain_before(best)
        if not of_start or not gain.beyond_noise:
            return 1.0
        requests = mean([seen.completions for seen in of_start])
        return share_to_show(gain.estimate, self._noise_before(best), requests)

    def first_has_shown(self, best: int, cost: float, start: SoFar) -> bool:
        """True if the start's first turn has shown enough so far: users need not bear the rest of it.

        `cost` is what the turn of the best right before it cost.
        """
        to_show = self._to_show(best)
        if not (cost > 0 and to_show < start.cost / cost < math.inf):
            return False
        requests = start.completions / start.share
        share = share_to_show(start.cost / cost / to_show, self._noise_before(best), requests)
        return start.share >= (share if to_show == 1 else max(share, MIN_TURN_SHARE_ALONE))

    def _to_show(self, best: int) -> float:
        """The gain, beyond noise, with which the start need not be put in force again."""
        return 1.0 if self.gain_before(best).beyond_noise else GAIN_TO_TRUST_ALONE

    def _noise_before(self, best: int) -> Noise:
        """The scatter of the start's and the best's intervals before their turns, at the present load."""
        costs = costs_of(self._near_before())
        return pooled_noise([costs.get(number, []) for number in (self.start, best)])

    def _near_before(self) -> list[Seen]:
        return [seen for seen in self.memory.near_present_load() if not seen.is_turn]
