"""The last phase of a run: the best known and the start are measured in turns, A B A B.

- At most as many turns follow where these leave open which is better.
- If the search already showed the best to be better, the start's first turn ends once it confirms that.
- A B A is enough where A B leaves no question open and another A agrees: users are spared the second B.
- Where a turn of the start had to wait for its changes in the best, the best is measured again, since the
  load may have moved meanwhile.
"""

from __future__ import annotations

import math
from functools import partial

from rrl.agent import Agent
from rrl.guarding.guard import Guard
from rrl.interval import UNWATCHED, Watch
from rrl.tuning.in_force import InForce
from rrl.tuning.pacing import Pacing
from rrl.tuning.scheduled import Scheduled

TurnCosts = dict[int, list[float]]  # by configuration number, in the order of the turns


class Validation:
    """Measures the turns, and says when they are over."""

    def __init__(
        self, turns: int, agent: Agent, guard: Guard, scheduled: Scheduled, in_force: InForce, pacing: Pacing
    ) -> None:
        """`turns` of the best and of the start, each."""
        self._turns, self._agent, self._guard = turns, agent, guard
        self._scheduled, self._in_force, self._pacing = scheduled, in_force, pacing

    def costs(self) -> TurnCosts | None:
        """What the turns of both cost; None where there is nothing to compare or to validate."""
        start, best = self._guard.start, self.best()
        if start == best:
            best = self._guard.to_keep()
        if start == best or not self._turns:
            return None
        costs: TurnCosts = {best: [], start: []}
        for pair in range(2 * self._turns):
            if pair >= self._turns and not self.needs_more_turns(costs):
                break
            if not self._measure_pair(pair, best, costs):
                break
        return costs

    def best(self) -> int:
        """What the agent recommends, if the guard knows nothing against it; else the guard's best.

        The guard goes by the few noisy intervals of each configuration, an agent by all it has learned.
        """
        number = self._agent.recommended()
        return number if number is not None and self._guard.trusts(number) else self._guard.best

    def needs_more_turns(self, costs: TurnCosts) -> bool:
        """True if the best seems better, perhaps by chance, and neither time nor limits forbid a pair."""
        if not self._pacing.has_time_for_a_pair or self._pacing.pause(2):
            return False
        return self._guard.turns.gain(costs).undecided

    def _measure_pair(self, pair: int, best: int, costs: TurnCosts) -> bool:
        """A turn of the best, then one of the start. False where no other pair is to follow."""
        start = self._guard.start
        # Where another turn of the best follows, its change must be free, too: nobody waits in the start.
        changes = 2 if pair + 1 < self._turns else 1
        cost = self._scheduled.measured("validation", best).cost
        settles = self._settles(costs, best, cost)
        waited = not settles and self._scheduled.waited_to_change(start, changes)
        if waited and self._in_force.number == best:
            cost = self._scheduled.measured("validation", best).cost
            settles = self._settles(costs, best, cost)
        if settles:
            costs[best].append(cost)
            return False
        watch = self._watch_of_first(best, cost) if pair == 0 and self._guard.fits(best) else UNWATCHED
        cost_of_start = self._scheduled.measured("validation", start, changes, watch).cost
        if math.isfinite(cost) and math.isfinite(cost_of_start):
            costs[best].append(cost)
            costs[start].append(cost_of_start)
        return self._guard.fits(best)

    def _watch_of_first(self, best: int, cost: float) -> Watch:
        """The start's first turn is over once it has shown what the turn of the best at this cost needs."""
        turns = self._guard.turns
        return Watch(share=turns.share_for_first(best), enough=partial(turns.first_has_shown, best, cost))

    def _settles(self, costs: TurnCosts, best: int, cost: float) -> bool:
        """True if the turns leave nothing open with this one of the best, which is fit."""
        with_this = costs | {best: [*costs[best], cost]}
        return self._guard.fits(best) and self._guard.turns.are_settled(with_this)
