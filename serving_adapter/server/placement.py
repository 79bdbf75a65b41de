"""On which nodes of a cluster the workers of a model are: settings that change live as the knobs do."""

from __future__ import annotations

from collections.abc import Mapping

from serving_adapter.knob_limits import MOST_NODES
from serving_adapter.model_configuration import NODES_IN_USE, whole_number
from serving_adapter.server.workers.parallelism import STRATEGIES, NodePlacement

PREFIX = "CLUSTER_"
SETTINGS = NODES_IN_USE, f"{PREFIX}PLACEMENT", f"{PREFIX}NODES_PER_UNIT"
NODES, STRATEGY, NODES_PER_UNIT = SETTINGS


def check(placement: NodePlacement) -> None:
    """ValueError, in one sentence, for what no cluster could obey."""
    if not 0 <= placement.nodes <= MOST_NODES:
        raise ValueError(f"nodes must be from 0 to {MOST_NODES}, 0 for all, got {placement.nodes}")
    if placement.strategy not in STRATEGIES:
        raise ValueError(f"placement must be {' or '.join(STRATEGIES)}, got {placement.strategy!r}")
    if not 1 <= placement.nodes_per_unit <= MOST_NODES:
        raise ValueError(f"nodes_per_unit must be from 1 to {MOST_NODES}, got {placement.nodes_per_unit}")


def from_parameters(parameters: Mapping[str, str], default: NodePlacement, on_cluster: bool) -> NodePlacement:
    """The placement among a configuration's parameters; ValueError for one that cannot be."""
    for name in parameters:
        if name.startswith(PREFIX) and not (on_cluster and name in SETTINGS):
            known = f"known: {', '.join(SETTINGS)}" if on_cluster else "it needs rrl-serve --engine ray"
            raise ValueError(f"parameters.{name} is no setting of this server; {known}")
    placement = NodePlacement(
        _count(parameters, NODES, default.nodes),
        parameters.get(STRATEGY, default.strategy),
        _count(parameters, NODES_PER_UNIT, default.nodes_per_unit),
    )
    check(placement)
    return placement


def _count(parameters: Mapping[str, str], name: str, default: int) -> int:
    count = whole_number(parameters.get(name, str(default)))
    if count is None:
        raise ValueError(f"parameters.{name}.string_value must be a whole number, got {parameters[name]!r}")
    return count


def as_parameters(placement: NodePlacement) -> dict[str, str]:
    return {
        NODES: str(placement.nodes),
        STRATEGY: placement.strategy,
        NODES_PER_UNIT: str(placement.nodes_per_unit),
    }
