"""What a run expects of another load or limit: which configuration would be best then, and how surely.

| symbol | here | meaning |
|---|---|---|
| λ | `load` | requests per second, or requests at once of a closed loop |
| J(c) | `Outlook.cost` | the cost expected of configuration c under the objective asked about |
| q(c) | `Outlook.p95_ms` | the p95 expected, with its `CONFIDENCE` interval |

Nothing is sent anywhere. It is asked of what the guard believed when the run ended: service times, what the
queueing model gets wrong, and how requests come. Another load is the arrivals seen, so many times as fast.
The interval of q is that of service times, replayed, and of the model's error. It knows nothing of what a
load never seen may bring, so an answer beyond the loads seen is marked as one that extrapolates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from rrl.belief.belief import Belief
from rrl.belief.knob_importance import Importances, knob_importances
from rrl.belief.several_models.joint import JointBelief
from rrl.guarding.interval_memory import COMPARABLE_LOAD
from rrl.guided.candidates import cheapest_first
from rrl.objective import Objective, make_objective
from rrl.records import MOST_CONCURRENCY, Header, Record
from rrl.space import Configuration, with_fixed

CONFIDENCE = 0.9  # of the interval of a p95
SIGMAS = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
COMPARED = 120  # configurations that are replayed for an answer
SAMPLED = 512  # configurations that tell how much knobs matter
LONGEST_MS = 1e8  # stands for an infinite p95 in an interval


class Outlook(NamedTuple):
    """What is expected of one configuration."""

    configuration: dict[str, int]
    threads: int
    cost: float
    p95_ms: float
    p95_low_ms: float
    p95_high_ms: float
    borne: bool  # it is expected to bear the load
    measured: bool  # it was in force in this run


class WhatIf(NamedTuple):
    """A supposition, and what would come of it."""

    load: float
    objective: Objective
    best: tuple[Outlook, ...]  # the cheapest expected first
    kept: Outlook  # the configuration that the run kept
    extrapolates: bool  # no load like this one was seen

    @property
    def keeps_limit(self) -> bool:
        """Whether the best is expected to bear the load, with its p95 within the limit if there is one."""
        limit_ms = self.objective.slo_p95_ms
        return self.best[0].borne and (limit_ms is None or self.best[0].p95_ms <= limit_ms)

    @property
    def doubts(self) -> list[str]:
        """What speaks against taking it at its word."""
        best = self.best[0]
        sentences = {
            "none is expected to bear it": not best.borne,
            "none is expected to keep the limit": best.borne and not self.keeps_limit,
            "no such load was seen": self.extrapolates,
            "never in force in this run": best.borne and not best.measured,
        }
        return [sentence for sentence, holds in sentences.items() if holds]


@dataclass(frozen=True)
class Learned:
    """A run, to be asked about what it did not try."""

    header: Header
    records: Sequence[Record]
    belief: Belief
    kept: Configuration  # what the run kept in force

    @classmethod
    def of(
        cls,
        header: Header,
        records: Sequence[Record],
        belief: Belief | JointBelief | None,
        kept: Configuration,
    ) -> Learned | None:
        """None where too little was learned to expect anything by, and of models tuned together."""
        if not isinstance(belief, Belief) or not belief.known:
            return None
        return cls(header, records, belief, kept)

    @property
    def load(self) -> float:
        """The present one."""
        return float(self.header.concurrency or self.belief.requests_per_s)

    @property
    def load_unit(self) -> str:
        return "requests/s" if self.header.concurrency is None else "requests at once"

    @cached_property
    def loads_seen(self) -> tuple[float, float]:
        """The lowest and the highest of an interval that was learned from."""
        if self.header.concurrency is not None:
            return self.load, self.load
        rates = [r.measurement.arrival_rate_per_s for r in self.records if r.counted and r.learned]
        return min(rates, default=self.load), max(rates, default=self.load)

    @property
    def objective(self) -> Objective:
        return make_objective(self.header.objective, self.header.slo_p95_ms)

    def ask(self, objective: Objective | None = None, load: float | None = None, count: int = 1) -> WhatIf:
        """What would be best under another objective, limit or load: so many configurations.

        ValueError for a closed loop of more requests at once than can be simulated.
        """
        objective, load = objective or self.objective, load or self.load
        if self.header.concurrency is not None and load > MOST_CONCURRENCY:
            raise ValueError(f"at most {MOST_CONCURRENCY} requests at once can be asked about, got {load:g}")
        supposed = self.belief.supposing(objective, load / self.load)
        numbers = self._candidates(supposed)
        costs = supposed.ahead(numbers, np.ones(len(numbers))).cost
        order = np.lexsort((costs, ~supposed.bears(numbers)))[:count]
        *best, kept = self._outlooks(supposed, np.append(numbers[order], self._kept))
        low, high = self.loads_seen
        beyond = not low / COMPARABLE_LOAD <= load <= high * COMPARABLE_LOAD
        return WhatIf(load, objective, tuple(best), kept, beyond)

    def importances(self) -> Importances:
        """How much each knob matters for the run's own objective, at the load expected next."""
        numbers = self._allowed
        if len(numbers) > SAMPLED:
            numbers = np.sort(np.random.default_rng(0).choice(numbers, SAMPLED, replace=False))
        costs = self.belief.ahead(numbers, np.ones(len(numbers))).cost
        return knob_importances(self.header.space, numbers, costs)

    def _outlooks(self, supposed: Belief, numbers: np.ndarray) -> list[Outlook]:
        sd = supposed.standard_deviations(numbers)
        error_sd = supposed.model_error.standard_deviations(numbers)
        fast, usual, slow = (supposed.ahead(numbers, np.exp(z * sd)) for z in (-1.0, 0.0, 1.0))
        p95_ms = np.minimum(usual.p95_ms, LONGEST_MS)
        spread = 0.5 * np.log(np.minimum(slow.p95_ms, LONGEST_MS) / np.minimum(fast.p95_ms, LONGEST_MS))
        factor = np.exp(SIGMAS * np.sqrt(spread**2 + error_sd**2))
        borne = supposed.bears(numbers)
        return [
            Outlook(
                self.header.space.configuration(number),
                int(self._threads[number]),
                float(usual.cost[k]),
                float(p95_ms[k]),
                float(p95_ms[k] / factor[k]),
                float(p95_ms[k] * factor[k]),
                bool(borne[k]),
                number in self._measured,
            )
            for k, number in enumerate(numbers.tolist())
        ]

    def _candidates(self, supposed: Belief) -> np.ndarray:
        """Of a large grid those of the lowest cost by screening, and those of the fewest threads."""
        numbers = self._allowed
        if len(numbers) <= COMPARED:
            return numbers
        screened, threads = supposed.screened(numbers, np.ones(len(numbers))), self._threads[numbers]
        cheapest = cheapest_first(supposed.objective, screened, threads)
        frugal = np.lexsort((screened.cost, threads, ~supposed.bears(numbers)))
        both = np.stack([cheapest, frugal], axis=1).ravel()
        _, first = np.unique(both, return_index=True)
        return np.asarray(numbers[both[np.sort(first)][:COMPARED]])

    @property
    def _kept(self) -> int:
        return self.header.space.number(self.kept)

    @cached_property
    def _threads(self) -> np.ndarray:
        return with_fixed(self.header.space, self.header.found).threads

    @cached_property
    def _measured(self) -> frozenset[int]:
        return frozenset(r.number for r in self.records if r.counted and r.learned)

    @cached_property
    def _allowed(self) -> np.ndarray:
        """Within the run's budget of cores, and never refused by the server. What was kept is among them."""
        allowed = self.belief.replay.allowed.copy()
        cores = (self.header.limits or {}).get("cores")
        if isinstance(cores, int):
            allowed &= self._threads <= cores
        allowed[[r.number for r in self.records if r.not_taken]] = False
        allowed[self._kept] = True
        return np.flatnonzero(allowed)
