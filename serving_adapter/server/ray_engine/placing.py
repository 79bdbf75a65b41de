"""Which nodes of a cluster a new worker goes to: pure rules over what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from serving_adapter.server.workers.parallelism import PACK, NodePlacement


class Unplaceable(Exception):
    """There is no node for a worker; the text is one sentence for the user."""


class HasRoom(Protocol):
    """What is asked of a node that serves."""

    @property
    def cpus(self) -> float: ...

    def worker_count(self, placement: NodePlacement | None = None) -> int:
        """Workers on it; those of one placement only, where one is given."""


N = TypeVar("N", bound=HasRoom)


def place(nodes: Sequence[N], instances: int, placement: NodePlacement, address: str) -> tuple[N, ...]:
    """The node for one more worker, when there are to be `instances` of them; Unplaceable for none.

    They are spread over the nodes in proportion to their processors, or packed on as few nodes as may be.
    Each needs a processor. There may be more of them for the while in which new ones replace the old.

    An instance that is a unit gets as many different nodes as it has members.
    """
    if not nodes:
        raise Unplaceable(
            f"no node of the cluster at {address} serves; start one with ray start --address {address}"
        )
    allowed, members = _allowed(nodes, placement), placement.nodes_per_unit
    if members > len(allowed):
        raise Unplaceable(
            f"the cluster at {address} has {_counted(allowed, nodes)}, and nodes_per_unit={members} needs as "
            f"many; lower it, or add a node with ray start --address {address}"
        )
    # A unit has no two of its members on one node, so a node has no use for more processors than instances.
    room, workers = sum(min(int(node.cpus), instances) for node in allowed), _workers(allowed)
    if members * instances > room and workers + members > room:
        cpus = sum(int(node.cpus) for node in allowed)
        needed = "need one each" if members == 1 else f"need {members} each, on different nodes"
        raise Unplaceable(
            f"the cluster at {address} has {cpus} CPUs on {_counted(allowed, nodes)}, and {instances} "
            f"instances {needed}; lower instances, or add a node with ray start --address {address}"
        )
    by_load = sorted(allowed, key=lambda node: (node.worker_count(placement) + 1) / max(1.0, node.cpus))
    if placement.strategy == PACK:
        free = [node for node in allowed if node.worker_count(placement) < int(node.cpus)]
        free.sort(key=lambda node: (-node.worker_count(placement), -node.cpus))
        by_load = free + [node for node in by_load if node not in free]
    return tuple(by_load[:members])


def _workers(nodes: Iterable[HasRoom]) -> int:
    return sum(node.worker_count() for node in nodes)


def _allowed(nodes: Iterable[N], placement: NodePlacement) -> list[N]:
    """As many as may be used: those that are, then the largest."""
    by_use = sorted(nodes, key=lambda node: (-bool(node.worker_count(placement)), -node.cpus))
    return by_use[: placement.nodes or None]


def _counted(allowed: Sequence[object], nodes: Sequence[object]) -> str:
    if len(allowed) < len(nodes):
        return f"the {len(allowed)} of its {len(nodes)} nodes that may be used"
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
