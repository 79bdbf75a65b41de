"""The default agent: it knows how a queue behaves, learns the server, and changes it where that pays.

    belief   S, A, ρ: what would configuration c cost?          `rrl.belief`
    rule     c of the highest value(c), now in force: 0         `acquisition`

| symbol | meaning |
|---|---|
| S | service times of a batch, by configuration, on the machine as it is now |
| A | arrivals that may come |
| ρ | what the queueing model gets wrong of each configuration |
| R(c, A, S) | latencies of A under c, replayed through the queue |
| cost(c) | the objective of R(c, A, S) · exp(ρ): a distribution, as S, A and ρ are unsure |
| value(c) | H · EI(c) - E[cost(c) - cost(now)]⁺ - change(c) · (1 + P(worse)) |

An interval goes through it in this order: `act` proposes, `update` lets the belief learn what was measured,
and the rule compares the most promising configurations with the one in force. Two choices come before it
(`first_choice`): where to begin, and the rule of thumb, once, where it is expected to bear the load and may
well be better.
"""

from __future__ import annotations

import numpy as np

from rrl.agent import Agent, Proposable, Task, Transition
from rrl.belief.belief import Belief, while_kept
from rrl.guided import first_choice
from rrl.guided.acquisition import Acquisition, Contenders
from rrl.guided.candidates import needing_no_less, without_vain_delays
from rrl.guided.settings import GUIDED, GuidedSettings
from rrl.measurement import tells_nothing
from rrl.objective import in_unit
from rrl.seeding import Seed

NONE_YET = -1  # the number in force before the first interval
# From this probability of being better on, a change is explained by what is expected.
MIN_PROBABILITY_TO_EXPECT = 0.5
# From this probability of being better on, the rule of thumb is tried, whatever its value.
MIN_PROBABILITY_OF_THUMB = 0.25


class Guided(Agent):
    """The agent. It is deterministic but for the seeded arrivals of its replays."""

    def __init__(self, task: Task, settings: GuidedSettings = GUIDED, seed: Seed = 0) -> None:
        self.space, self.settings = task.space, settings
        self._objective = task.objective
        self.belief = Belief(
            task.space,
            task.objective,
            task.cores,
            task.excluded,
            seed,
            found=task.found,
            concurrency=task.concurrency,
            nodes=task.nodes,
        )
        self._rule = Acquisition(self.belief, task.settles, settings)
        self._in_force = NONE_YET
        self._learned = 0  # intervals
        self._proposable = Proposable(task)
        self._taken: set[int] = set()  # by the target
        self._compared: Contenders | None = None
        # None: tried, or there is none
        self._thumb = first_choice.rule_of_thumb(task.space, task.cores, task.found)
        self._next = first_choice.central(self.belief, task.space)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return self.space.action(self._next)

    def update(self, transition: Transition) -> None:
        """Learns from one interval, unless it has a gap or no cost, and chooses the next configuration."""
        measurement = transition.measurement
        self._in_force = self.space.number_of_action(transition.action)
        self._taken.add(self._in_force)
        unanswered = not (measurement.gap or measurement.completions or tells_nothing(measurement))
        if measurement.arrivals == measurement.failures == 0 or not (transition.has_cost or unanswered):
            self.belief.passed(measurement.duration_s)
            return
        self.belief.learn(self._in_force, measurement)
        if self._in_force == self._thumb:
            self._thumb = None
        if self.belief.known:
            self._next = self._chosen()
        elif measurement.failures:
            self._next = self._first()

    def keep_off(self, numbers: frozenset[int]) -> None:
        """None of these is proposed until the guard tells of others."""
        self._proposable.kept_off = numbers

    def refused(self, number: int) -> None:
        """The target did not take this configuration. Once may be chance.

        After twice neither it is proposed nor what needs no less memory. Where something of that kind was
        taken before, memory is not the reason, and it alone is left out. The last one is never left out.
        """
        if self._proposable.refused(number):
            replay, refused = self.belief.replay, np.flatnonzero(needing_no_less(self.space, number))
            if self._taken.intersection(refused) or not np.delete(replay.allowed, refused).any():
                refused = np.array([number])
            if np.delete(replay.allowed, refused).any():
                replay.disallow(refused)

    def recommended(self) -> int | None:
        """The configuration expected to cost least while it is kept; None where that is overloaded."""
        if self._compared is None:
            return None
        numbers, log_cost = self._compared.numbers, np.log(self._compared.cost)
        kept, _ = while_kept((log_cost, 0 * log_cost), self.belief.log_costs_lately(numbers))
        best = int(numbers[np.argmin(kept)])
        return best if self._bears(best) else None

    def explain(self) -> str:
        """Why the configuration just proposed, in a few words."""
        compared = self._compared
        if compared is None:
            return "nothing is known yet: begins in the middle of what should bear a heavy load"
        if self._next == self._thumb:
            return "tries the rule of thumb: an instance a core, one thread each, small batches"
        k = int(np.flatnonzero(compared.numbers == self._next)[0])
        unit = self._objective.unit
        expected, present = (in_unit(cost, unit) for cost in (compared.cost[k], compared.present_cost))
        if self._next == self._in_force:
            return f"stays: expects {present}, and nothing better is worth a change"
        if compared.better[k] >= MIN_PROBABILITY_TO_EXPECT:
            return f"expects {expected} instead of {present}"
        return f"tries it: {expected} instead of {present}, better with {compared.better[k]:.0%}"

    def _bears(self, number: int) -> bool:
        return bool(self.belief.bears(np.array([number]))[0])

    def _is_worth_a_try(self, number: int) -> bool:
        """Whether the rule of thumb may be proposed, is expected to bear the load, and may well be better."""
        if not (self._allows(np.array([number]))[0] and self._bears(number)):
            return False
        compared = self._rule.contenders(np.array([number]), self._in_force)
        return bool(compared.better[compared.numbers == number][0] >= MIN_PROBABILITY_OF_THUMB)

    def _first(self) -> int:
        """What to try while nothing is known."""
        return first_choice.central(self.belief, self.space, self._proposable.kept_off)

    def _allows(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) bool: these may be proposed."""
        return np.asarray((self.belief.replay.allowed & self._proposable.admitted)[numbers])

    def _candidates(self) -> np.ndarray:
        """The configurations to compare."""
        numbers = np.flatnonzero(self._allows(np.arange(len(self.space))))
        return without_vain_delays(self.belief, self._in_force, numbers)

    def _chosen(self) -> int:
        self._compared = self._rule.contenders(self._candidates(), self._in_force)
        value = self._compared.value(self.settings.horizon)
        self._learned += 1
        if self._learned > self.settings.rule_of_thumb_within:
            self._thumb = None
        thumb = self._thumb
        if thumb is not None and self._is_worth_a_try(thumb):
            return thumb
        value = np.where(self._allows(self._compared.numbers), value, -np.inf)  # what is in force may not be
        return int(self._compared.numbers[np.argmax(value)]) if np.isfinite(value).any() else self._in_force
