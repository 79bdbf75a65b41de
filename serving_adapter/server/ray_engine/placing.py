"""Which nodes of a cluster a new worker goes to: pure rules over what is there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from serving_adapter.server.workers.parallelism import PACK, NodePlacement
from serving_adapter.server.workers.share import ALL, Share


class Unplaceable(Exception):
    """There is no node for a worker; the text is one sentence for the user."""


class HasRoom(Protocol):
    """What is asked of a node that serves."""

    @property
    def id(self) -> str: ...

    @property
    def cpus(self) -> float: ...

    @property
    def is_home(self) -> bool:
        """Whether the front is there."""

    @property
    def began_s(self) -> float:
        """When the node joined, by its own clock."""

    def worker_count(self, placement: NodePlacement | None = None) -> int:
        """Workers on it; those of one placement only, where one is given."""


N = TypeVar("N", bound=HasRoom)


def place(
    nodes: Sequence[N], instances: int, placement: NodePlacement, address: str, share: Share = ALL
) -> tuple[N, ...]:
    """The node for one more worker, when there are to be `instances` of them; Unplaceable for none.

    They are spread over the nodes in proportion to their processors, or packed on as few nodes as may be.
    Each needs a processor. There may be more of them for the while in which new ones replace the old.

    An instance that is a unit gets as many different nodes as it has members. Of several fronts each uses the
    processors of its `share`, those of its own node first.
    """
    if not nodes:
        raise Unplaceable(
            f"no node of the cluster at {address} serves; start one with ray start --address {address}"
        )
    allowed, own_cpus = _part(nodes, placement, share)
    usable = [node for node in allowed if own_cpus[node.id]]
    members = placement.nodes_per_unit
    if members > len(usable) or _workers(allowed) + members > _room(own_cpus.values(), instances):
        check_room(nodes, instances, placement, address, share)
    by_load = sorted(
        usable,
        key=lambda node: (
            (node.worker_count(placement) + 1) / max(1.0, own_cpus[node.id]),
            not node.is_home,
        ),
    )
    if placement.strategy == PACK:
        free = [node for node in usable if node.worker_count(placement) < int(own_cpus[node.id])]
        free.sort(key=lambda node: (-node.worker_count(placement), not node.is_home, -node.cpus))
        by_load = free + [node for node in by_load if node not in free]
    return tuple(by_load[:members])


def check_room(
    nodes: Sequence[HasRoom], instances: int, placement: NodePlacement, address: str, share: Share = ALL
) -> None:
    """Unplaceable where so many instances are too many for the nodes, whatever is there already."""
    allowed, own_cpus = _part(nodes, placement, share)
    members, counted = placement.nodes_per_unit, _counted(allowed, nodes)
    usable = sum(own > 0 for own in own_cpus.values())
    if members > max(1, usable):
        has = counted if usable == len(allowed) else f"CPUs{_whose(share)} on {usable} of {counted}"
        raise Unplaceable(
            f"the cluster at {address} has {has}, and nodes_per_unit={members} needs as many; lower it, or "
            f"add a node with ray start --address {address}"
        )
    if members * instances > _room(own_cpus.values(), instances):
        cpus = sum(int(own) for own in own_cpus.values())
        raise Unplaceable(_too_few(cpus, instances, members, counted, address, share))


def _too_few(cpus: int, instances: int, members: int, counted: str, address: str, share: Share) -> str:
    needed = "need one each" if members == 1 else f"need {members} each, on different nodes"
    return (
        f"the cluster at {address} has {cpus} CPUs{_whose(share)} on {counted}, and {instances} instances "
        f"{needed}; lower instances, or add a node with ray start --address {address}"
    )


def _whose(share: Share) -> str:
    return "" if share == ALL else f" for front {share.front + 1}"


class _EmptyNode(NamedTuple):
    """A node that has no worker yet."""

    id: str
    cpus: float
    is_home: bool = False
    began_s: float = 0.0

    def worker_count(self, placement: NodePlacement | None = None) -> int:
        return 0


def check_fronts(
    cpus: Sequence[float], fronts: int, instances: int, placement: NodePlacement, address: str
) -> None:
    """Unplaceable where there are fewer nodes than fronts, or too few processors, whichever node is older.

    `cpus` has those of each node. Where some of the nodes may be used only, the largest are looked at.
    """
    if len(cpus) < fronts:
        raise Unplaceable(
            f"--fronts {fronts} needs as many nodes, and the Ray cluster at {address} has {len(cpus)}; "
            f"lower it, or add a node with ray start --address {address}"
        )
    nodes = [_EmptyNode(str(place), count) for place, count in enumerate(sorted(cpus, reverse=True))]
    check_room(nodes, instances, placement, address)
    allowed, members = nodes[: placement.nodes or None], placement.nodes_per_unit
    for share in (Share(front, fronts) for front in range(fronts)):
        own, own_instances = share.of(sum(int(node.cpus) for node in allowed)), share.of(instances)
        if members * own_instances > own:
            raise Unplaceable(_too_few(own, own_instances, members, _counted(allowed, nodes), address, share))


def _part(nodes: Sequence[N], placement: NodePlacement, share: Share) -> tuple[list[N], dict[str, float]]:
    """The nodes that may be used, and by id the processors of each that are for this front.

    The only front goes on with those that it uses, then takes the largest. Several take the oldest, and agree
    so on who has which. A node that joins changes nothing of that, where the clocks of the nodes agree.
    """
    if share == ALL:
        in_order = sorted(nodes, key=lambda node: (-bool(node.worker_count(placement)), -node.cpus))
    else:
        in_order = sorted(nodes, key=lambda node: (node.began_s, node.id))
    allowed = in_order[: placement.nodes or None]
    cpus = [node.cpus for node in allowed]
    own_cpus: Sequence[float] = cpus if share == ALL else share.by_node([int(count) for count in cpus])
    return allowed, dict(zip((node.id for node in allowed), own_cpus, strict=True))


def _room(own_cpus: Iterable[float], instances: int) -> int:
    """Workers that fit. A node has no use for more processors than instances: a unit has one worker on it."""
    return sum(min(int(own), instances) for own in own_cpus)


def _workers(nodes: Iterable[HasRoom]) -> int:
    return sum(node.worker_count() for node in nodes)


def _counted(allowed: Sequence[object], nodes: Sequence[object]) -> str:
    if len(allowed) < len(nodes):
        return f"the {len(allowed)} of its {len(nodes)} nodes that may be used"
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
