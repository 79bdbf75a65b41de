"""The one rule by which measured configurations are compared.

A configuration's cost is the mean over its intervals, raised by its noise: ĉ(1 + ν/√n).

| symbol | here | meaning |
|---|---|---|
| ĉ | `costs` | mean cost of the intervals |
| n | `len(costs)` | how many there are |
| ν | `NOISE` | relative standard deviation of one interval's cost |
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

NOISE = 0.2  # ν: relative standard deviation of one interval's cost, 100 to 200 requests of a busy server
USUAL_COMPLETIONS = 100  # of an interval; shorter ones scatter more


def costs_by_configuration(pairs: Iterable[tuple[int, float]]) -> dict[int, list[float]]:
    costs: dict[int, list[float]] = {}
    for number, cost in pairs:
        costs.setdefault(number, []).append(cost)
    return costs


def pessimistic_mean(costs: Sequence[float], noise: float = NOISE) -> float:
    """One lucky interval does not beat a configuration that is well measured."""
    return sum(costs) / len(costs) * (1.0 + noise / math.sqrt(len(costs)))


def optimistic_mean(costs: Sequence[float], noise: float = NOISE) -> float:
    """One unlucky interval does not make a configuration worse than another."""
    return pessimistic_mean(costs, -noise)


def best_known(costs: Mapping[int, Sequence[float]], noise: float = NOISE) -> int:
    """The configuration of lowest pessimistic mean cost; the lowest number among equals."""
    return min(costs, key=lambda number: (pessimistic_mean(costs[number], noise), number))
