"""How much each knob matters: the share of the variance of ln cost over the grid that it explains alone.

| symbol | here | meaning |
|---|---|---|
| f(c) | `log_costs` | ln of the cost expected of configuration c, at most ln `CAP` above the lowest |
| f_0 | | mean of f over the grid |
| f_j(v) | `effect` | mean of f over the configurations whose knob j has the value v, less f_0 |
| V_j | | variance of f_j over the grid: the main effect of knob j |
| V | | variance of f |
| V_j / V | `KnobImportance.share` | |
| 1 - Σ V_j / V | `Importances.together` | what knobs do only in combination |

This is functional ANOVA as Hutter, Hoos and Leyton-Brown use it (An Efficient Approach for Assessing
Hyperparameter Importance, ICML 2014). They take f from a random forest; here it is what is believed, which
tells it of every configuration, so that the means are sums over the grid.

What an overloaded configuration costs depends on how long it is looked at. So f is capped, else the few that
do not bear the load would be all that the variance is about.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from rrl.space import ConfigurationSpace

CAP = 10.0  # times the lowest cost: what costs more counts as this
LEAST_VARIANCE = 1e-6  # of ln cost: a grid that varies less is all alike


class KnobImportance(NamedTuple):
    """What a knob does alone."""

    name: str
    share: float  # of the variance, 0 .. 1
    times_the_lowest: dict[int, float]  # by value: its mean cost over that of the cheapest value


class Importances(NamedTuple):
    """Of all knobs that have several values, the most important one first."""

    knobs: tuple[KnobImportance, ...]
    together: float  # share of the variance that none of them explains alone


def knob_importances(space: ConfigurationSpace, numbers: np.ndarray, costs: np.ndarray) -> Importances:
    """Of the (K,) costs of configurations by their numbers: all of the grid, or a sample of it."""
    logs = np.log(np.maximum(costs, 1e-9))
    logs = np.minimum(logs, logs.min() + math.log(CAP))
    variance, mean = float(logs.var()), float(logs.mean())
    found = []
    for k, knob in enumerate(space.knobs):
        of_value = {v: logs[space.values[numbers, k] == v] for v in knob.values}
        effect = {v: (float(own.mean()) - mean, len(own)) for v, own in of_value.items() if len(own)}
        if len(effect) < 2:
            continue
        explained = sum(count * shift**2 for shift, count in effect.values()) / len(logs)
        lowest = min(shift for shift, _ in effect.values())
        times = {v: math.exp(shift - lowest) for v, (shift, _) in effect.items()}
        share = explained / variance if variance > LEAST_VARIANCE else 0.0
        found.append(KnobImportance(knob.name, share, times))
    found.sort(key=lambda each: -each.share)
    together = 1.0 - sum(each.share for each in found) if variance > LEAST_VARIANCE else 0.0
    return Importances(tuple(found), min(max(together, 0.0), 1.0))
