"""On which nodes of a cluster the workers of a model are: two settings, which change live as the knobs do."""

from __future__ import annotations

from collections.abc import Mapping

from serving_adapter.model_configuration import whole_number
from serving_adapter.server.workers.parallelism import STRATEGIES, NodePlacement

PREFIX = "CLUSTER_"
NODES, STRATEGY = f"{PREFIX}NODES", f"{PREFIX}PLACEMENT"
MOST_NODES = 10_000


def check(placement: NodePlacement) -> None:
    """ValueError, in one sentence, for what no cluster could obey."""
    if not 0 <= placement.nodes <= MOST_NODES:
        raise ValueError(f"nodes must be from 0 to {MOST_NODES}, 0 for all, got {placement.nodes}")
    if placement.strategy not in STRATEGIES:
        raise ValueError(f"placement must be {' or '.join(STRATEGIES)}, got {placement.strategy!r}")


def from_parameters(parameters: Mapping[str, str], default: NodePlacement, on_cluster: bool) -> NodePlacement:
    """The placement among a configuration's parameters; ValueError for one that cannot be."""
    for name in parameters:
        if name.startswith(PREFIX) and not (on_cluster and name in (NODES, STRATEGY)):
            known = f"known: {NODES}, {STRATEGY}" if on_cluster else "it needs rrl-serve --engine ray"
            raise ValueError(f"parameters.{name} is no setting of this server; {known}")
    nodes = whole_number(parameters.get(NODES, str(default.nodes)))
    if nodes is None:
        raise ValueError(f"parameters.{NODES}.string_value must be a whole number, got {parameters[NODES]!r}")
    placement = NodePlacement(nodes, parameters.get(STRATEGY, default.strategy))
    check(placement)
    return placement


def as_parameters(placement: NodePlacement) -> dict[str, str]:
    return {NODES: str(placement.nodes), STRATEGY: placement.strategy}
