"""The turns of the best (A) and the start (B): their order, what they show, when they are over. Pure logic.

The order is A B B A, and so on. A machine that gets slower makes the start look worse in one pair, and the
best in the next. The run looks after each pair, and within the start's first turn. Later looks may spend more
of the error allowed than earlier ones, as what is shown by few turns should be plain.

| symbol | here | meaning |
|---|---|---|
| P | `planned` | pairs of turns; as many again may follow |
| α | `MAX_ERROR` | how seldom all looks together may see a gain where there is none |
| 0.9 α k / (1 + ... + 2 P) | `_error_after` | what the look after k pairs may spend of it |
| 0.1 α / 3 | `ERROR_WITHIN` | what each of the three looks within the first turn may |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rrl.guarding.gain import MAX_ERROR, UNKNOWN, Gain, Noise, gain_interval, neighbours_noise
from rrl.guarding.interval_memory import IntervalMemory, costs_of
from rrl.measurement import SoFar
from rrl.records import Kind

PLANNED_PAIRS = 2  # where nobody plans another number
SHARE_OF_LOOKS_WITHIN = 0.1  # of the error allowed
MIN_TURN_SHARE = 0.25  # the shortest turn, as a share of an interval; it is looked at after each such part
ERROR_WITHIN = MAX_ERROR * SHARE_OF_LOOKS_WITHIN / (1 / MIN_TURN_SHARE - 1)
MIN_TURN_REQUESTS = 30  # the fewest requests to measure in a turn

Costs = Mapping[int, Sequence[float]]
"""By configuration number: what the turns of the start and of the best cost, pair by pair."""


@dataclass
class Turns:
    """Compares the configuration `start` with one that is measured in turns with it."""

    start: int
    memory: IntervalMemory
    planned: int = PLANNED_PAIRS
    _first_share: float | None = None  # the share of an interval that the start's first turn lasted

    def take_in(self, number: int, kind: Kind, share: float) -> None:
        """Takes in every interval, and for what share of its usual time it was measured."""
        if kind in ("baseline", "tune"):  # another validation follows
            self._first_share = None
        elif kind == "validation" and number == self.start and self._first_share is None:
            self._first_share = share

    def best_of(self, costs: Costs) -> int:
        """What was measured in turns with the start; the start where nothing was."""
        return next((number for number in costs if number != self.start), self.start)

    def gain(self, costs: Costs) -> Gain:
        """How many times lower the best's cost is than the start's, by their turns."""
        best = self.best_of(costs)
        if best == self.start or self.start not in costs:
            return UNKNOWN
        pairs = (costs[self.start], costs[best], self._noise_before(best))
        return gain_interval(*pairs, [self._first_share or 1.0], self._error_after(self._pairs(costs)))

    def are_over(self, costs: Costs) -> bool:
        """True once the gain is shown, or that there is none, or after the pairs planned.

        Up to as many again follow while the best seems better, perhaps by chance.
        """
        gain, pairs = self.gain(costs), self._pairs(costs)
        if pairs and (gain.beyond_noise or gain.is_none):
            return True
        return pairs >= (2 * self.planned if gain.undecided else self.planned)

    def validate(self, costs: Costs) -> bool:
        """True if these turns are as many as were planned, or show enough without the others."""
        gain, pairs = self.gain(costs), self._pairs(costs)
        return pairs > 0 and (pairs >= self.planned or gain.beyond_noise or gain.is_none)

    def first_has_shown(self, best: int, cost: float, start: SoFar) -> bool:
        """True if the start's first turn has shown the gain so far: users need not bear the rest of it.

        `cost` is what the turn of the best right before it cost.
        """
        if start.share < MIN_TURN_SHARE or start.completions < MIN_TURN_REQUESTS:
            return False
        pair = ([start.cost], [cost], self._noise_before(best))
        return gain_interval(*pair, [start.share], ERROR_WITHIN).beyond_noise

    def _error_after(self, pairs: int) -> float:
        """What the look after so many pairs may spend."""
        most = 2 * max(self.planned, 1)
        share = min(max(pairs, 1), most) / (most * (most + 1) / 2)
        return MAX_ERROR * (1 - SHARE_OF_LOOKS_WITHIN) * share

    def _pairs(self, costs: Costs) -> int:
        best = self.best_of(costs)
        return 0 if best == self.start else min(len(costs[best]), len(costs.get(self.start, ())))

    def _noise_before(self, best: int) -> Noise:
        """The scatter of the start's and the best's intervals before their turns, at the present load."""
        before = [seen for seen in self.memory.near_present_load() if seen.kind != "validation"]
        costs = costs_of(before)
        return neighbours_noise([costs.get(number, []) for number in (self.start, best)])


def best_goes_first(pair: int) -> bool:
    """The order within a pair of turns: A B in the first, B A in the second, and so on."""
    return pair % 2 == 0
