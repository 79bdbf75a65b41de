"""What configurations are expected to cost in one situation, and which of them costs least.

Q of a configuration is the mean cost of the latencies P·exp(ρ) of simulated intervals. P is the prior's
(`latency_prior`), and ρ is what was learned of its errors (`region_residual`).

Where a change itself costs users something, costs are means over a faster and a slower machine. The cost of
the change is part of them. Near ties go to more capacity, then to the shorter tail.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rrl.guided.change_costs import ChangeCosts
from rrl.guided.latency_prior import Circumstances, Latencies, LatencyPrior
from rrl.guided.region_residual import RegionResidual
from rrl.guided.settings import GuidedSettings
from rrl.objective import Objective

LARGEST_COST = 1e9  # stands for the infinite cost of an unstable configuration in a mean


@dataclass(frozen=True)
class PredictedCosts:
    """The costs of configurations, given by their numbers, in the unit of the objective."""

    objective: Objective
    threads: np.ndarray  # (configurations,) the threads that each computes with
    prior: LatencyPrior
    residual: RegionResidual
    changes: ChangeCosts
    settings: GuidedSettings
    in_force: int
    given: Circumstances

    @property
    def change_costs_users(self) -> bool:
        """True if a change of the configuration in force may cost users something."""
        return self.changes.exist_from(self.in_force)

    def screened(self, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(K,) Q, roughly."""
        return self._of(numbers, self.prior.screened(numbers, scale, self.given.rate_per_s))

    def by_screened(self, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(K,) positions in order of ascending cost, roughly."""
        return np.argsort(self.screened(numbers, scale), kind="stable")

    def simulated(self, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(K,) Q with service times `scale` times as long."""
        return self._of(numbers, self.prior.simulated(numbers, scale, self.given))

    def lowest(self, numbers: np.ndarray, scale: np.ndarray) -> int:
        """The configuration of the lowest cost with service times `scale` times as long.

        The cost of the change is included. Only what screening finds most promising is simulated.
        """
        best = self.by_screened(numbers, scale)[: self.settings.simulated]
        best = self.changes.with_free(self.in_force, best, numbers)
        numbers, scale = numbers[best], scale[best]
        costs = self._at_both_speeds(numbers, scale)
        costs[self._are_gambles(numbers)] = np.inf
        costs = costs + self._waiting_for_change(numbers)
        return self._cheapest(numbers, costs, self.settings.reluctance)

    def lowest_in_the_mean(self, numbers: np.ndarray, sd: np.ndarray) -> int:
        """The configuration of the lowest cost in the mean over what service times may be.

        Their logarithms have these standard deviations. The cost of the change is included.
        """
        numbers, costs = self._means_of_best(numbers, sd)
        costs = costs + self._waiting_for_change(numbers)
        return self._cheapest(numbers, costs, self.settings.reluctance_later)

    def lowest_once_changed(self, numbers: np.ndarray, sd: np.ndarray) -> int:
        """As `lowest_in_the_mean`, without the queue that grows while it changes."""
        numbers, costs = self._means_of_best(numbers, sd)
        return self._cheapest(numbers, costs, self.settings.reluctance_later)

    def headroom(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) what latency is divided by for spare capacity, where a change costs users something."""
        if not self._weighs_near_ties:
            return np.ones(len(numbers))
        bears = self.prior.capacity_per_s[numbers] / self.given.rate_per_s
        result: np.ndarray = np.clip(bears, 1.0, self.settings.headroom_up_to) ** self.settings.headroom
        return result

    def tail(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) what latency is multiplied by for a long tail, where a change costs users something.

        It is (p95 / Q)^τ, so that Q·(p95 / Q)^τ is a weighted geometric mean of both. Where Q is the p95
        itself, it is 1.
        """
        if not (self._weighs_near_ties and self.settings.tail):
            return np.ones(len(numbers))
        latencies = self.prior.simulated(numbers, np.ones(len(numbers)), self.given)
        p95_ms = (self._ratio[numbers, None] * latencies.p95_ms).mean(axis=1)
        cost = self._of(numbers, latencies)
        over_cost = np.divide(p95_ms, cost, out=np.ones(len(numbers)), where=np.isfinite(cost))
        result: np.ndarray = over_cost**self.settings.tail
        return result

    @property
    def _weighs_near_ties(self) -> bool:
        """True where more than the cost decides among latencies about as low."""
        return self.change_costs_users and self.objective.unit == "ms"

    @cached_property
    def _ratio(self) -> np.ndarray:
        """(configurations,) exp(ρ) at the load expected."""
        ratio: np.ndarray = np.exp(self.residual.log_ratio(self.given.rate_per_s))
        return ratio

    def _of(self, numbers: np.ndarray, latencies: Latencies) -> np.ndarray:
        """(K,) Q of these latencies."""
        ratio = self._ratio[numbers, None]
        costs = self.objective.costs(
            ratio * latencies.mean_ms, ratio * latencies.p95_ms, self.threads[numbers][:, None]
        )
        result: np.ndarray = costs.mean(axis=1)
        return result

    def _mean_of(self, numbers: np.ndarray, latencies: Sequence[Latencies]) -> np.ndarray:
        """(K,) Q in the mean over several predictions."""
        costs = [np.minimum(self._of(numbers, each), LARGEST_COST) for each in latencies]
        result: np.ndarray = np.mean(costs, axis=0)
        return result

    def _mean_simulated(self, numbers: np.ndarray, scales: Sequence[np.ndarray]) -> np.ndarray:
        """(K,) Q as in `simulated`, in the mean over several scales of service times."""
        return self._mean_of(numbers, [self.prior.simulated(numbers, each, self.given) for each in scales])

    @property
    def _machine_sd(self) -> float:
        """σ of ln of all service times, over the time in which a change that costs something must pay."""
        return self.settings.machine_sd if self.change_costs_users else 0.0

    def _at_both_speeds(self, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(K,) Q as in `simulated`, in the mean over a faster and a slower machine."""
        if not self._machine_sd:
            return self.simulated(numbers, scale)
        scales = (math.exp(-self._machine_sd) * scale, math.exp(self._machine_sd) * scale)
        return self._mean_simulated(numbers, scales)

    def _means_of_best(self, numbers: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The most promising, and the mean of two simulated costs of each.

        Service times are one sd shorter in one, and one sd longer in the other. Where a change costs users
        something, sd includes what the machine's own speed varies by.
        """
        if self._machine_sd:
            sd = np.hypot(sd, self._machine_sd)
        scales = (np.exp(-sd), np.exp(sd))
        screened = [self.prior.screened(numbers, scale, self.given.rate_per_s) for scale in scales]
        best = np.argsort(self._mean_of(numbers, screened), kind="stable")[: self.settings.simulated_twice]
        best = self.changes.with_free(self.in_force, best, numbers)
        return numbers[best], self._mean_simulated(numbers[best], [scale[best] for scale in scales])

    def _cheapest(self, numbers: np.ndarray, costs: np.ndarray, reluctance: float) -> int:
        """The lowest cost; each process that a change starts must pay for itself.

        Near ties go to more headroom, so that a rising load needs no change, and to the shorter tail. A
        target that reports means alone, as a stock Triton, never tells of tails.
        """
        started = self.changes.processes_started(self.in_force, numbers)
        weighed = costs * self.tail(numbers) / self.headroom(numbers)
        return int(numbers[np.argmin(weighed / (1 - reluctance) ** started)])

    def _waiting_for_change(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) what the queue of a change adds to costs in ms. Costs in other units know of no waiting."""
        if self.objective.unit != "ms":
            return np.zeros(len(numbers))
        return self.changes.waiting_ms(self.in_force, numbers, self.given.rate_per_s)

    def _are_gambles(self, numbers: np.ndarray) -> np.ndarray:
        """(K,) True for what is expected to be far worse than what is in force, however good it may turn out.

        Where a change costs users something, it is not soon undone.
        """
        if not self.change_costs_users:
            return np.zeros(len(numbers), dtype=bool)
        expected = self.simulated(np.append(numbers, self.in_force), np.ones(len(numbers) + 1))
        return np.asarray(expected[:-1] > self.settings.gamble * expected[-1])
