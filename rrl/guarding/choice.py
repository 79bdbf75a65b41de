"""Which configuration is best, which is worse than the start, and which to keep and why. Pure logic.

| symbol | here | meaning |
|---|---|---|
| ĉ(1 ± ν/√n) | `pessimistic_mean`, `optimistic_mean` | mean cost of n intervals ± the noise ν of one |
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rrl.guarding.expectation import LikeWithLike
from rrl.guarding.fitness import Fitness
from rrl.guarding.gain import EXPECTED_CONFIDENCE, UNKNOWN, Gain, in_words, unpaired_gain
from rrl.guarding.interval_memory import (
    COMPARABLE_LOAD,
    IntervalMemory,
    Seen,
    costs_of,
    mean,
    no_lower_load,
)
from rrl.guarding.settings import GuardSettings
from rrl.guarding.turns import Costs, Turns
from rrl.measured_costs import USUAL_COMPLETIONS, best_known, optimistic_mean, pessimistic_mean

MIN_INTERVALS_TO_BE_BETTER = 2  # a single good interval may be luck


class ToKeep(NamedTuple):
    """The configuration to keep in force at the end, and why."""

    number: int
    reason: str


@dataclass
class Choice:
    """Chooses among the configurations measured, by what is remembered of them."""

    start: int
    settings: GuardSettings
    memory: IntervalMemory
    fitness: Fitness
    turns: Turns
    expected: LikeWithLike

    @property
    def best(self) -> int:
        """The best configuration known: by what is expected of it now, else by what was measured of it.

        What was measured counts at the present load, or at the nearest load at which a fit one is.
        """
        return self.expected.cheapest(self._serving) if self.expected.known else self._best_measured

    @property
    def best_to_keep(self) -> int:
        """The best for as long as it is kept: what came lately may come again."""
        return (
            self.expected.cheapest_kept(self._serving, self.start)
            if self.expected.known
            else self._best_measured
        )

    @property
    def safe(self) -> frozenset[int]:
        """What a rollback would return to, and what would be kept."""
        return frozenset((self.best, self.best_to_keep))

    @property
    def _serving(self) -> list[int]:
        """The configurations measured that are fit, and the start where nothing speaks against it."""
        is_out = self.start_harms or self.start in self.fitness.outage.in_doubt
        start = set() if is_out else {self.start}
        return sorted(self.fit | start or {self.start})

    @property
    def _best_measured(self) -> int:
        near = self.memory.near_present_load()
        unfit = self.fitness.unfit(near)
        fit = [seen for seen in near if seen.number not in unfit]
        fit = fit or self.memory.nearest([seen for seen in self.memory.all if seen.number not in unfit])
        return best_known(costs_of(fit), self.settings.noise) if fit else self.start

    @property
    def costs_at_present_load(self) -> dict[int, list[float]]:
        """Of each configuration that was measured near it."""
        return costs_of(self.memory.near_present_load())

    @property
    def start_is_overloaded(self) -> bool:
        """True if it is not expected to bear the load with something to spare.

        Where nothing is expected: if its queue grew in most of its intervals at no more than this load.
        """
        if self.expected.known:
            return not self.expected.bears(self.start, 1 - self.settings.spare)
        most_per_s = self.memory.rate_per_s * COMPARABLE_LOAD
        own = [s for s in self.memory.all if s.number == self.start and s.rate_per_s <= most_per_s]
        return 2 * sum(seen.overloaded for seen in own) > len(own)

    @property
    def avoids_start(self) -> bool:
        """True if users must not bear the start again: it is overloaded, or requests fail under it alone."""
        return self.start_harms or self.start_is_overloaded

    @property
    def start_harms(self) -> bool:
        """True if requests fail, or the target is lost, under the start and not under another."""
        return self.fitness.start_fails or self.start in self.fitness.losing

    def trusts(self, number: int) -> bool:
        """True if this configuration was measured near the present load, and nothing speaks against it.

        It must be fit, and no other may have been measured better beyond noise.
        """
        near = self.memory.near_present_load()
        unfit = self.fitness.unfit(near)
        if number in unfit or all(seen.number != number for seen in near):
            return False
        others = {seen.number for seen in near} - {number, *unfit}
        return not any(self._gain_kept(number, other).beyond_noise for other in others)

    def is_worse(self, number: int) -> bool:
        """True if it is not fit, or cost more than the start at the present load, beyond noise."""
        if not self.fitness.fits(number):
            return True
        known = self.expected.known
        gain = self.expected.gain(number, self.start) if known else self._measured(number, self.start, 1)
        return gain.beyond_noise

    def is_better(self, number: int, than: int) -> bool:
        """True if it costs less beyond noise, as expected or by what both cost near the present load."""
        return self._gain_kept(than, number).beyond_noise

    def expected_gain(self, number: int) -> Gain:
        """How many times less it is expected to cost than the start, kept; `UNKNOWN` where nothing is."""
        return self.expected.gain_kept(self.start, number) if self.expected.known else UNKNOWN

    def is_proven(self, number: int) -> bool:
        """True if it is expected without doubt to cost less than the start: no turns are needed then."""
        return self.expected_gain(number).beyond_noise

    def improves_on(self, number: int) -> bool:
        """False if what a rollback would return to is expected to cost more than this configuration now."""
        return not self.expected.known or self.expected.gain(number, self.best).estimate > 1

    def to_keep(self, turn_costs: Costs | None = None) -> ToKeep:
        """What to keep in force, and why: the best known if shown to cost less than the start; else that.

        `turn_costs` are the costs of both, measured in turns. The best's must be lower beyond noise, or be
        expected to be so by all that was measured. Where the turns speak against it, another may be expected
        to be better. Nothing may be expected, and there may be no turns, or none that the start could bear.
        Then the best known must be better even with the noise of both held against it.
        """
        if self.start_harms and (best := self.best_to_keep) != self.start:
            what = "requests failed" if self.fitness.start_fails else "the target was lost"
            return ToKeep(best, f"{what} under the start, and clearly less often under this one")
        if turn_costs and not all(self.fitness.fits(n) for n in turn_costs if n != self.start):
            why = "the best known failed, was aborted or broke the limit in its turns"
            return self._another_than(self.turns.best_of(turn_costs), why) or ToKeep(self.start, why)
        gain = self.turns.gain(turn_costs or {})
        if turn_costs and gain.beyond_noise:
            return ToKeep(self.turns.best_of(turn_costs), f"{in_words(gain)}, measured in turns with it")
        if self.expected.known and not gain.is_none:
            return self._as_expected(self.turns.best_of(turn_costs) if turn_costs else self.best_to_keep)
        if turn_costs and (gain.is_none or not self.start_is_overloaded):
            why = f"in turns the best had {in_words(gain)}"
            none = ToKeep(self.start, f"nothing was better beyond noise: {why}")
            return self._another_than(self.turns.best_of(turn_costs), why) or none
        return self._by_means()

    def _another_than(self, best: int, why: str) -> ToKeep | None:
        """What else is expected to be better than the start, as `why` speaks against the best; or nothing."""
        others = [number for number in self._serving if number != best]
        if not (self.expected.known and others):
            return None
        kept = self._as_expected(self.expected.cheapest_kept(others, self.start), but=best)
        return None if kept.number == self.start else ToKeep(kept.number, f"{kept.reason}; {why}")

    def _as_expected(self, best: int, but: int | None = None) -> ToKeep:
        """The best where that is expected without doubt to be better; else the best of those that are.

        `but` is not one of those, as the turns speak against it. A start that cannot bear the load with
        something to spare is left for what bears more.
        """
        if not self.is_proven(best):
            proven = self._best_proven(but)
            best = best if proven is None else proven
        gain = self.expected.gain_kept(self.start, best)
        words = in_words(gain, EXPECTED_CONFIDENCE)
        if gain.beyond_noise:
            return ToKeep(best, f"{words}, expected of both under the same loads")
        bears_more = self.expected.capacity_per_s(best) > self.expected.capacity_per_s(self.start)
        if gain.estimate > 1 and self.start_is_overloaded and bears_more:
            why = "the start cannot bear the load with something to spare"
            return ToKeep(best, f"{words}, expected of both; {why}")
        if best == self.start:
            return ToKeep(self.start, "nothing else is expected to be better")
        return ToKeep(self.start, f"nothing is better beyond noise: the best is expected to have {words}")

    def _best_proven(self, but: int | None) -> int | None:
        """Of the fit configurations measured that are expected without doubt to cost less than the start."""
        proven = [number for number in self.fit if number != but and self.is_proven(number)]
        return self.expected.cheapest_kept(proven, self.start) if proven else None

    @property
    def fit(self) -> set[int]:
        """The configurations that were measured and are fit at the present load."""
        unfit = self.fitness.unfit(self.memory.near_present_load())
        return self.memory.numbers - unfit

    def _by_means(self) -> ToKeep:
        best = self.best
        seen = no_lower_load(self.start, self.memory.near_load_of(self.start))
        costs = costs_of(seen)
        if best not in costs or self.start not in costs:
            return ToKeep(self.start, "nothing else is known well enough")
        noise = self.settings.noise * _times_noisier(seen, {self.start, best})
        if pessimistic_mean(costs[best], noise) >= optimistic_mean(costs[self.start], noise):
            return ToKeep(self.start, "nothing is known to be better beyond noise")
        if self.start_is_overloaded:
            gain = in_words(unpaired_gain(costs[self.start], costs[best]))
            overloaded = "the start could not bear the load, so it was not put in force again"
            return ToKeep(best, f"{gain} by the intervals of the search; {overloaded}")
        return ToKeep(best, "the best known, better than the start even with noise held against it")

    def _gain_kept(self, of: int, over: int) -> Gain:
        """How many times less `over` costs than `of`, kept, as expected; else as measured."""
        return self.expected.gain_kept(of, over) if self.expected.known else self._measured(of, over)

    def _measured(self, of: int, over: int, at_least: int = MIN_INTERVALS_TO_BE_BETTER) -> Gain:
        """The same by what both cost near the present load, `over` under no lower one."""
        costs = costs_of(no_lower_load(of, self.memory.near_present_load()))
        if len(costs.get(over, [])) < at_least:
            return UNKNOWN
        return unpaired_gain(costs.get(of, []), costs[over])


def _times_noisier(seen: Sequence[Seen], numbers: Collection[int]) -> float:
    """How many times noisier these costs are than those of intervals with `USUAL_COMPLETIONS`; at least 1."""
    completions = mean([each.completions for each in seen if each.number in numbers])
    return max(1.0, math.sqrt(USUAL_COMPLETIONS / max(completions, 1)))
