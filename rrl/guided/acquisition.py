"""The one rule by which the next configuration is chosen: expected improvement, net of what it costs users.

    value(c) = H · EI(c) - E[cost(c) - cost(now)]⁺ - change(c) · (1 + P(worse))

| symbol | here | meaning |
|---|---|---|
| H | `horizon` | the decisions over which what is found pays |
| EI(c) | `improvement` | expected improvement over what is in force, by the posterior of the cost of c |
| E[·]⁺ | `regret` | what an interval under c is expected to cost users more than one as now |
| change(c) | `change` | what going there costs users; once more for the way back from what is worse |

What is in force has the value 0. So the server is changed only for a gain that is expected to outweigh its
costs. Exploration ends by itself. Contenders are raced for as long as what is left to gain is worth it.

The costs of c are replayed with its service times at three points of their posterior (Gauss-Hermite). What is
expected of c is averaged over those. Improvement and probability are told between them, too (`improvement`).
Over each point the error of the queueing model is integrated in closed form, as far as the cost feels it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from rrl.belief.belief import Belief
from rrl.guided.candidates import cheapest_first
from rrl.guided.settings import GuidedSettings

NODES = np.array([-math.sqrt(3), 0.0, math.sqrt(3)])
WEIGHTS = np.array([1, 4, 1]) / 6
LIKELY_DEVIATIONS = ndtri((np.arange(64) + 0.5) / 64)  # each as likely
SCREENED = 120  # configurations whose uncertainty is asked for, the cheapest by screening
NEAR_DISTANCE = 2.0  # and those so near to the one in force


class Contenders(NamedTuple):
    """The configurations compared, and what is expected of them: (K,) each."""

    numbers: np.ndarray
    cost: np.ndarray  # expected, beside what is in force
    improvement: np.ndarray  # EI
    regret: np.ndarray
    better: np.ndarray  # probability
    change: np.ndarray
    present_cost: float  # of what is in force

    def value(self, horizon: float) -> np.ndarray:
        """(K,) that of trying each."""
        return horizon * self.improvement - self.regret - (2 - self.better) * self.change


class Acquisition:
    """Compares configurations with the one in force.

    A change costs users a share of an interval (ours: no paper has it). Where it takes a while to settle, it
    costs more.
    """

    def __init__(self, belief: Belief, settles: bool, settings: GuidedSettings) -> None:
        self._belief, self._settings = belief, settings
        self._change_share = settings.settling_share if settles else settings.change_share

    def contenders(self, numbers: np.ndarray, in_force: int) -> Contenders:
        """The most promising among these, by what is believed now. What is in force is among them."""
        belief = self._belief
        numbers, sd = self._promising(numbers, in_force)
        error_sd = belief.model_error.standard_deviations(numbers, beside=in_force)
        own = np.flatnonzero(numbers == in_force)[0]
        sd[own] = error_sd[own] = 0.0
        found = [belief.ahead(numbers, np.exp(node * sd)) for node in NODES]
        error_sd *= found[1].felt
        costs = np.stack([each.cost for each in found])  # (nodes, K)
        present = float(costs[1, own])
        gained, better = improvement(costs, error_sd, present)
        gained[own] = 0.0
        expected = WEIGHTS @ costs * np.exp(error_sd**2 / 2)
        change = self._change_share * present * self._changed(in_force, numbers)
        regret = np.maximum(expected - present, 0.0)
        return Contenders(numbers, expected, gained, regret, better, change, present)

    def _changed(self, in_force: int, numbers: np.ndarray) -> np.ndarray:
        """(K,) the share of the users for whom going there changes something."""
        return numbers != in_force

    def _promising(self, numbers: np.ndarray, in_force: int) -> tuple[np.ndarray, np.ndarray]:
        """(K,), (K,) those of the lowest cost in the mean, at best and at worst, a standard deviation away.

        With the standard deviations. What is near to the one in force is known best, so it is among those
        that are asked for.
        """
        belief, count = self._belief, self._settings.contenders
        order = self._cheapest_first(numbers, np.ones(len(numbers)))
        near = np.flatnonzero(np.isin(numbers, belief.space.region(in_force, NEAR_DISTANCE)))
        asked = np.union1d(order[:SCREENED], near)
        numbers = numbers[asked]
        sd = belief.standard_deviations(numbers, beside=in_force)
        if len(numbers) > count:
            lowest = np.searchsorted(asked, order[np.isin(order, asked)])
            lists = [lowest, *(self._cheapest_first(numbers, np.exp(sign * sd)) for sign in (-1, 1))]
            in_turns = np.stack(lists, axis=1).ravel()
            _, first = np.unique(in_turns, return_index=True)
            kept = in_turns[np.sort(first)][: count - 1]
            numbers, sd = numbers[kept], sd[kept]
        if in_force in numbers:
            return numbers, sd
        return np.append(numbers, in_force), np.append(sd, 0.0)

    def _cheapest_first(self, numbers: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """(K,) positions, by screening with service times so many times as long."""
        belief = self._belief
        screened = belief.screened(numbers, scale)
        return cheapest_first(belief.objective, screened, belief.space.threads[numbers])


def improvement(costs: np.ndarray, error_sd: np.ndarray, present: float) -> tuple[np.ndarray, np.ndarray]:
    """(K,) E[(present - X)⁺] and P(X < present) of X = cost · exp(error), for (nodes, K) costs.

    Between two nodes ln of the cost is taken for linear in the deviation of the service times. A queue makes
    costs differ by far, so that three nodes alone would make the probability a multiple of a sixth.
    """
    low, middle, high = np.log(costs)
    z = LIKELY_DEVIATIONS[:, None]
    logs = middle + np.where(z < 0, middle - low, high - middle) * z / NODES[2]
    sd = np.maximum(error_sd, 1e-6)
    d = (math.log(present) - logs) / sd
    gain = present * ndtr(d) - np.exp(logs + sd**2 / 2) * ndtr(d - sd)
    return np.maximum(gain.mean(axis=0), 0.0), ndtr(d).mean(axis=0)
