"""What a run that never ends adds to the agent: feed-forward, a dead band, and what is in force in silence.

    load enters another level -> the reference table proposes      feed-forward
    else                      -> the agent proposes                feed-back
    either                    -> the dead band                     lets through what pays for its change

| symbol | here | meaning |
|---|---|---|
| g, g⁻ | `Gain.estimate`, `Gain.low` | how many times less the proposal is expected to cost, and at least |
| H | `GUIDED.horizon` | decisions over which a gain pays |
| s | `GUIDED.settling_share` | what a change costs, as a share of what an interval costs |

A change from one measured configuration to another is made only where g⁻ > 1 and H (1 - 1/g) > s: the gain
is beyond noise, and outweighs the change. H and s are those of the default agent's rule. Three kinds of
proposal are let through as they are: what was never measured, the way on from what was just tried for the
first time, and away from what is not expected to bear the load.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from rrl.guarding.guard import Guard
from rrl.guided.settings import GUIDED
from rrl.load_levels import LoadLevels

SILENT_INTERVALS = 12
"""In a row, without a request: from then on nothing is served, so that what is safe comes into force."""


class BestKnown(NamedTuple):
    """The best configuration known at a load level."""

    number: int
    reason: str  # where it is from


class KnownBest(Protocol):
    """A reference table on a run's grid."""

    def at(self, rate_per_s: float) -> BestKnown | None:
        """The best known at this load; None where nothing is."""
        ...


class Proposal(NamedTuple):
    """What the guard is asked to admit."""

    number: int
    reason: str = ""  # the table's; empty where it is the agent's, or nothing is to change


class Watching:
    """Decides what of the table's and the agent's proposals the guard is asked to admit."""

    def __init__(
        self,
        guard: Guard,
        threads: np.ndarray,
        known_best: KnownBest | None = None,
        threads_cost: bool = False,
    ) -> None:
        """`threads` is (size,): those of each configuration. `known_best` None: there is no feed-forward.

        `threads_cost` is true where they are what the objective counts.
        """
        self.held_back = 0
        """Proposals of the agent that the dead band did not let through."""
        self._guard, self._threads, self._known_best = guard, threads, known_best
        self._threads_cost = threads_cost
        self._load_levels = LoadLevels()
        self._level: int | None = None  # of the load when the table was asked last
        self._in_force = -1
        self._lasted = 0  # intervals since another came into force
        self._tried: int | None = None  # what was let through unmeasured last

    def choose(self, in_force: int, proposed: int) -> Proposal:
        """What to propose after an interval under `in_force`, where the agent proposes `proposed`."""
        self._lasted = self._lasted + 1 if in_force == self._in_force else 1
        self._in_force = in_force
        if (known := self._fed_forward()) is not None:
            self._tried = None
            return Proposal(known.number, known.reason)
        if proposed == in_force or self._may_follow(proposed):
            return self._let_through(Proposal(proposed))
        self.held_back += 1
        return Proposal(in_force)

    def in_silence(self) -> BestKnown:
        """What to have in force while no requests come."""
        if not self._threads_cost:
            return BestKnown(self._guard.to_keep(), "the best known to be safe")
        fit = sorted(self._guard.choice.fit) or [self._guard.to_keep()]
        fewest = min(fit, key=lambda number: self._threads[number])
        return BestKnown(fewest, "the fewest threads known to serve")

    def silence_is_over(self) -> None:
        """The table is asked again, whatever the load was before."""
        self._level = None

    def _fed_forward(self) -> BestKnown | None:
        """What the table has for a load level that the load has just entered, if it pays to go there."""
        rate_per_s = self._guard.memory.rate_per_s
        level = self._load_levels.level(rate_per_s)
        if self._known_best is None or level == self._level:
            return None
        self._level = level
        known = self._known_best.at(rate_per_s)
        if known is None or known.number == self._in_force or known.number in self._guard.refuses:
            return None
        if not self._guard.expected.known:
            return known
        if not self._guard.memory.knows(known.number):  # another run's: it is to be at least as good
            better = self._guard.expected.gain(self._in_force, known.number).estimate > 1
            return known if better else None
        return known if self._pays(known.number) else None

    def _may_follow(self, proposed: int) -> bool:
        guard = self._guard
        if not guard.expected.known or not guard.memory.knows(proposed):
            return True
        just_tried = self._in_force == self._tried and self._lasted == 1
        return just_tried or not guard.memory.knows(self._in_force) or self._pays(proposed)

    def _pays(self, number: int) -> bool:
        """True where the gain is beyond noise and outweighs the change, or what is in force is overloaded."""
        expected = self._guard.expected
        gain = expected.gain(self._in_force, number)
        if not expected.bears(self._in_force):
            return gain.estimate > 1
        worth = GUIDED.horizon * (1 - 1 / gain.estimate)
        return gain.beyond_noise and worth > GUIDED.settling_share

    def _let_through(self, proposal: Proposal) -> Proposal:
        knows = self._guard.memory.knows(proposal.number)
        self._tried = None if knows else proposal.number
        return proposal
