"""A cluster as serving units, each with a queue of its own: the load of one of them.

Yan, Ruwase, He, Smirni: "SERF: Efficient Scheduling for Fast Deep Neural Network Serving via Judicious
Parallelism", SC 2016, end of section IV-C. A unit is a group of nodes that serve one batch together. The
dispatcher gives every unit the same share of the requests.

    λ = λ_all / (N / C_inter)

| symbol | here | meaning |
|---|---|---|
| N | `nodes` | nodes of the cluster |
| C_inter | `nodes_per_unit` | nodes of a unit, by configuration |
| N/C_inter | `serving_units` | units, in whole numbers: nodes that are left over serve nothing |
| λ_all | `cluster_rate_per_s` | arrivals of the cluster |
| λ | `unit_rate_per_s` | arrivals of one unit |

`rrl.queueing.interference` then predicts the latency from λ and the service times of a unit of C_inter nodes.
"""

from __future__ import annotations

import numpy as np

from rrl.queueing.machine import NODES
from rrl.space import ConfigurationSpace


def serving_units(nodes: int, nodes_per_unit: int | np.ndarray) -> np.ndarray:
    """The units of a cluster; (K,) int for (K,) `nodes_per_unit`. ValueError where not one unit is whole."""
    of_unit = np.asarray(nodes_per_unit)
    if of_unit.size and not 1 <= of_unit.min() <= of_unit.max() <= nodes:
        raise ValueError(
            f"nodes_per_unit must lie in 1 .. {nodes}, the nodes of the cluster, "
            f"got {of_unit.min()} .. {of_unit.max()}"
        )
    return nodes // of_unit


def unit_rate_per_s(cluster_rate_per_s: float, nodes: int, nodes_per_unit: int | np.ndarray) -> np.ndarray:
    """λ = λ_all/(N/C_inter), the arrival rate of one unit; (K,) for (K,) `nodes_per_unit`."""
    return np.asarray(cluster_rate_per_s / serving_units(nodes, nodes_per_unit))


def units_fit(space: ConfigurationSpace, nodes: int | None) -> np.ndarray:
    """(size,) bool: a unit needs no more nodes than there are. ValueError if that holds of no configuration.

    None stands for a server that is no such cluster, where every configuration fits.
    """
    fits = np.ones(len(space), bool) if nodes is None else _of_units(space) <= nodes
    if not fits.any():
        raise ValueError(
            f"every nodes_per_unit of the space lies beyond the {nodes} nodes of the cluster: widen the space"
        )
    return fits


def unit_loads(space: ConfigurationSpace, nodes: int | None) -> np.ndarray:
    """(size,) the arrival rate of a queue over the one that is told by node.

    That is C_inter where it divides N. It is 1 where there is no such cluster (None). A unit that does not
    fit counts as one of all nodes.
    """
    if nodes is None:
        return np.ones(len(space))
    return unit_rate_per_s(float(nodes), nodes, np.minimum(_of_units(space), nodes))


def _of_units(space: ConfigurationSpace) -> np.ndarray:
    """(size,) nodes of a unit under each configuration."""
    if NODES not in space.names:
        return np.ones(len(space), int)
    return np.asarray(space.values[:, space.names.index(NODES)])
