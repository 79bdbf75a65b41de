"""The last phase of a run: the best known (A) and the start (B) are measured in turns, A B B A.

- The run looks after each pair, and stops once the gain is shown, or that there is none.
- Within the start's first turn it looks as well: users need not bear the rest of what is shown to be worse.
- At most as many turns follow where these leave open which is better.
- What is expected without doubt to be better needs no turns. A start that is not expected to bear the load
  with something to spare is not put in force again: it is asked before each of its turns.
- Where a turn of the start had to wait for its changes in the best, the best is measured again, since the
  load may have moved meanwhile.
"""

from __future__ import annotations

import math
from functools import partial

from rrl.agent import Agent
from rrl.guarding.guard import Guard
from rrl.guarding.turns import best_goes_first
from rrl.interval import UNWATCHED, Watch
from rrl.tuning.in_force import InForce
from rrl.tuning.pacing import Pacing
from rrl.tuning.scheduled import Scheduled

TurnCosts = dict[int, list[float]]  # by configuration number, pair by pair
THERE_AND_BACK = 2  # changes that must be free before the start comes into force: nobody waits in it


class Validation:
    """Measures the turns, and says when they are over."""

    def __init__(
        self, turns: int, agent: Agent, guard: Guard, scheduled: Scheduled, in_force: InForce, pacing: Pacing
    ) -> None:
        """`turns` of the best and of the start, each."""
        self._turns, self._agent, self._guard = turns, agent, guard
        guard.turns.planned = turns
        self._scheduled, self._in_force, self._pacing = scheduled, in_force, pacing

    def costs(self) -> TurnCosts | None:
        """What the turns of both cost; None where there is nothing to compare or to validate."""
        start, best = self._guard.start, self.best()
        if start == best:
            best = self._guard.to_keep()
        choice = self._guard.choice
        if start == best or not self._turns or choice.is_proven(best) or choice.avoids_start:
            return None
        costs: TurnCosts = {best: [], start: []}
        for pair in range(2 * self._turns):
            over = self._guard.turns.are_over(costs) or choice.is_proven(best)
            if over or (pair >= self._turns and not self.may_go_on()):
                break
            if not self._measure_pair(pair, best, costs):
                break
        return costs

    def best(self) -> int:
        """What the agent recommends, if the guard knows nothing against it; else the guard's best.

        The guard goes by the few noisy intervals of each configuration, an agent by all it has learned.
        """
        choice, number = self._guard.choice, self._agent.recommended()
        return number if number is not None and choice.trusts(number) else choice.best_to_keep

    def may_go_on(self) -> bool:
        """True if neither time nor limits forbid a pair more than planned."""
        return self._pacing.has_time_for_a_pair and not self._pacing.pause(THERE_AND_BACK)

    def _measure_pair(self, pair: int, best: int, costs: TurnCosts) -> bool:
        """A turn of each. False where no other pair is to follow."""
        turns = self._best_then_start(pair, best) if best_goes_first(pair) else self._start_then_best(best)
        if turns is None:
            return False
        if all(map(math.isfinite, turns)):
            for number, cost in zip((best, self._guard.start), turns, strict=True):
                costs[number].append(cost)
        return self._guard.fitness.fits(best)

    def _best_then_start(self, pair: int, best: int) -> tuple[float, float] | None:
        """What a turn of the best and then one of the start cost, with no wait between the two.

        None where the start had no turn, as below.
        """
        start = self._guard.start
        cost = self._scheduled.measured("validation", best).cost
        waited = self._scheduled.waited_to_change(start, THERE_AND_BACK)
        if waited and self._in_force.number == best:
            cost = self._scheduled.measured("validation", best).cost
        watch = UNWATCHED
        # A best that broke the limit is excused by a start that breaks it, too, in a whole turn.
        if pair == 0 and self._guard.fitness.fits(best):
            watch = Watch(enough=partial(self._guard.turns.first_has_shown, best, cost))
        cost_of_start = self._turn_of_start(THERE_AND_BACK, watch)
        return None if cost_of_start is None else (cost, cost_of_start)

    def _start_then_best(self, best: int) -> tuple[float, float] | None:
        """The same in the other order, the best's cost first."""
        cost_of_start = self._turn_of_start()
        if cost_of_start is None:
            return None
        return self._scheduled.measured("validation", best).cost, cost_of_start

    def _turn_of_start(self, changes: int = 1, watch: Watch = UNWATCHED) -> float | None:
        """What a turn of the start cost; None, and no turn, where users must not bear the start by now."""
        start = self._guard.start
        self._scheduled.waited_to_change(start, changes)
        if self._guard.choice.avoids_start:
            return None
        return self._scheduled.measured("validation", start, changes, watch).cost
